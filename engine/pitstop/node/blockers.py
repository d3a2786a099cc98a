"""What would make a dump fail, found before anything is frozen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pitstop.node import processes
from pitstop.node.processes import Identity

ROOM_FACTOR = 1.1


@dataclass(frozen=True, slots=True)
class Blocker:
    """One finding: what, where, why it blocks, and what to do about it."""

    what: str
    where: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what} at {self.where}: {self.why}; {self.fix}"

    def to_json(self) -> dict[str, str]:
        """Return plain data."""
        return asdict(self)


_DEVICES = (
    ("/dev/infiniband/", "an RDMA device", "UCX_TLS=tcp, NCCL_IB_DISABLE=1, or a cold start"),
    ("/dev/gdrdrv", "a GDRCopy device", "start without GDRCopy, or a cold start"),
    ("/dev/nvidia", "a GPU device", "needs the CUDA part of a checkpoint; cold start until then"),
)


def scan(
    tree: Sequence[Identity], images: Path, cuda: Sequence[int] = (), gpu_bytes: int = 0
) -> list[Blocker]:
    """Look at every process of a tree, and at the room for its images."""
    found = [blocker for process in tree for blocker in _process(process.pid) if not (process.pid in cuda and blocker.what == 'a GPU device')]
    found += _session(tree)
    found += _strays(tree)
    found += _room(tree, images)
    return found


def _process(pid: int) -> Iterator[Blocker]:
    for place, target in _links(pid):
        if "io_uring" in target:
            yield Blocker(
                "io_uring",
                f"pid {pid} {place}",
                "CRIU cannot dump an io_uring (criu#2131)",
                "launch with io_uring: deny, or tell the library to use epoll",
            )
        for prefix, what, fix in _DEVICES:
            if target.startswith(prefix):
                yield Blocker(what, f"pid {pid} {place} -> {target}", "CRIU cannot dump it", fix)
        if target.startswith(("/dev/pts/", "/dev/tty")):
            yield Blocker(
                "a terminal",
                f"pid {pid} {place} -> {target}",
                "the terminal belongs to a session outside the workload",
                "start it through pitstop-node launch, or with its output in files",
            )


def _links(pid: int) -> Iterator[tuple[str, str]]:
    """Yield descriptors and mapped files of a process as (place, target)."""
    for kind in ("fd", "map_files"):
        directory = Path(f"/proc/{pid}/{kind}")
        try:
            entries = os.listdir(directory)
        except (FileNotFoundError, ProcessLookupError):
            return  # the process ended; the caller notices by its identity
        for entry in entries:
            try:
                yield f"{kind} {entry}", os.readlink(directory / entry)
            except OSError:
                continue  # closed while we looked


def _session(tree: Sequence[Identity]) -> Iterator[Blocker]:
    root = tree[0].pid
    session = processes.session_of(root)
    if session != root and session not in {process.pid for process in tree}:
        yield Blocker(
            "a foreign session",
            f"pid {root}",
            f"it belongs to session {session}, whose leader is not part of the workload",
            "start it through pitstop-node launch or setsid",
        )


def _strays(tree: Sequence[Identity]) -> Iterator[Blocker]:
    """Yield processes that a dump of the root's tree would leave out, and so lose."""
    members = {process.pid for process in tree}
    for process in tree[1:]:
        parent = processes.parent_of(process.pid)
        if parent not in members and process.alive():
            yield Blocker(
                "a process that left the tree",
                f"pid {process.pid}",
                f"its parent is pid {parent}, not a process of the workload",
                "end it, or cold-start; a daemon that is its session's leader stays in the tree",
            )


def _room(tree: Sequence[Identity], images: Path) -> Iterator[Blocker]:
    needed = int(sum(_resident(process.pid) for process in tree) * ROOM_FACTOR)
    free = shutil.disk_usage(images).free
    if free < needed:
        yield Blocker(
            "too little room",
            str(images),
            f"the images need up to {needed} bytes, {free} are free",
            "remove old checkpoints (pitstop images list) or use a larger disk",
        )


def _resident(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
