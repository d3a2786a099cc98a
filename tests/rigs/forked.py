"""Children of the test's process that run our own code: what `Popen` is for programs.

An interpreter with our libraries takes longer to start than most of what these tests do
with it. What is special about a program's start is tested with the program.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self


class Forked:
    """One such child.

    Attributes:
        returncode: the exit status it ended with, -n for signal n; None until it was waited for.
    """

    def __init__(
        self,
        run: Callable[[], int],
        keep: Sequence[int] = (),
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        """Start it; it keeps these descriptors, and writes to these if they are given."""
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 70
            try:
                _become_a_program(keep, stdout, stderr)
                status = run()
            except BaseException:  # noqa: BLE001  # shown, and the child ends
                traceback.print_exc(file=sys.stderr)
            finally:
                with suppress(BrokenPipeError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)

    def wait(self, seconds: float = 30) -> int:
        """The exit status it ended with; -n for signal n."""
        if self.returncode is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                if not select.select([descriptor], [], [], seconds)[0]:
                    raise subprocess.TimeoutExpired("the child", seconds)
            finally:
                os.close(descriptor)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()


def _become_a_program(keep: Sequence[int], stdout: int | None, stderr: int | None) -> None:
    """Have nothing of the test's process that a program would not have."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null if stdout is None else stdout, 1)
    if stderr is not None:
        os.dup2(stderr, 2)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in keep:
            with suppress(OSError):
                os.close(int(entry))
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # it ends with the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
