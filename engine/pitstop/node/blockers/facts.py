"""What the scan knows of a tree of processes: read once, judged by the rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

PTMX = (5, 2)
"""Device number of the file that a pseudo terminal's owner holds."""


@dataclass(frozen=True, slots=True)
class Node:
    """A device special file.

    Attributes:
        block: a block device, not a character device.
        number: major and minor.
    """

    block: bool
    number: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An open file of a process.

    Attributes:
        target: as /proc shows it: a path, or such as `socket:[7]` and `anon_inode:[eventfd]`.
        flags: of open(2).
        mount: number of the mount that it was opened on.
        device: the device behind it; None when it is none, or nobody could look.
        pid: of a pidfd, the process as this reader sees it; 0 from elsewhere, -1 ended.
        terminal: of a pseudo terminal's owner, the number of the terminal.
        held: bytes that the file occupies; known only of one that was deleted.
        links: names that the file still has; known only of one that was deleted.
    """

    number: int
    target: str
    flags: int = 0
    mount: int | None = None
    device: Node | None = None
    pid: int | None = None
    terminal: int | None = None
    held: int | None = None
    links: int | None = None

    @property
    def writes(self) -> bool:
        """Whether it was opened for writing."""
        return self.flags & os.O_ACCMODE != os.O_RDONLY


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping of a process that has a name.

    Attributes:
        area: its addresses.
        target: the file's path or the kernel's name for it.
        device: as of a descriptor.
        held: as of a descriptor.
        links: as of a descriptor.
    """

    area: str
    target: str
    device: Node | None = None
    held: int | None = None
    links: int | None = None


@dataclass(frozen=True, slots=True)
class Socket:
    """What a socket is.

    Attributes:
        family: number of the address family.
        kind: SOCK_STREAM and so on.
        protocol: number.
        peer: inode of the other end of a UNIX socket; 0 without one, None when unknown.
    """

    family: int
    kind: int
    protocol: int
    peer: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount as a process sees it."""

    number: int
    device: str
    root: str
    point: str
    kind: str


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the tree.

    Attributes:
        tracer: PID of the process that traces it; 0 for none.
        namespaces: kind to identity, as /proc/PID/ns shows them.
        root: its root directory.
        resident: bytes of memory in use, huge pages included.
        shares_memory: with its parent, as after vfork(2) or clone(2) with CLONE_VM.
    """

    pid: int
    parent: int = 0
    session: int = 0
    tracer: int = 0
    namespaces: Mapping[str, str] = field(default_factory=dict)
    root: str = "/"
    resident: int = 0
    shares_memory: bool = False
    descriptors: tuple[Descriptor, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """A file that a process outside of the tree holds open too."""

    pid: int
    target: str
    flags: int


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are free where they are needed; None where nobody can tell.

    Attributes:
        images: path of the images' directory.
        disk: free there.
        memory: that the machine can give.
        limit: that the cgroups of the tree let it take more, the least of all levels.
    """

    images: str
    disk: int
    memory: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """All facts of one scan.

    Attributes:
        processes: root first.
        outside: what was asked for of processes outside: other ends of pipes, and files that
            are written to by both.
        sockets: by inode; one that is missing could not be looked at.
        below_init: the root is a child of pid 1 of its namespace, as under the launcher.
        own_namespaces: those of the engine, in which CRIU is started.
        own_mounts: of the engine, from which the next start of the workload gets its own.
        cuda: PIDs whose GPU state the CUDA part of a checkpoint takes off the GPU.
        gpu_bytes: memory on GPUs that comes into the host's memory, and then into the images.
    """

    processes: tuple[Process, ...]
    room: Room
    sockets: Mapping[int, Socket] = field(default_factory=dict)
    outside: tuple[Holder, ...] = ()
    below_init: bool = False
    own_namespaces: Mapping[str, str] = field(default_factory=dict)
    own_mounts: tuple[Mount, ...] = ()
    cuda: frozenset[int] = frozenset()
    gpu_bytes: int = 0

    @property
    def root(self) -> Process:
        """The first process."""
        return self.processes[0]

    @property
    def pids(self) -> frozenset[int]:
        """All of them."""
        return frozenset(process.pid for process in self.processes)


def inode_of(target: str, kind: str) -> int | None:
    """Return the inode of a target such as `pipe:[7]`; None if it is not of that kind."""
    if target.startswith(f"{kind}:[") and target.endswith("]"):
        number = target[len(kind) + 2 : -1]
        return int(number) if number.isdigit() else None
    return None
