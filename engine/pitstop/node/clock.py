"""The node's clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> str:
    """Return the wall clock as RFC 3339 in UTC, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def running_seconds() -> float:
    """Return seconds since boot, time asleep included: for durations, never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
