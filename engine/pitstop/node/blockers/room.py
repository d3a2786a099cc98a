"""How much a dump needs, and how much room there is: on the disk and in memory."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pitstop.node.blockers.facts import Process, Room


def read(found: Sequence[Process], images: Path, cuda: Collection[int]) -> Room:
    """Look at the room for a tree."""
    growing = [process.pid for process in found if process.pid in cuda] or [found[0].pid]
    limits = [limit for pid in growing if (limit := _limit_of(pid)) is not None]
    return Room(
        images=str(images),
        disk=shutil.disk_usage(images).free,
        memory=available(),
        limit=min(limits, default=None),
    )


def available() -> int | None:
    """Return the bytes of memory that this machine can give away; None where it does not say."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _limit_of(pid: int) -> int | None:
    """Return how much more memory the cgroups of a process let it take; None without a limit."""
    try:
        own = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    left = [
        found
        for directory, top, unified in cgroups(own, mounts)
        for level in (directory, *directory.parents)
        if level == top or top in level.parents
        if (found := _left(level, unified)) is not None
    ]
    return min(left, default=None)


def cgroups(own: str, mountinfo: str) -> Iterator[tuple[Path, Path, bool]]:
    """Yield where the memory of a process is accounted: its directory, the mount, version 2.

    Args:
        own: /proc/PID/cgroup of it.
        mountinfo: where the hierarchies are mounted.
    """
    places = {}
    for line in own.splitlines():
        _number, controllers, place = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            places[controllers == ""] = place
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, options = right.split(" ")[0], right.rpartition(" ")[2].split(",")
        unified = kind == "cgroup2"
        if not unified and not (kind == "cgroup" and "memory" in options):
            continue
        root, point = left.split(" ")[3:5]
        if unified not in places:
            continue
        place = places[unified]
        # In a container the mount's root is the container's own place.
        inside = place[len(root) :] if root != "/" and place.startswith(root) else place
        yield Path(point) / inside.lstrip("/"), Path(point), unified


def _left(level: Path, unified: bool) -> int | None:
    names = (
        ("memory.max", "memory.current", "inactive_file")
        if unified
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    try:
        limit = (level / names[0]).read_text().strip()
        used = int((level / names[1]).read_text())
        fields = dict(line.split() for line in (level / "memory.stat").read_text().splitlines())
    except OSError:
        return None  # no limit at this level, or none that can be seen
    # Version 1 writes "no limit" as a number near 2^63.
    if limit == "max" or int(limit) >= 1 << 60:
        return None
    # Of files in the cache the kernel lets go when it has to.
    return max(0, int(limit) - used + int(fields.get(names[2], "0")))
