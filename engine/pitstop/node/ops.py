"""Operations: work that takes longer than a second, detached from whoever asked for it.

The caller chooses the id. Starting an id again attaches to what exists, so a lost
connection, a second controller or a retry never starts the work twice. The runner holds the
operation's lock while it lives: no lock and no result means that it was interrupted (killed,
or the node rebooted), whatever any PID file would say.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pitstop.images.durable import make_directory, read_json, sync_directory, write_json
from pitstop.model.errors import (
    BadInput,
    Busy,
    DeadlineExceeded,
    PermanentError,
    PitstopError,
    Unexpected,
    WorkloadGone,
)
from pitstop.node import cancelling, processes
from pitstop.node.clock import now, running_seconds
from pitstop.node.detached import spawn
from pitstop.node.locks import Lock, is_held, wait_until_free
from pitstop.node.paths import StateDir, boot_id, checked
from pitstop.node.processes import Identity

ASK_AGAIN = 1.0
"""Seconds between requests to stop. An interpreter does not see one that comes just before a
system call until that call returns; the runner takes the first that it sees, and no other."""


class OpState(StrEnum):
    """Where an operation stands."""

    UNKNOWN = "unknown"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Status:
    """An operation as it is now.

    Attributes:
        result: of a done one.
        error: of a failed one, as `PitstopError.to_json`.
    """

    id: str
    state: OpState
    kind: str = ""
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    started: str = ""
    ended: str = ""
    boot_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "id": self.id,
            "state": self.state.value,
            "kind": self.kind,
            "result": self.result,
            "error": self.error,
            "started": self.started,
            "ended": self.ended,
            "boot_id": self.boot_id,
        }


class Operation:
    """One operation's directory."""

    def __init__(self, state: StateDir, identifier: str) -> None:
        self.state = state
        self.id = checked(identifier)
        self.path = state.operations() / self.id

    @property
    def log(self) -> Path:
        """What the runner and its commands printed."""
        return self.path / "log"

    def start(self, kind: str, arguments: dict[str, Any]) -> Status:
        """Start it, or attach to it if the id exists.

        Raises:
            BadInput: the id exists with another kind or other arguments.
        """
        request = {
            "kind": kind,
            "arguments": arguments,
            "boot_id": boot_id(),
            "started": now(),
        }
        draft = self.path.with_name(f".{self.id}.{os.getpid()}")
        make_directory(draft)
        write_json(draft / "request.json", request)
        (draft / "log").touch(mode=0o600)
        lock = Lock(draft / "lock")
        lock.try_acquire()
        try:
            draft.rename(self.path)
        except OSError:  # it exists: attach
            shutil.rmtree(draft)
            lock.release()
            return self._attach(kind, arguments)
        sync_directory(self.path.parent)
        try:
            self._spawn(lock)
        finally:
            lock.release()  # the runner has inherited it
        return self.status()

    def _attach(self, kind: str, arguments: dict[str, Any]) -> Status:
        existing = self._request()
        if (existing["kind"], existing["arguments"]) != (kind, arguments):
            raise BadInput(
                self.id,
                f"an operation of this id exists and is not the same ({existing['kind']})",
                "choose another id",
            )
        return self.status()

    def _spawn(self, lock: Lock) -> None:
        with cancelling.postponed():
            runner = spawn(self.state, ["op-run", self.id], lock, self.log)
        try:
            started = processes.identity(runner)
        except WorkloadGone:
            return  # it has ended by now, with a result
        write_json(self.path / "runner.json", {"pid": started.pid, "start": started.start})

    def status(self) -> Status:
        """Say where it stands."""
        if not self.path.exists():
            return Status(self.id, OpState.UNKNOWN)
        # Asked in this order: a result that appears after the first look is not overlooked.
        alive = is_held(self.path / "lock")
        result = read_json(self.path / "result.json")
        request = self._request()
        if result is not None:
            found = OpState.DONE if result["error"] is None else OpState.FAILED
        else:
            found = OpState.RUNNING if alive else OpState.INTERRUPTED
        return Status(
            id=self.id,
            state=found,
            kind=str(request["kind"]),
            result=result["result"] if result else None,
            error=result["error"] if result else None,
            started=str(request["started"]),
            ended=str(result["ended"]) if result else "",
            boot_id=str(request["boot_id"]),
        )

    def wait(self, seconds: float) -> Status:
        """Wait until it ends, or for so many seconds, and say where it stands."""
        if self.path.exists():
            try:
                wait_until_free(self.path / "lock", seconds)
            except DeadlineExceeded:
                return self.status()
        return self.status()

    def cancel(self, seconds: float) -> Status:
        """Ask the runner to stop, and wait until it has.

        Raises:
            Busy: it is just being started.
            DeadlineExceeded: it still runs after so many seconds.
        """
        if self.status().state is not OpState.RUNNING:
            return self.status()
        deadline = running_seconds() + seconds
        while True:
            self._ask_to_stop()
            left = deadline - running_seconds()
            with contextlib.suppress(DeadlineExceeded):
                wait_until_free(self.path / "lock", min(left, ASK_AGAIN))
                return self.status()
            if left <= ASK_AGAIN:
                raise DeadlineExceeded(self.id, f"still runs {seconds:g} s after it was asked")

    def _ask_to_stop(self) -> None:
        runner = read_json(self.path / "runner.json")
        if runner is None:
            raise Busy(self.id, "it is just being started", "cancel it again")
        process = Identity(int(runner["pid"]), int(runner["start"]))
        # The lock is the proof: the file alone may name any process.
        if process.alive() and processes.has_open(process.pid, self.path / "lock"):
            os.kill(process.pid, signal.SIGTERM)

    def tail(self, size: int) -> bytes:
        """Return the end of the log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - size))
            return file.read(size)

    def run(self) -> int:
        """Do the work; in the runner only. Returns the exit status."""
        from pitstop.node.kinds import KINDS

        self._keep_lock_to_myself()
        request = self._request()
        begun = running_seconds()
        result: dict[str, Any] | None = None
        error: dict[str, Any] | None = None
        try:
            handler = KINDS.get(str(request["kind"]))
            if handler is None:
                raise BadInput(self.id, f"this engine has no operation {request['kind']!r}")
            try:
                result = handler(self, dict(request["arguments"]))
            finally:
                cancelling.over()
        except PitstopError as failure:
            error = failure.to_json()
        except Exception as failure:  # noqa: BLE001  # recorded as the result, with its class
            print(f"{type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
            error = Unexpected(self.id, f"{type(failure).__name__}: {failure}").to_json()
        write_json(
            self.path / "result.json",
            {
                "result": result,
                "error": error,
                "ended": now(),
                "seconds": round(running_seconds() - begun, 6),
            },
        )
        return 0 if error is None else 1

    def _keep_lock_to_myself(self) -> None:
        """Let no program that this runner starts inherit the lock, or it would outlive us."""
        wanted = (self.path / "lock").stat()
        for entry in os.listdir("/proc/self/fd"):
            try:
                found = os.fstat(int(entry))
            except OSError:
                continue  # the descriptor of the listing itself
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                os.set_inheritable(int(entry), False)
                return
        raise PermanentError(self.id, "started without its lock", "only `op start` starts these")

    def _request(self) -> dict[str, Any]:
        data = read_json(self.path / "request.json")
        if data is None:
            raise PermanentError(self.id, "its request is missing")
        return data


def running_operations(state: StateDir) -> list[Status]:
    """Return what works on this node now."""
    alive = sorted(
        path.name
        for path in state.operations().iterdir()
        if not path.name.startswith(".") and is_held(path / "lock")
    )
    found = (Operation(state, name).status() for name in alive)
    return [status for status in found if status.state is OpState.RUNNING]


def parse_arguments(text: str) -> dict[str, Any]:
    """Read an operation's arguments.

    Raises:
        BadInput: not a JSON object.
    """
    try:
        data = json.loads(text) if text.strip() else {}
        json.dumps(data, ensure_ascii=False).encode()  # halves of characters cannot be written
    except ValueError as error:
        raise BadInput("arguments", f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadInput("arguments", "a JSON object is expected")
    return data
