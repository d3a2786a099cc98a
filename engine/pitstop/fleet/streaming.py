"""From a command on one machine to a command on another, through this one, as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pitstop.fleet.transport import Completed, Stream
from pitstop.model.errors import DeadlineExceeded

TELL_EVERY = 5.0
"""Seconds between two words on how far it is."""


@dataclass(frozen=True, slots=True)
class Carried:
    """Two commands, one of which has read what the other wrote.

    Attributes:
        source: None when it was not heard to its end, as nobody read any more.
        passed: bytes.
    """

    source: Completed | None
    target: Completed
    passed: int


def carry(
    source: Stream,
    target: Stream,
    seconds: float,
    subject: str,
    progress: Callable[[int], None] = lambda _passed: None,
) -> Carried:
    """Pass on what one command writes to what another reads, until both have ended.

    Args:
        source: whose stdout is read.
        target: whose stdin it goes to.
        seconds: until both must have ended.
        subject: what it is about, for errors.
        progress: told now and then how many bytes have passed.

    Returns:
        How each ended; whether that was well is for the caller to read from it.

    Raises:
        DeadlineExceeded: they had not ended in time; the connections to both are closed.
        ConnectionLost: what became of a command is unknown. Neither waits for the rest.
    """
    end = time.monotonic() + seconds

    def abandon() -> None:
        source.abandon()
        target.abandon()

    # Whatever is waited for below ends with the connections.
    watchdog = threading.Timer(seconds, abandon)
    watchdog.daemon = True
    watchdog.start()
    try:
        return _carry(source, target, progress)
    except BaseException as error:
        abandon()
        if time.monotonic() >= end and isinstance(error, Exception):
            raise DeadlineExceeded(subject, f"not through after {seconds:g} s") from error
        raise
    finally:
        watchdog.cancel()
        source.close()
        target.close()


def _carry(source: Stream, target: Stream, progress: Callable[[int], None]) -> Carried:
    passed, told, reads = 0, time.monotonic(), True
    while reads and (part := source.read()):
        reads = target.write(part)
        passed += len(part) if reads else 0
        if time.monotonic() - told >= TELL_EVERY:
            told = time.monotonic()
            progress(passed)
    target.end_input()
    if not reads:
        # Nobody wants the rest, which may be much; why, the target says.
        source.abandon()
        return Carried(None, target.finish(), passed)
    return Carried(source.finish(), target.finish(), passed)
