"""Rules about room: for the images, and for the memory of GPUs on its way there."""

from __future__ import annotations

from collections.abc import Iterator

from pitstop.node.blockers.blocker import Blocker, Kind
from pitstop.node.blockers.facts import Tree
from pitstop.node.blockers.files import GHOST_LIMIT, is_ghost

ROOM_FACTOR = 1.1

DISK = Kind(
    "too little room",
    "a dump that fills the disk fails (criu#1258)",
    "remove old checkpoints (pitstop images list) or use a larger disk",
)
MEMORY = Kind(
    "too little memory",
    "at a checkpoint CUDA copies the memory of the GPUs into the memory of their processes "
    "(cuda-checkpoint: README)",
    "more memory for the machine or the job (memory.max of its cgroup), or a cold start",
)
KINDS = (DISK, MEMORY)


def disk(tree: Tree) -> Iterator[Blocker]:
    """The images hold all memory, that of the GPUs and the deleted files."""
    memory = sum(process.resident for process in tree.processes)
    needed = int((memory + tree.gpu_bytes + _ghosts(tree)) * ROOM_FACTOR)
    if tree.room.disk < needed:
        found = f"the images need up to {needed} bytes, {tree.room.disk} are free"
        yield DISK.at(tree.room.images, found)


def _ghosts(tree: Tree) -> int:
    held = {
        descriptor.target: descriptor.held
        for process in tree.processes
        for descriptor in process.descriptors
        if descriptor.held and descriptor.links == 0 and is_ghost(descriptor.target)
    }
    return sum(min(size, GHOST_LIMIT) for size in held.values())


def memory(tree: Tree) -> Iterator[Blocker]:
    """What is on the GPUs has to fit into the machine, and into the limits of the cgroups."""
    for free, where in ((tree.room.memory, "this machine"), (tree.room.limit, "its cgroup")):
        if free is not None and tree.gpu_bytes > free:
            found = f"{tree.gpu_bytes} bytes are on the GPUs, {free} are free"
            yield MEMORY.at(where, found)
