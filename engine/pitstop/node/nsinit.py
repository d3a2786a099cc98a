"""pid 1 of a workload's namespaces.

It starts the workload, cold or through CRIU, as its own child, hands signals on, reaps, and
tells the launcher how the workload ended. When it ends the kernel ends everything in the
namespace: there is no way for a part of the workload to be left behind.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pitstop.model.errors import PitstopError
from pitstop.node import kernel
from pitstop.node.owner import Owner

FIRST_PID = 1000
"""Workloads get PIDs above this, so that CRIU and its helpers, which run in the same fresh
namespace during a restore, never hold a PID that the image needs."""

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
WATCHED = frozenset({*FORWARDED, signal.SIGCHLD})


@dataclass(frozen=True, slots=True)
class Program:
    """What is started cold."""

    command: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    stdout: Path
    stderr: Path
    deny_io_uring: bool
    owner: Owner | None = None


def serve(report: int, start: Callable[[], int]) -> NoReturn:
    """Be pid 1. `start` brings the workload up and returns the PID of its root.

    Messages to the launcher are JSON lines: `{"running": pid}` or `{"failed": text, "error": …}`,
    then `{"exit": n}` or `{"signal": n}`.
    """
    try:
        kernel.die_with_parent(signal.SIGKILL)
        kernel.follow_mounts_of_parent()
        kernel.mount_proc()
        root = start()
    except BaseException as error:  # noqa: BLE001  # reported, and this process ends
        known = error.to_json() if isinstance(error, PitstopError) else None
        _tell(report, {"failed": f"{type(error).__name__}: {error}", "error": known})
        os._exit(1)
    # Blocked only now: CRIU must not inherit the mask. What came before is asked for below.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _leave_low_pids_free()
    _tell(report, {"running": root})
    os.kill(os.getpid(), signal.SIGCHLD)
    while True:
        number = signal.sigwaitinfo(WATCHED).si_signo
        if number != signal.SIGCHLD:
            os.kill(root, number)
            continue
        status = _reap(root)
        if status is not None:
            _tell(report, _ending(status))
            os._exit(0)


def start_cold(program: Program) -> int:
    """Start the workload's command in a session of its own.

    Raises:
        OSError: it cannot be executed.
    """
    _leave_low_pids_free()
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _become(program)
        except OSError as error:
            failed = [error.errno, error.strerror, error.filename]
            os.write(writer, json.dumps(failed).encode())
        os._exit(127)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        raise OSError(*json.loads(failure))
    return pid


def _become(program: Program) -> None:
    os.setsid()
    # Opened here, inside the namespace: CRIU cannot look up a file that was opened outside.
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    # Append mode: after a restore the output goes on where it ended.
    for descriptor, path in ((1, program.stdout), (2, program.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    # Nothing that the launcher was given leaks into the workload: it would be a file from
    # outside the namespace, which CRIU cannot dump.
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and Path(f"/proc/self/fd/{entry}").is_symlink():
            os.set_inheritable(int(entry), False)
    # An interpreter ignores the last two for itself; the workload must not inherit that.
    for number in (*FORWARDED, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Daemons stay below the root. Below pid 1 they would not belong to the tree that is
    # saved, and would be lost with it.
    kernel.adopt_orphans()
    if program.deny_io_uring:
        kernel.deny_io_uring()
    if program.owner is not None:
        program.owner.become()
    os.chdir(program.cwd)  # as its user: root may enter where that one may not
    try:
        os.execvpe(program.command[0], list(program.command), dict(program.env))
    except OSError as error:
        error.filename = program.command[0]  # and not the last place of PATH that was tried
        raise


def _leave_low_pids_free() -> None:
    """Let the next PID handed out be above FIRST_PID and above all in use."""
    used = max(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(max(FIRST_PID, used)))


def _reap(root: int) -> int | None:
    """Reap all that ended; return the wait status of the root if it is among them."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == root:
            ended = status


def _ending(status: int) -> dict[str, int]:
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"exit": os.WEXITSTATUS(status)}


def _tell(report: int, message: dict[str, Any]) -> None:
    os.write(report, json.dumps(message).encode() + b"\n")
