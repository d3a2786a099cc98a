"""Signals as bytes in a pipe, so that a process can wait for them and for something else.

An interpreter calls its handlers between instructions. A signal that comes after it last
looked and before a system call begins interrupts nothing, and waits as long as the call
does. What is written to a pipe by the signal's own handler is there to be selected.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType


class Signals:
    """Signals of this process from now on; one such object a process."""

    ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
    """What asks a process to end."""

    def __init__(self, numbers: Iterable[int]) -> None:
        """Take these, but for what is ignored already (nohup, a script's background)."""
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # With the pipe full, thousands are waiting: one more of the same says nothing new.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._taken = {n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
        for number in self._taken:
            signal.signal(number, _noted)

    def fileno(self) -> int:
        """The descriptor that is readable while signals wait."""
        return self._reader

    def take(self) -> list[int]:
        """Return those that came since the last call, in their order."""
        try:
            return [number for number in os.read(self._reader, 65536) if number in self._taken]
        except BlockingIOError:
            return []

    def leave(self) -> None:
        """In a forked child: what comes there is not the parent's."""
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Nothing to do: its byte is in the pipe."""
