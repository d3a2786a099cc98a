"""What would make a dump fail, found before anything is frozen.

`reader` reads the facts once, and each rule judges them. What CRIU can save is no blocker: the
rules follow what CRIU 4.2.1 was seen to dump and to restore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from pitstop.node.blockers import devices, files, links, mounts, needs, reader, tasks
from pitstop.node.blockers.blocker import Blocker, Kind
from pitstop.node.blockers.facts import Tree
from pitstop.node.blockers.needs import ROOM_FACTOR
from pitstop.node.processes import Identity

__all__ = ["KINDS", "ROOM_FACTOR", "RULES", "Blocker", "judge", "scan"]

RULES: tuple[Callable[[Tree], Iterator[Blocker]], ...] = (
    files.kernel_objects,
    devices.gpu_and_network_devices,
    devices.terminals,
    devices.other_devices,
    links.unsupported_sockets,
    links.unix_sockets_to_outside,
    links.pipes_to_outside,
    links.files_others_append_to,
    files.foreign_pidfds,
    files.large_ghosts,
    files.sysv_memory,
    mounts.unreachable_files,
    mounts.own_mounts,
    tasks.session,
    tasks.strays,
    tasks.traced,
    tasks.shared_memory,
    tasks.namespaces,
    needs.disk,
    needs.memory,
)

KINDS: tuple[Kind, ...] = (
    *(files.KINDS + devices.KINDS + links.KINDS),
    *(mounts.KINDS + tasks.KINDS + needs.KINDS),
)
"""All kinds of findings, as docs/blockers.md lists them."""


def scan(
    tree: Sequence[Identity], images: Path, cuda: Collection[int] = (), gpu_bytes: int = 0
) -> list[Blocker]:
    """Look at every process of a tree, and at the room for its images.

    Args:
        tree: the processes, root first.
        images: the directory that the images go to.
        cuda: PIDs of CUDA processes: their GPU devices are closed by the CUDA checkpoint.
        gpu_bytes: on the GPUs, of all of these.
    """
    return judge(reader.read(tree, images, cuda, gpu_bytes))


def judge(tree: Tree) -> list[Blocker]:
    """Return what the facts of a tree have against a dump."""
    return [blocker for rule in RULES for blocker in rule(tree)]
