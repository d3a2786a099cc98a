"""The few Linux calls that the standard library of Python 3.11 does not have."""

from __future__ import annotations

import ctypes
import os
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

RB_AUTOBOOT = 0x01234567
RB_POWER_OFF = 0x4321FEDC

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def setns(path: str, kind: int) -> None:
    """Enter the namespace that the path names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(descriptor, kind), path)
    finally:
        os.close(descriptor)


def unshare(kinds: int) -> None:
    """Make new namespaces; a pid namespace starts with the next child."""
    _check(_libc.unshare(kinds), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """Mount, or change a mount's propagation."""
    _check(
        _libc.mount(
            source.encode(),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        target,
    )


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def reboot(how: int) -> None:
    """Restart or switch off: in a pid namespace it ends that namespace, not the machine."""
    _check(_libc.reboot(how), "reboot")
