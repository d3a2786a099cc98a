"""The few system calls that Python 3.11 does not have."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x4000, 1 << 19
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_SECCOMP_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def fork_into_new_namespaces() -> int:
    """Fork with the child as pid 1 of a new PID namespace and in a new mount namespace.

    The caller stays where it was, so this can be done again. Returns like fork(2).
    """
    own = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("pid", "mnt")]
    try:
        _check(_libc.unshare(CLONE_NEWPID | CLONE_NEWNS), "unshare")
        pid = os.fork()
        if pid != 0:
            for descriptor, kind in zip(own, (CLONE_NEWPID, CLONE_NEWNS), strict=True):
                _check(_libc.setns(descriptor, kind), "setns back")
        return pid
    finally:
        for descriptor in own:
            os.close(descriptor)


def follow_mounts_of_parent() -> None:
    """Let mounts arrive from outside (an image store mounted later), but none leave."""
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount / as slave")


def mount_proc() -> None:
    """Mount /proc of the caller's PID namespace over the one inherited."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_libc.mount(b"proc", b"/proc", b"proc", flags, None), "mount /proc")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every process below that loses its own. Survives execve."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl CHILD_SUBREAPER")


def deny_io_uring() -> None:
    """Make io_uring_setup fail with ENOSYS for this process and all it starts.

    CRIU cannot dump io_uring (criu#2131); libuv and others then fall back to epoll. The call
    number 425 is the same on x86-64 and arm64. The filter needs no_new_privs, so setuid
    programs below lose their bit.
    """

    def instruction(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
        return struct.pack("HBBI", code, jump_true, jump_false, value)

    load_number, jump_equal, give_back = 0x20, 0x15, 0x06
    errno_enosys, allow = 0x00050000 | 38, 0x7FFF0000
    program = b"".join(
        (
            instruction(load_number, 0, 0, 0),
            instruction(jump_equal, 0, 1, 425),
            instruction(give_back, 0, 0, errno_enosys),
            instruction(give_back, 0, 0, allow),
        )
    )
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl NO_NEW_PRIVS")
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, head, 0, 0), "prctl SECCOMP")
