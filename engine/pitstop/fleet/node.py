"""A node as a controller sees it: calls, operations, and the proof of a reboot."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pitstop.fleet.local import LocalTransport
from pitstop.fleet.session import Session
from pitstop.fleet.ssh import SshTransport
from pitstop.fleet.transport import SessionTransport, Stream
from pitstop.model.errors import (
    BadInput,
    ConnectionLost,
    DeadlineExceeded,
    HostKeyRefused,
    Interrupted,
    NodeUnreachable,
    PitstopError,
    TemporaryError,
)
from pitstop.model.site import Node


class Pending(BaseException):
    """Work goes on on the node, and nobody has to hold a process for it (`DeferringNode`).

    Not an `Exception`: nothing on its way may take it for a failure.

    Attributes:
        wait: plain data for `RemoteNode.poll`, which says when it is over.
        seconds: after which waiting makes no more sense.
    """

    def __init__(self, wait: dict[str, Any], seconds: float) -> None:
        super().__init__(wait, seconds)
        self.wait = wait
        self.seconds = seconds


CALL_TIMEOUT = 180.0
WAIT_SLICE = 20.0
"""Seconds a single wait is asked for: short, so that a dead connection is noticed."""

WAIT_ANSWER = 30.0
"""Seconds after which the answer to a wait is overdue: then there is no contact."""

PAUSE = 0.5
"""Seconds before a node is asked again: nothing tells when it comes back."""

CONTACT_GRACE = 300.0
"""Seconds without contact after which waiting for an operation is given up (it goes on)."""


class RemoteNode:
    """One node. Not for use by several threads at once.

    Args:
        lease: of the run on whose behalf it is asked (`pitstop.steps.leases.lease_order`):
            every operation that is started or waited for renews it.

    Attributes:
        meanwhile: done each time that an operation is asked for.
    """

    def __init__(
        self,
        name: str,
        spec: Node,
        transport: SessionTransport | None = None,
        lease: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self._lease = None if lease is None else dict(lease)
        self.meanwhile: Callable[[], None] = lambda: None
        self._transport = transport or (
            SshTransport(name, spec.ssh) if spec.ssh is not None else LocalTransport()
        )
        self._session = Session(name, spec.engine, self._transport)

    def close(self) -> None:
        """Give the connection back."""
        self._session.close()

    def call(self, call: str, timeout: float = CALL_TIMEOUT, **arguments: Any) -> dict[str, Any]:
        """Ask the node's engine something that it answers within seconds.

        Raises:
            PitstopError: the node's own error, or that of the way to it.
        """
        request = {"call": call, "state_dir": self.spec.state_dir, "arguments": arguments}
        answer = self._session.ask(request, timeout)
        if "error" in answer:
            raise PitstopError.from_json(answer["error"])
        return dict(answer["result"])

    def ping(self, timeout: float = CALL_TIMEOUT) -> dict[str, Any]:
        """Return `boot_id` and `time`."""
        return self.call("ping", timeout, lease=self._lease)

    def operate(
        self,
        identifier: str,
        kind: str,
        arguments: Mapping[str, Any],
        deadline: float,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> dict[str, Any]:
        """Start an operation, or attach to it, and wait for its result.

        A lost connection changes nothing: the operation goes on, and is asked for again.

        Raises:
            PitstopError: the operation's own error.
            Interrupted: it ended without a result.
            DeadlineExceeded: it still runs after `deadline` seconds.
            NodeUnreachable: no contact for so long that waiting makes no sense.
        """
        end = time.monotonic() + deadline
        work = {"kind": kind, "arguments": dict(arguments)}
        status = self._ask_and_wait("op.start", identifier, deadline, progress, **work)
        while status["state"] == "running":
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(identifier, f"still running after {deadline:g} s")
            status = self._ask_and_wait("op.wait", identifier, left, progress)
        return self._result(identifier, status)

    def _ask_and_wait(
        self,
        call: str,
        identifier: str,
        left: float,
        progress: Callable[[str], None],
        **arguments: Any,
    ) -> dict[str, Any]:
        """Ask for an operation's status once it has ended, or after a while."""
        seconds = min(left, WAIT_SLICE)
        self.meanwhile()
        asked = {"id": identifier, "seconds": seconds, "lease": self._lease, **arguments}
        return self._persist(lambda: self.call(call, seconds + WAIT_ANSWER, **asked), progress)

    def stream(self, *command: str) -> Stream:
        """Start a command of the node's engine, to be fed and read by the caller.

        Raises:
            PitstopError: the node cannot be reached.
        """
        place = ("--state-dir", self.spec.state_dir)
        return self._transport.stream([*self.spec.engine, *place, *command])

    def cancel(self, identifier: str) -> dict[str, Any]:
        """Ask an operation to stop, and wait until it has."""
        return self.call("op.cancel", id=identifier)

    def wait_reboot(
        self, before: str, deadline: float, progress: Callable[[str], None] = lambda _text: None
    ) -> str:
        """Wait until the node answers with another boot id than before; return it.

        That it did not answer for a while, or that an answer was an error, proves nothing.

        Raises:
            DeadlineExceeded: it did not reboot in time.
            HostKeyRefused: another machine answers in its place.
        """
        end = time.monotonic() + deadline
        last = "it was not asked yet"
        while time.monotonic() < end:
            found, last = self._new_boot_id(before)
            if found:
                return found
            progress(last)
            time.sleep(PAUSE)
        raise DeadlineExceeded(self.name, f"did not reboot in {deadline:g} s; last: {last}")

    def poll(self, wait: Mapping[str, Any], seconds: float) -> bool:
        """Ask, for up to so many seconds, whether what was pending is over.

        Being without contact is no answer: False, and it is asked again.

        Raises:
            PitstopError: asking makes no sense, as with a wrong host key.
        """
        try:
            if wait["for"] == "reboot":
                return bool(self._new_boot_id(str(wait["boot_id"]))[0])
            status = self.call(
                "op.wait", seconds + WAIT_ANSWER, id=wait["id"], seconds=seconds, lease=self._lease
            )
        except TemporaryError:
            self.close()
            return False
        return bool(status["state"] != "running")

    def _new_boot_id(self, before: str) -> tuple[str, str]:
        """Return the boot id if it is another one, else an empty text; and what was seen."""
        try:
            found = str(self.ping(timeout=15).get("boot_id"))
        except (HostKeyRefused, BadInput):
            raise
        except PitstopError as error:
            # Whatever it is: a machine that is starting answers in strange ways for a while.
            self.close()
            return "", error.cause
        if not _is_boot_id(found):
            return "", f"it answers with {found!r}, which is no boot id"
        if found == before:
            return "", f"it answers with boot id {found}, as before"
        return found, "it rebooted"

    def _persist(
        self, ask: Callable[[], dict[str, Any]], progress: Callable[[str], None]
    ) -> dict[str, Any]:
        """Ask again while the connection is what fails.

        A deadline here is one of the way there: the node's own are states, not errors.
        """
        end = time.monotonic() + CONTACT_GRACE
        while True:
            try:
                return ask()
            except (ConnectionLost, NodeUnreachable, DeadlineExceeded) as error:
                if time.monotonic() > end:
                    raise
                progress(f"no contact: {error.cause}")
                self.close()
                time.sleep(PAUSE)

    def _result(self, identifier: str, status: Mapping[str, Any]) -> dict[str, Any]:
        if status["state"] == "done":
            return dict(status["result"])
        if status["state"] == "failed":
            raise PitstopError.from_json(status["error"])
        raise Interrupted(
            identifier,
            f"the operation ended without a result ({status['state']})",
            "its process was killed, or the node rebooted",
        )


