"""Where images go: room, kind of file system, modes; and /dev/shm."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

from pitstop.node.blockers import ROOM_FACTOR
from pitstop.node.checks.check import Check, CheckState

HARD_MINIMUM = 256 << 20
"""Bytes below which not even a small process fits beside its logs."""

_VOLATILE = ("tmpfs", "ramfs", "devtmpfs")


def storage(root: Path) -> list[Check]:
    """Look at the state directory, or at the directory it would be made in."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    kind, mounted, options = mount_of(
        os.path.realpath(existing), Path("/proc/self/mountinfo").read_text()
    )
    return [
        judge_room(str(root), shutil.disk_usage(existing).free, _memory_in_use()),
        judge_file_system(str(root), kind, mounted, "ro" in options),
        judge_mode(str(root), root.stat().st_mode if root.exists() else None),
        judge_shared_memory(_is_mount("/dev/shm"), os.access("/dev/shm", os.W_OK)),  # noqa: S108
    ]


def mount_of(path: str, mountinfo: str) -> tuple[str, str, frozenset[str]]:
    """Return type, mount point and options of the file system a path lies on.

    Raises:
        ValueError: no mount is above it.
    """
    best: tuple[str, str, frozenset[str]] | None = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        fields, (kind, _source, super_options) = left.split(), right.split(" ", 2)
        point = _unescape(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of several mounts on one point the last hides those before.
        if inside and (best is None or len(point) >= len(best[1])):
            best = kind, point, frozenset([*fields[5].split(","), *super_options.split(",")])
    if best is None:
        raise ValueError(f"no mount holds {path}")
    return best


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def judge_room(root: str, free: int, in_use: int) -> Check:
    """Compare the free room with the memory that is in use on the whole machine."""
    what, found = f"room in {root}", f"{_size(free)} free, {_size(in_use)} of memory in use"
    fix = "pitstop images list shows what can go; or `state_dir:` of the node on a larger disk"
    if free < HARD_MINIMUM:
        why = "not even a small process can be saved"
        return Check("room", CheckState.FAILED, what, found, why, fix)
    if free < in_use * ROOM_FACTOR:
        why = (
            "a workload that holds most of that memory would not fit; "
            "a dump that lacks room is refused before anything is frozen"
        )
        return Check("room", CheckState.WARNING, what, found, why, fix)
    return Check("room", CheckState.OK, what, found)


def judge_file_system(root: str, kind: str, mounted: str, read_only: bool) -> Check:
    """Say whether what is written there stays."""
    what, found = f"file system of {root}", f"{kind} mounted on {mounted}"
    fix = "`state_dir:` of the node (or PITSTOP_STATE_DIR) on a local disk"
    if read_only:
        return Check(
            "file-system",
            CheckState.FAILED,
            what,
            f"{found}, read-only",
            "nothing can be saved",
            fix,
        )
    if kind in _VOLATILE:
        why = "images there do not survive a reboot; a maintenance with one loses them"
        return Check("file-system", CheckState.WARNING, what, found, why, fix)
    if kind == "overlay":
        why = "this looks like a container's own layer: images are gone with the container"
        return Check("file-system", CheckState.WARNING, what, found, why, fix)
    return Check("file-system", CheckState.OK, what, found)


def judge_mode(root: str, mode: int | None) -> Check:
    """Memory images lie below: nobody but root may look, or plant a directory."""
    what = f"mode of {root}"
    if mode is None:
        why = "it is made with mode 0700 when it is first needed"
        return Check("state-dir", CheckState.ABSENT, what, "not there yet", why)
    bits = stat.S_IMODE(mode)
    fix = f"chmod 0700 {root}"
    if bits & 0o022:
        why = "others can put files there that the engine trusts"
        return Check("state-dir", CheckState.FAILED, what, f"{bits:04o}", why, fix)
    if bits & 0o055:
        why = "others can see which workloads run here; images themselves lie below 0700"
        return Check("state-dir", CheckState.WARNING, what, f"{bits:04o}", why, fix)
    return Check("state-dir", CheckState.OK, what, f"{bits:04o}")


def judge_shared_memory(mounted: bool, writable: bool) -> Check:
    """POSIX semaphores and shared memory of workloads live there, and come back there."""
    if mounted and writable:
        return Check("shared-memory", CheckState.OK, "/dev/shm", "mounted, writable")  # noqa: S108
    return Check(
        "shared-memory",
        CheckState.WARNING,
        "/dev/shm",  # noqa: S108
        "not writable" if mounted else "not a mount of its own",
        "workloads with POSIX semaphores or shared memory (Python's multiprocessing, PyTorch "
        "loaders) come back there",
        "mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm",
    )


def _is_mount(path: str) -> bool:
    return os.path.ismount(path)


def _memory_in_use() -> int:
    values = {
        name: int(rest.split()[0]) << 10
        for name, _, rest in (
            line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines()
        )
        if name in ("MemTotal", "MemAvailable")
    }
    return values["MemTotal"] - values["MemAvailable"]


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
