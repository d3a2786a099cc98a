"""The machine that has a router's socket or file: this one, or one reached by SSH."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence

from pitstop.fleet.local import LocalTransport
from pitstop.fleet.routers import on_machine
from pitstop.fleet.ssh import SshTransport
from pitstop.fleet.transport import Completed, Transport
from pitstop.model.errors import (
    ConnectionLost,
    NodeUnreachable,
    PermanentError,
    TemporaryError,
)
from pitstop.model.ssh import Ssh

SLACK = 20.0
"""Seconds for a connection and a start of Python, over what the work itself may take."""


class Machine:
    """Runs `on_machine`'s verbs and a router's own commands.

    Args:
        name: of the router, for errors.
        ssh: None for this machine.
    """

    def __init__(self, name: str, ssh: Ssh | None) -> None:
        self._subject = f"router {name}"
        self._remote = ssh is not None
        self._transport: Transport = LocalTransport() if ssh is None else SshTransport(name, ssh)

    def talk(self, address: str, command: str, timeout: float) -> str:
        """Send a line to a socket and return the whole answer.

        Raises:
            TemporaryError: no answer.
        """
        said = self._do("talk", [address, str(timeout)], command.encode() + b"\n", timeout)
        return said.decode("utf-8", errors="backslashreplace")

    def read(self, path: str, timeout: float) -> str:
        """Return a text file, its bytes kept (`surrogateescape`).

        Raises:
            TemporaryError: it cannot be read.
        """
        return self._do("read", [path], b"", timeout).decode("utf-8", "surrogateescape")

    def replace(self, path: str, old: str, new: str, timeout: float) -> None:
        """Replace a file at once, if it still is what was read.

        Raises:
            TemporaryError: it is not, or it cannot be written; it is as it was.
        """
        expected = hashlib.sha256(old.encode("utf-8", "surrogateescape")).hexdigest()
        content = new.encode("utf-8", "surrogateescape")
        self._do("replace", [path, expected], content, timeout)

    def children(self, pid_file: str, timeout: float) -> bytes:
        """Return the processes below the one in a PID file; see `on_machine.children`.

        Raises:
            TemporaryError: they cannot be told.
        """
        return self._do("children", [pid_file], b"", timeout)

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        """Run a command; see `Transport.run`.

        Raises:
            TemporaryError: the machine cannot be reached, or the command not be started.
        """
        return self._run(argv, b"", timeout)

    def close(self) -> None:
        """Give the connection back."""
        self._transport.close()

    def _do(self, verb: str, arguments: list[str], given: bytes, timeout: float) -> bytes:
        about = arguments[0]
        if not self._remote:
            try:
                return on_machine.main([verb, *arguments], given)
            except (OSError, ValueError) as error:
                raise TemporaryError(self._subject, f"{verb} {about}: {error}") from error
        program = ["python3", "-I", "-c", inspect.getsource(on_machine), verb, *arguments]
        done = self._run(program, given, timeout + SLACK)
        said = done.stderr.decode("utf-8", errors="backslashreplace").strip()[-500:]
        if done.exit_status == 127:
            raise PermanentError(self._subject, f"python3 is not there: {said}")
        if done.exit_status != 0:
            raise TemporaryError(self._subject, f"{verb} {about}: {said or 'no words'}")
        return done.stdout

    def _run(self, argv: Sequence[str], given: bytes, timeout: float) -> Completed:
        try:
            return self._transport.run(argv, given, timeout)
        except (NodeUnreachable, ConnectionLost) as error:
            # Those say of a run that its node is out of contact; a router is not its node.
            raise TemporaryError(self._subject, str(error)) from error
