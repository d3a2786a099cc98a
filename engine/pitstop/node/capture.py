"""A short command that answers a question: is it ready, which version is it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

LIMIT = 1 << 20

KILL_GRACE = 5.0
"""Seconds in which a killed command is gone, unless the kernel does not let it go."""


left_behind: list[subprocess.Popen[bytes]] = []
"""Commands that were killed and are not gone: nobody waits for them."""


@dataclass(frozen=True, slots=True)
class Captured:
    """How a command ended; `status` is None when it was ended because it took too long."""

    status: int | None
    out: str
    err: str


def capture(argv: Sequence[str], timeout: float) -> Captured:
    """Run a command and return what it printed.

    Through files: a process that it leaves behind may keep a pipe open for ever, and waiting
    for the end of that pipe is not covered by any timeout of the command.

    A command that even SIGKILL does not end (it sits in a driver's call) is left behind: to wait
    for it would be to hang with it.

    Raises:
        OSError: it cannot be started.
    """
    with TemporaryFile() as out, TemporaryFile() as err:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        status: int | None
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            status = None
        except BaseException:
            _end(process)
            raise
        return Captured(status, _read(out), _read(err))


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is still its own
    try:
        process.wait(KILL_GRACE)
    except subprocess.TimeoutExpired:
        left_behind.append(process)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(LIMIT).decode("utf-8", errors="replace")
