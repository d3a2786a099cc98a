"""The engine's side of the vote that CRIU's action script asks for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pitstop.images.checkpoint import Checkpoint
from pitstop.images.durable import write_atomic
from pitstop.model.errors import PermanentError
from pitstop.node import hook, processes
from pitstop.node.paths import StateDir
from pitstop.node.processes import Identity

END_DEADLINE = 60.0
"""Seconds for a killed CRIU to be gone."""

REAP_DEADLINE = 5.0
"""Seconds for an nsenter to notice that CRIU has ended."""


def hook_program(state: StateDir) -> Path:
    """Write the executable that CRIU calls, and return its path.

    It starts the interpreter with -I -S: no site-packages, nothing from the environment.
    """
    program = state.operations().parent / "criu-hook"
    text = f"#!{sys.executable} -IS\n{Path(hook.__file__).read_text()}"
    if not program.exists() or program.read_text() != text:
        write_atomic(program, text.encode(), mode=0o700)
    return program


class Ballot:
    """Runs CRIU and answers its action script once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = checkpoint.path / "vote.sock"
        self._path.unlink(missing_ok=True)
        # The path of a socket may be 108 bytes long at most; a path through an open
        # directory is short wherever the directory lies.
        directory = os.open(checkpoint.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.bind(f"/proc/self/fd/{directory}/vote.sock")
        finally:
            os.close(directory)
        self._socket.listen(1)

    def run(
        self,
        argv: list[str],
        stage: str,
        decide: Callable[[], bool],
        deadline: float,
        keep: Sequence[int] = (),
    ) -> int:
        """Run CRIU to its end and return its exit status.

        `decide` is called when the script asks at `stage`; an exception in it means no and
        is raised again after CRIU has ended. When CRIU takes longer than `deadline` seconds
        it is ended, which lets a frozen workload run on. `keep` are descriptors it inherits.

        Raises:
            TimeoutError: CRIU was ended.
        """
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=tuple(keep),
            process_group=0,  # its own, so that all of it can be found
        ) as process:
            try:
                failure = self._serve(process, stage, decide, deadline)
                if not _wait_end(process, deadline):
                    raise TimeoutError(f"CRIU had not ended {deadline:g} s after its answer")
            finally:
                _end(process)
        if failure is not None:
            raise failure
        return process.returncode

    def _serve(
        self,
        process: subprocess.Popen[bytes],
        stage: str,
        decide: Callable[[], bool],
        deadline: float,
    ) -> BaseException | None:
        ended = os.pidfd_open(process.pid)
        try:
            ready, _, _ = select.select([self._socket.fileno(), ended], [], [], deadline)
            if not ready:
                raise TimeoutError(f"CRIU had not asked after {deadline:g} s")
            if self._socket.fileno() not in ready:
                return None
            connection, _ = self._socket.accept()
            with connection:
                asked = connection.recv(64).decode(errors="replace").strip()
                try:
                    agreed = asked == stage and decide()
                except BaseException as error:  # noqa: BLE001  # told to CRIU, then raised
                    _tell(connection, b"abort\n")
                    return error
                _tell(connection, hook.COMMIT if agreed else b"abort\n")
        finally:
            os.close(ended)
        return None

    def close(self) -> None:
        """Remove the socket. Its directory may have got its final name meanwhile."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


def _tell(connection: socket.socket, answer: bytes) -> None:
    """Answer the script. When it is dead, so is CRIU or soon: its end says what became of it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(answer)


def _wait_end(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for the end of a process without reaping it: its PID stays taken."""
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], deadline)[0])
    finally:
        os.close(descriptor)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End CRIU, if it has not ended, and see that it has let go of what it had frozen.

    What was started may be an nsenter that is just about to start CRIU, so it is stopped
    first. It goes on once CRIU is killed, to reap it: a dead CRIU that nobody reaps would
    keep the namespace it ran in from ending.
    """
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if _kill([member for member in processes.group(process.pid) if member.pid != process.pid]):
        os.kill(process.pid, signal.SIGCONT)
        _wait_end(process, REAP_DEADLINE)
    _kill(processes.group(process.pid))
    process.wait()


def _kill(members: Sequence[Identity]) -> bool:
    for member in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)
    if processes.wait_gone(list(members), END_DEADLINE):
        raise PermanentError("criu", "it was killed and still runs")
    return bool(members)
