"""The launcher: the one way a workload is made easy to save.

It starts the workload in its own PID and mount namespace, from a checkpoint where a valid
one exists and else from its command, passes signals on, and ends with the workload's exit
status. While the workload lives it holds its lock; when it dies, the kernel ends the whole
workload with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, Literal, cast

from pitstop.model.errors import (
    PermanentError,
    PitstopError,
    Refused,
    RestoreFailed,
    Unexpected,
)
from pitstop.node import kernel, nsinit
from pitstop.node.clock import now, running_seconds
from pitstop.node.locks import Lock
from pitstop.node.owner import Owner
from pitstop.node.parking import Parked, told_to_stay
from pitstop.node.paths import StateDir, boot_id
from pitstop.node.record import Phase, Record, WorkloadState
from pitstop.node.signals import Signals

Start = Literal["auto", "restore", "cold"]

HOLD_INTERVAL = 2.0
"""Seconds between looks at a hold: what other nodes write to shared storage sends no event."""

LOCK_PATIENCE = 120.0
"""Seconds that a scheduler's job waits for the end of what looks like another copy."""

CHECKPOINTED = 0
"""Exit status of the launcher when its workload was ended by a checkpoint: a supervisor that
restarts on failure only must not start it again in the middle of the maintenance."""


class Report:
    """Where one line is said once the workload runs or could not be started.

    Whoever asked may be gone by then; that is no reason to end what was started.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def say(self, message: dict[str, object]) -> None:
        """Say it, if nothing was said before."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, json.dumps(message).encode() + b"\n")
        self.close()

    def close(self) -> None:
        """Give the descriptor back: its number is soon another file's."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True, slots=True)
class Request:
    """What to launch.

    Attributes:
        start: `auto` restores a valid checkpoint and else starts cold; `restore` fails
            instead; `cold` never restores.
        checkpoint: the checkpoint to restore; default the newest sealed one.
        run: the run on whose behalf this start happens.
        begun: seconds since boot when somebody set out to start it; default now.
        gated: the gate was asked a moment ago by the run; do not ask it again.
        job: the scheduler's number of the job that this is part of; empty without one.
        owner: the user that it is, and runs as; None for root.
        report: told once the workload runs or could not be started.
    """

    workload: str
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    start: Start = "auto"
    checkpoint: str | None = None
    run: str = ""
    deny_io_uring: bool = False
    gated: bool = False
    job: str = ""
    owner: Owner | None = None
    begun: float | None = None
    report: Report | None = None

    @property
    def uid(self) -> int:
        """The user id that it runs as."""
        return self.owner.uid if self.owner else 0


def launch(request: Request, state: StateDir) -> int:
    """Run the workload to its end and return the exit status to end with.

    Raises:
        Refused: another copy lives, or another run holds the workload.
        PitstopError: it could not be started.
    """
    signals = Signals(nsinit.FORWARDED)
    parked: Parked | None = None
    while True:
        status, stays = _launch_once(request, state, signals, parked)
        if stays is None:
            return status
        parked = stays
        order = parked.wait(signals)
        if isinstance(order, int):
            _end_by(order)
            return 128 + order  # where that signal does not end a process
        request = _obeying(request, order)


def _obeying(request: Request, order: Mapping[str, Any]) -> Request:
    try:
        reply = os.open(str(order["reply"]), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        report = None  # who gave the order is gone; it is obeyed all the same
    else:
        report = Report(reply)
    return replace(
        request,
        start="auto",
        checkpoint=order["checkpoint"],
        run=str(order["run"]),
        begun=float(order["begun"]),
        report=report,
    )


def _launch_once(
    request: Request, state: StateDir, signals: Signals, parked: Parked | None
) -> tuple[int, Parked | None]:
    """Run it to its end; return the exit status, or that the launcher is to stay."""
    files = WorkloadState(state, request.workload)
    try:
        lock = _take(request, files, signals)
    except PitstopError as error:
        _report(request, {"failed": error.to_json()})
        raise
    if parked is not None:
        parked.end()
    try:
        _settle(files, state)
        files.update(
            phase=Phase.STARTING,
            run=request.run,
            how="cold" if request.start == "cold" else "restored",
            launcher_pid=os.getpid(),
        )
        status = _Launcher(request, state, files, signals).run()
        stays = status == CHECKPOINTED and _saved(files) and told_to_stay(files, state)
        # Before the workload's lock is given back: whoever waits for that finds it parked.
        return status, (Parked(files) if stays else None)
    except PitstopError as error:
        _report(request, {"failed": error.to_json()})
        raise
    except Exception as error:
        wrapped = Unexpected(request.workload, f"{type(error).__name__}: {error}")
        _report(request, {"failed": wrapped.to_json()})
        raise wrapped from error
    finally:
        _ended(files)
        lock.release()


def _saved(files: WorkloadState) -> bool:
    """Whether it was ended the way a checkpoint ends it, and not by itself."""
    return files.record().ended.get("signal") == signal.SIGKILL


def _take(request: Request, files: WorkloadState, signals: Signals) -> Lock:
    """Take the workload's lock. While another run holds the workload, a scheduler's job waits.

    Such a job was put back into the queue by its scheduler when its node died in the middle of
    a maintenance. To fail would lose it.

    Raises:
        Refused: another copy lives, it was moved to another node, or another run holds it.
    """
    lock = Lock(files.lock_path)
    begun = running_seconds()
    while True:
        if not lock.try_acquire():
            if request.job and running_seconds() - begun < LOCK_PATIENCE:
                # Of a node that lost power, shared storage keeps the locks for a while.
                _wait_for_signal(signals, HOLD_INTERVAL)
                continue
            raise Refused(request.workload, "a copy of it runs already")
        record = files.record()
        if record.generation and record.owner != request.uid:
            lock.release()
            raise Refused(
                request.workload,
                "it belongs to another user",
                "choose another name; in a root shell of sudo: env -u SUDO_UID",
            )
        moved = files.moved()
        if moved is not None:
            lock.release()
            raise Refused(
                request.workload,
                str(moved),
                f"maintain {moved.to} to bring it back; if that node is lost for good: "
                f"pitstop-node moved {request.workload} --clear",
            )
        holder = files.holder()
        if holder in ("", request.run):
            return lock
        lock.release()
        if not request.job:
            raise Refused(
                request.workload,
                f"held by run {holder} until its maintenance is over",
                f"pitstop resume {holder}",
            )
        print(f"pitstop: waits: held by run {holder}", file=sys.stderr, flush=True)
        _wait_for_signal(signals, HOLD_INTERVAL)


def _wait_for_signal(signals: Signals, seconds: float) -> None:
    awaited = select.poll()
    awaited.register(signals, select.POLLIN)
    awaited.poll(seconds * 1000)
    for number in signals.take():
        if number in signals.ENDING:
            _end_by(number)


def _ended(files: WorkloadState) -> None:
    if files.record().phase is not Phase.ENDED:
        files.update(phase=Phase.ENDED)


def _report(request: Request, message: dict[str, object]) -> None:
    if request.report is not None:
        request.report.say(message)


def _settle(files: WorkloadState, state: StateDir) -> None:
    """Holding the lock proves that no copy lives: say so of starts that ended unseen."""
    from pitstop.node.settle import settle_checkpoints

    settle_checkpoints(files, state)


class _Launcher:
    def __init__(
        self, request: Request, state: StateDir, files: WorkloadState, signals: Signals
    ) -> None:
        self.request = request
        self.state = state
        self.files = files
        self.signals = signals
        self.init_pid = 0
        self.messages: FileIO
        self.unread = b""
        self.running = False
        self.begun = running_seconds() if request.begun is None else request.begun

    def run(self) -> int:
        cause = ""
        if self.request.start != "cold":
            cause = self._try_restore()
        if not self.running:
            self._start_cold(cause)
        return self._wait()

    def _try_restore(self) -> str:
        """Restore if there is something to restore; return why not."""
        from pitstop.node.restorer import Restorer

        restorer = Restorer(self.state, self.files, self.request)
        try:
            if not restorer.found:
                if self.request.start == "restore":
                    raise RestoreFailed(self.request.workload, "there is no checkpoint to restore")
                return ""
            restorer.prepare()
            restorer.cut_logs()
            self._start("restored", restorer.checkpoint.id, restorer.restore, "")
        except PitstopError as error:
            if self.request.start == "restore":
                raise
            print(f"pitstop: no restore, cold start: {error}", file=sys.stderr, flush=True)
            return str(error)
        return ""

    def _start_cold(self, cause: str) -> None:
        if not self.request.command:
            raise PermanentError(self.request.workload, "no command to start it cold with")
        stdout, stderr = self.files.log_paths()
        program = nsinit.Program(
            command=self.request.command,
            cwd=self.request.cwd,
            env=self.request.env,
            stdout=stdout,
            stderr=stderr,
            deny_io_uring=self.request.deny_io_uring,
            owner=self.request.owner,
        )
        self._start("cold", None, lambda: nsinit.start_cold(program), cause)

    def _start(
        self, how: str, checkpoint: str | None, start: Callable[[], int], cause: str
    ) -> None:
        before = self.files.record()
        record = Record(
            workload=self.request.workload,
            generation=before.generation if how == "restored" else before.generation + 1,
            phase=Phase.STARTING,
            how=how,
            checkpoint=checkpoint,
            run=self.request.run,
            cause=cause,
            boot_id=boot_id(),
            started=now(),
            started_running=self.begun,
            launcher_pid=os.getpid(),
            cold_start_seconds=before.cold_start_seconds,
            job=self.request.job,
            owner=self.request.uid,
        )
        # A cold start makes every earlier checkpoint stale, so that is on disk before it
        # happens. A restore does the same at CRIU's last question (Restorer.consume).
        self.files.write(record)
        self._spawn(start)
        message = self._next_message()
        if message is None or "failed" in message:
            os.waitpid(self.init_pid, 0)
            raise self._failure(how, message)
        self.running = True
        self.files.update(
            phase=Phase.RUNNING,
            init_pid=self.init_pid,
            root_pid=int(message["running"]),
            start_seconds=round(running_seconds() - self.begun, 6),
        )
        _report(self.request, {"running": True, "how": how, "cause": cause})

    def _failure(self, how: str, message: dict[str, Any] | None) -> PitstopError:
        if message is not None and message.get("error"):
            return PitstopError.from_json(message["error"])
        cause = str(message["failed"]) if message else "pid 1 of its namespace was killed"
        kind = RestoreFailed if how == "restored" else PermanentError
        return kind(self.request.workload, f"could not be started: {cause}")

    def _spawn(self, start: Callable[[], int]) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        sys.stdout.flush()
        sys.stderr.flush()
        self.init_pid = kernel.fork_into_new_namespaces()
        if self.init_pid == 0:
            os.close(reader)
            self.signals.leave()
            if self.request.report is not None:
                self.request.report.close()
            nsinit.serve(writer, start)
        os.close(writer)
        self.messages, self.unread = FileIO(reader), b""

    def _next_message(self) -> dict[str, Any] | None:
        """Wait for pid 1's next message, handing signals on; None when it died."""
        while b"\n" not in self.unread:
            # What comes while there is no workload yet waits until there is one.
            awaited = select.poll()
            awaited.register(self.messages, select.POLLIN)
            if self.running:
                awaited.register(self.signals, select.POLLIN)
            ready = [descriptor for descriptor, _ in awaited.poll()]
            if self.signals.fileno() in ready:
                self._forward()
            if self.messages.fileno() in ready:
                received = self.messages.read(65536)
                if not received:
                    return None
                self.unread += received
        line, _, self.unread = self.unread.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def _forward(self) -> None:
        for number in self.signals.take():
            # It is not reaped before its last message was read, so it is no other process.
            os.kill(self.init_pid, number)

    def _wait(self) -> int:
        message = self._next_message()
        os.waitpid(self.init_pid, 0)
        ending = {k: int(v) for k, v in message.items()} if message else {"signal": 9}
        self.files.update(phase=Phase.ENDED, ended=ending)
        if ending.get("signal") == signal.SIGKILL and self._was_checkpointed():
            return CHECKPOINTED
        if "signal" in ending:
            _end_by(ending["signal"])
        return ending.get("exit", 1)

    def _was_checkpointed(self) -> bool:
        from pitstop.node.settle import settle_checkpoints

        return settle_checkpoints(self.files, self.state)


def _end_by(number: int) -> None:
    """End by the signal that ended the workload, so that a parent sees the same."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def read_env_file(path: Path) -> dict[str, str]:
    """Read NAME=value lines; blank lines and those that begin with # are left out.

    Raises:
        PermanentError: it cannot be read, or a line is not of that form (named by number
            only: the file may hold secrets).
    """
    result: dict[str, str] = {}
    try:
        # Values are bytes to the kernel; those that are no text pass through unchanged.
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        raise PermanentError(str(path), f"cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip().isidentifier():
            raise PermanentError(f"{path}:{number}", "not of the form NAME=value")
        result[name.strip()] = value
    return result


def read_environment(raw: bytes) -> dict[str, str]:
    """Read what `env -0` prints.

    Raises:
        PermanentError: it is something else (named by position only: it may hold secrets).
    """
    result: dict[str, str] = {}
    for position, entry in enumerate(raw.removesuffix(b"\0").split(b"\0") if raw else (), 1):
        name, separator, value = os.fsdecode(entry).partition("=")
        if not separator or not name:
            raise PermanentError(f"stdin, entry {position}", "not of the form NAME=value")
        result[name] = value
    return result
