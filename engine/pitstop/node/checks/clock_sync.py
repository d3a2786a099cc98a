"""Whether the kernel's clock is disciplined: audit times and log order rest on it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from pitstop.node.checks.check import Check, CheckState

STA_UNSYNC = 0x0040
TIME_ERROR = 5
SKEW_LIMIT = 1_000_000
"""Microseconds of possible error above which times of two machines are hard to put in order."""


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2) on 64-bit Linux, up to `status`, then room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


@dataclass(frozen=True, slots=True)
class ClockState:
    """What the kernel says of its clock. Errors in microseconds."""

    result: int
    status: int
    maxerror: int


def clock_sync() -> Check:
    """Ask the kernel; `modes` 0 changes nothing and needs no privilege."""
    return judge_clock(read_clock())


def read_clock() -> ClockState:
    """Read the clock's state.

    Raises:
        OSError: the call is refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    timex = _Timex()
    result = libc.adjtimex(ctypes.byref(timex))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "adjtimex is refused")
    return ClockState(result, timex.status, timex.maxerror)


def judge_clock(found: ClockState) -> Check:
    """Say whether times written here can be compared with those of other machines."""
    what = "clock"
    fix = "apt-get install chrony && systemctl enable --now chrony"
    error = f"possible error {found.maxerror / 1000:g} ms"
    if found.status & STA_UNSYNC or found.result == TIME_ERROR:
        why = "times in journal and report may be off against those of other machines"
        return Check("clock", CheckState.WARNING, what, f"not synchronised, {error}", why, fix)
    if found.maxerror > SKEW_LIMIT:
        why = "events of two machines within that time cannot be put in order"
        return Check(
            "clock", CheckState.WARNING, what, f"synchronised, {error}", why, "chronyc sources"
        )
    return Check("clock", CheckState.OK, what, f"synchronised, {error}")
