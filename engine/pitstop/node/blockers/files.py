"""Rules about open and mapped files that are no devices and no sockets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pitstop.node.blockers.blocker import Blocker, Kind
from pitstop.node.blockers.facts import Process, Tree
from pitstop.node.blockers.places import places

GHOST_LIMIT = 256 << 20
"""Bytes of a deleted file up to which CRIU takes it into the image (`criu.dump_command`)."""

IO_URING = Kind(
    "io_uring",
    "CRIU cannot dump an io_uring (criu#2131)",
    "launch with io_uring: deny, or tell the library to use epoll (UV_USE_IO_URING=0)",
)
ANONYMOUS = Kind(
    "a kernel object",
    "CRIU has no way to save this kind (criu: files.c, dump_one_file)",
    "start the program without what uses it (profilers, BPF tools, sandboxes), or a cold start",
)
PIDFD = Kind(
    "a pidfd of a process outside",
    "the process that it stands for is not part of the workload (criu: pidfd.c)",
    "close it, or start that process within the workload",
)
SECRET = Kind(
    "secret memory",
    "nobody but its process can read it, CRIU included (memfd_secret(2))",
    "start the program without memfd_secret, or a cold start",
)
DMABUF = Kind(
    "a DMA buffer",
    "it is memory that devices share, which CRIU cannot save (criu#3114)",
    "start it without sharing memory between GPU and other devices, or a cold start",
)
GHOST = Kind(
    "a large deleted file",
    f"CRIU takes deleted files up to {GHOST_LIMIT >> 20} MiB into the image (criu#2683)",
    "keep the file's name for as long as it is in use, or a cold start",
)
SYSV = Kind(
    "System V shared memory",
    "it lies in the IPC namespace of the node, which is not saved (nvcf#891)",
    "UCX_TLS without sysv at its start, or POSIX shared memory; or a cold start",
)
CUDA_IPC = Kind(
    "memory that CUDA processes share",
    "CUDA cannot checkpoint memory shared between processes in this way (cuda-checkpoint#56)",
    "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 at its start, or a cold start",
)
KINDS = (IO_URING, ANONYMOUS, PIDFD, SECRET, DMABUF, GHOST, SYSV, CUDA_IPC)

_SAVED = re.compile(
    r"anon_inode:(\[(eventfd|eventpoll|signalfd|timerfd|pidfd)\]|\[?(inotify|fanotify)\]?)$"
)
"""What CRIU 4.2.1 dumped and restored of the kernel's objects."""
_CUDA_SHARED = re.compile(r"/dev/shm/cuda\.shm\.")  # noqa: S108  # a name that CUDA chooses


def kernel_objects(tree: Tree) -> Iterator[Blocker]:
    """io_uring, userfaultfd, perf, BPF, seccomp and others: open or mapped."""
    for process in tree.processes:
        for where, target in places(process):
            if "[io_uring]" in target:
                yield IO_URING.at(where)
            elif target.startswith("anon_inode:") and not _SAVED.match(target):
                yield ANONYMOUS.at(where)
            elif target.startswith("/secretmem"):
                yield SECRET.at(where)
            elif target.startswith("/dmabuf:"):
                yield DMABUF.at(where)
            elif _CUDA_SHARED.match(target):
                yield CUDA_IPC.at(where)


def foreign_pidfds(tree: Tree) -> Iterator[Blocker]:
    """A pidfd is saved if its process is part of the tree or has ended."""
    for process in tree.processes:
        for descriptor in process.descriptors:
            if descriptor.pid not in (None, -1) and descriptor.pid not in tree.pids:
                yield PIDFD.at(f"pid {process.pid} fd {descriptor.number}")


def large_ghosts(tree: Tree) -> Iterator[Blocker]:
    """Deleted files have to come with the image. One that has another name is only linked."""
    for process in tree.processes:
        for where, target, held, links in _deleted(process):
            if links == 0 and held is not None and held > GHOST_LIMIT and is_ghost(target):
                yield GHOST.at(f"{where} -> {target}", f"it occupies {held} bytes")


def is_ghost(target: str) -> bool:
    """Tell whether a deleted name was one of a file, and not the kernel's name for memory."""
    return not target.startswith(("/memfd:", "/SYSV", "/anon_hugepage", "/secretmem", "/dev/zero"))


def _deleted(process: Process) -> Iterator[tuple[str, str, int | None, int | None]]:
    for file in process.descriptors:
        yield f"pid {process.pid} fd {file.number}", file.target, file.held, file.links
    for mapped in process.mapped:
        yield f"pid {process.pid} map {mapped.area}", mapped.target, mapped.held, mapped.links


def sysv_memory(tree: Tree) -> Iterator[Blocker]:
    """Attached segments are saved only with an IPC namespace of the workload's own.

    Semaphores and message queues of System V leave no trace in a process: they are not seen.
    """
    own = tree.own_namespaces.get("ipc")
    if own is None or tree.root.namespaces.get("ipc") != own:
        return
    for process in tree.processes:
        for mapped in process.mapped:
            if mapped.target.startswith("/SYSV"):
                yield SYSV.at(f"pid {process.pid} map {mapped.area} -> {mapped.target}")
