"""How an operation's runner takes a request to stop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from pitstop.model.errors import Cancelled


class _Request:
    """Whether to stop, and whether it has to wait for the end of a critical part."""

    def __init__(self) -> None:
        self.asked = False
        self.deferred = False


_request = _Request()


def listen(subject: str) -> None:
    """From now on the first SIGTERM raises `Cancelled` in the main thread.

    Only the first: what is cleaned up because of it must not be cut short by another.
    """

    def handler(_number: int, _frame: FrameType | None) -> None:
        first, _request.asked = not _request.asked, True
        if first and not _request.deferred:
            raise Cancelled(subject, "cancelled on request")

    signal.signal(signal.SIGTERM, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """A program started within this block takes no SIGTERM before it listens.

    Else a request that comes while its interpreter starts would end it without a word.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def asked() -> bool:
    """Whether somebody has asked to stop."""
    return _request.asked


def over() -> None:
    """From now on a request comes too late: the work is done, and only has to be recorded."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Within this block a request is only noted: the block asks for it where it is safe."""
    _request.deferred = True
    try:
        yield
    finally:
        _request.deferred = False
