"""Rules about mounts that will not be there, or not the same, when the workload comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pitstop.node.blockers.blocker import Blocker, Kind
from pitstop.node.blockers.facts import Descriptor, Mount, Process, Tree

DETACHED = Kind(
    "a file on no mount",
    "CRIU cannot look up its mount (criu: mount.c): a POSIX message queue, a mount that was "
    "taken away, or one that was never attached",
    "close it before, or a cold start",
)
HIDDEN = Kind(
    "a file below another mount",
    "a later mount hides its path, so CRIU cannot open it again (criu: files-reg.c)",
    "unmount what hides it, or mount before the workload starts",
)
OWN = Kind(
    "a file on a mount of its own",
    "the workload mounted it for itself; the mount namespace that it comes back in lacks it",
    "mount it on the node before the workload starts",
)
KINDS = (DETACHED, HIDDEN, OWN)

_NO_FILES = ("/memfd:", "/SYSV", "/anon_hugepage", "/secretmem", "/dmabuf:", "/dev/zero (")
"""Names that the kernel gives to memory; it lies on mounts of the kernel's own."""


def unreachable_files(tree: Tree) -> Iterator[Blocker]:
    """Open files whose path cannot lead to them again."""
    for process in tree.processes:
        if process.root != "/" or not process.mounts:
            continue  # its paths are not those of its namespace, so nothing can be said
        by_number = {mount.number: mount for mount in process.mounts}
        for descriptor in _with_a_path(process):
            where = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
            if descriptor.mount not in by_number:
                yield DETACHED.at(where)
            elif hides(process.mounts, by_number[descriptor.mount], descriptor.target):
                yield HIDDEN.at(where)


def own_mounts(tree: Tree) -> Iterator[Blocker]:
    """Open files on mounts that only the workload's own namespace has: one finding for each."""
    outside = {(mount.device, mount.root, mount.point) for mount in tree.own_mounts}
    if not outside:
        return
    said = set()
    for process in tree.processes:
        by_number = {mount.number: mount for mount in process.mounts}
        for descriptor in _with_a_path(process):
            mount = by_number.get(-1 if descriptor.mount is None else descriptor.mount)
            # The launcher gives each start a /proc of its own.
            if mount is None or mount.kind == "proc" or mount in said:
                continue
            if (mount.device, mount.root, mount.point) not in outside:
                said.add(mount)
                where = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
                yield OWN.at(where, f"{mount.kind} on {mount.point}")


def hides(mounts: Sequence[Mount], own: Mount, path: str) -> bool:
    """Tell whether a path that was opened on one mount leads to another one by now.

    A deleted name leads nowhere, which is another matter.
    """
    if path.endswith(" (deleted)"):
        return False
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # Of several mounts on one point the last hides those before.
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best is not None and best.number != own.number


def _with_a_path(process: Process) -> Iterator[Descriptor]:
    for descriptor in process.descriptors:
        path = descriptor.target
        named = path.startswith("/") and not path.startswith(_NO_FILES)
        if named and descriptor.mount is not None:
            yield descriptor
