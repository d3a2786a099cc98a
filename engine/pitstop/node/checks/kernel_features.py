"""What the running kernel can do for a checkpoint."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Collection
from pathlib import Path

from pitstop.node.checks.check import Check, CheckState

_SYS_KCMP = {"x86_64": 312, "aarch64": 272}
_SYS_IO_URING_SETUP = 425
_KCMP_FILE = 0


def features() -> list[Check]:
    """Look at all of it."""
    return [
        judge_checkpoint_restore(Path("/proc/sys/kernel/ns_last_pid").exists(), kcmp_errno()),
        judge_namespaces(os.listdir("/proc/self/ns")),
        judge_memory_tracking(has_soft_dirty(Path("/proc/self/smaps").read_text())),
        judge_io_uring(_io_uring_disabled(), io_uring_errno()),
    ]


def kcmp_errno() -> int | None:
    """Ask the kernel whether a file of this process is itself; 0 when it can answer.

    None where the call's number is not known here.
    """
    number = _SYS_KCMP.get(os.uname().machine)
    if number is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pid = os.getpid()
        result = libc.syscall(number, pid, pid, _KCMP_FILE, descriptor, descriptor)
        return 0 if result == 0 else ctypes.get_errno()
    finally:
        os.close(descriptor)


def io_uring_errno() -> int:
    """Ask for an io_uring with arguments that make none, and return the refusal.

    EINVAL or EFAULT: a program may have one. EPERM: forbidden. ENOSYS: not in this kernel,
    or kept away by seccomp.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(_SYS_IO_URING_SETUP, 0, None)
    return 0 if result >= 0 else ctypes.get_errno()


def has_soft_dirty(smaps: str) -> bool:
    """Tell whether the kernel marks memory written to: `sd` among the flags of a mapping."""
    return any(
        "sd" in line.split()[1:] for line in smaps.splitlines() if line.startswith("VmFlags:")
    )


def judge_checkpoint_restore(ns_last_pid: bool, kcmp: int | None) -> Check:
    """CONFIG_CHECKPOINT_RESTORE brings ns_last_pid, and kcmp on most kernels."""
    what = "CONFIG_CHECKPOINT_RESTORE"
    missing = []
    if not ns_last_pid:
        missing.append("/proc/sys/kernel/ns_last_pid")
    if kcmp == errno.ENOSYS:
        missing.append("kcmp(2)")
    if missing:
        return Check(
            "kernel-checkpoint-restore",
            CheckState.FAILED,
            what,
            f"not there: {', '.join(missing)}",
            "CRIU can neither read a process completely nor give it its PID back",
            "boot a kernel built with CONFIG_CHECKPOINT_RESTORE=y and CONFIG_KCMP=y",
        )
    if kcmp:
        return Check(
            "kernel-checkpoint-restore",
            CheckState.FAILED,
            what,
            f"kcmp(2) is refused: {os.strerror(kcmp)}",
            "CRIU compares the files of processes by it; a seccomp profile forbids it here",
            "run the engine outside that container, or allow kcmp in its seccomp profile",
        )
    asked = "kcmp(2) answers" if kcmp == 0 else "kcmp(2) was not tried on this architecture"
    return Check("kernel-checkpoint-restore", CheckState.OK, what, f"ns_last_pid is there, {asked}")


def judge_namespaces(kinds: Collection[str]) -> Check:
    """The launcher needs PID and mount namespaces."""
    missing = [kind for kind in ("pid", "mnt") if kind not in kinds]
    if missing:
        return Check(
            "kernel-namespaces",
            CheckState.FAILED,
            "namespaces",
            f"not there: {', '.join(missing)}",
            "without a PID namespace of its own a workload cannot get its PIDs back",
            "boot a kernel built with CONFIG_PID_NS=y and CONFIG_NAMESPACES=y",
        )
    return Check("kernel-namespaces", CheckState.OK, "namespaces", ", ".join(sorted(kinds)))


def judge_memory_tracking(soft_dirty: bool) -> Check:
    """Soft-dirty marks are what a dump in several passes would need."""
    if soft_dirty:
        return Check("memory-tracking", CheckState.OK, "memory tracking", "soft-dirty marks")
    return Check(
        "memory-tracking",
        CheckState.WARNING,
        "memory tracking",
        "no soft-dirty marks",
        "no pre-dump: a workload is frozen while all of its memory is written, in one pass",
        "nothing is needed for that; a pre-dump needs a kernel with CONFIG_MEM_SOFT_DIRTY=y",
    )


def judge_io_uring(disabled: int | None, refusal: int) -> Check:
    """A program that opened an io_uring cannot be dumped."""
    what = "io_uring"
    if disabled == 2:
        return Check("io-uring", CheckState.OK, what, "forbidden (kernel.io_uring_disabled=2)")
    if refusal in (errno.ENOSYS, errno.EPERM):
        return Check("io-uring", CheckState.OK, what, f"not available ({os.strerror(refusal)})")
    found = {
        None: "allowed to every program; this kernel has no switch for it",
        0: "allowed to every program (kernel.io_uring_disabled=0)",
        1: "allowed to root (kernel.io_uring_disabled=1)",
    }.get(disabled, f"kernel.io_uring_disabled={disabled}")
    one = "`io_uring: deny` in the workload's launch"
    every = "sysctl -w kernel.io_uring_disabled=2 (for all programs; it outlives no reboot)"
    return Check(
        "io-uring",
        CheckState.WARNING,
        what,
        found,
        "CRIU cannot dump a process that has one open (criu#2131); libuv and uvloop do",
        one if disabled is None else f"{one}, or {every}",
    )


def _io_uring_disabled() -> int | None:
    path = Path("/proc/sys/kernel/io_uring_disabled")
    return int(path.read_text()) if path.exists() else None