def _is_boot_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


class DeferringNode(RemoteNode):
    """A node whose long work is not waited for: it raises `Pending` instead.

    Asked again for the same work, it attaches to it, and returns its result once it is over.
    """

    PATIENCE = 3.0
    """Seconds that are waited all the same: giving up the process costs more than that."""

    out_of_time = False
    """Set when the deadline has passed: what is still under way is then a failure."""

    def operate(
        self,
        identifier: str,
        kind: str,
        arguments: Mapping[str, Any],
        deadline: float,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> dict[str, Any]:
        """Start an operation, or attach to it; see `RemoteNode.operate`.

        Raises:
            Pending: it is under way.
        """
        try:
            return super().operate(
                identifier, kind, arguments, min(deadline, self.PATIENCE), progress
            )
        except DeadlineExceeded as error:
            if error.subject != identifier or self.out_of_time:
                raise
            raise Pending(
                {"for": "operation", "id": identifier, "node": self.name}, deadline
            ) from None

    def wait_reboot(
        self, before: str, deadline: float, progress: Callable[[str], None] = lambda _text: None
    ) -> str:
        """Return the new boot id if it is there; see `RemoteNode.wait_reboot`.

        Raises:
            Pending: the node has not come back yet.
        """
        try:
            return super().wait_reboot(before, min(deadline, self.PATIENCE), progress)
        except DeadlineExceeded:
            if self.out_of_time:
                raise
            raise Pending({"for": "reboot", "boot_id": before}, deadline) from None
