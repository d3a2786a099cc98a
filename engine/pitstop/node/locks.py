"""Locks that tell who lives.

An open-file-description lock (fcntl(2), F_OFD_SETLK) is held by an open file, not by a
process: children that inherit the descriptor keep it, it ends with the last of them, it
does not survive a reboot, and it can be tested without taking it. So "the lock is held" is
the one proof of life here; PIDs, which are reused, are only hints.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from pitstop.model.errors import Busy, DeadlineExceeded

# struct flock on 64-bit Linux: type, whence, start, length, pid (which must be 0 for OFD).
_FLOCK = "hhqqi0q"


ALARM_INTERVAL = 0.05
"""Seconds between the alarms of a deadline that has passed."""


def _request(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


class Lock:
    """One lock file. The descriptor is close-on-exec, so programs started later lack it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK))
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        self.descriptor = descriptor
        return True

    def acquire(self, deadline: float) -> None:
        """Take the lock, waiting up to `deadline` seconds.

        Only from the main thread: the wait is ended by a timer signal.

        Raises:
            DeadlineExceeded: the holder did not end in time.
        """
        if self.try_acquire():
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _timer(deadline, str(self.path)):
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _request(fcntl.F_WRLCK))
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptor = descriptor

    def release(self) -> None:
        """Give the lock back (as far as this process is concerned)."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def is_held(path: Path) -> bool:
    """Tell whether some living process holds the lock, without taking it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK))
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def wait_until_free(path: Path, deadline: float) -> None:
    """Wait until nobody living holds the lock.

    Raises:
        DeadlineExceeded: it is still held after `deadline` seconds.
    """
    lock = Lock(path)
    lock.acquire(deadline)
    lock.release()


@contextlib.contextmanager
def held(path: Path, subject: str, what: str) -> Iterator[Lock]:
    """Hold a lock for the time of a block.

    Raises:
        Busy: somebody living holds it.
    """
    lock = Lock(path)
    if not lock.try_acquire():
        raise Busy(subject, f"{what} is under way", "wait for it, or cancel it")
    try:
        yield lock
    finally:
        lock.release()


@contextlib.contextmanager
def _timer(deadline: float, subject: str) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a wait with a deadline needs the main thread")

    def expired(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise DeadlineExceeded(subject, f"still held after {deadline:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    # Again and again: an alarm that comes after the interpreter last looked and before the
    # system call begins interrupts nothing.
    signal.setitimer(signal.ITIMER_REAL, max(deadline, 0.001), ALARM_INTERVAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
