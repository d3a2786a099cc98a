"""Rules about devices: GPUs, network cards, and all others that CRIU does not know."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pitstop.node.blockers.blocker import Blocker, Kind
from pitstop.node.blockers.facts import PTMX, Node, Process, Tree
from pitstop.node.blockers.places import devices, places

RDMA = Kind(
    "an RDMA device",
    "CRIU cannot save memory that a network card works on (criu#267, nvcf#891)",
    "UCX_TLS=tcp and NCCL_IB_DISABLE=1 at its start, or a cold start",
)
GDRCOPY = Kind(
    "a GDRCopy device",
    "CRIU cannot save mappings of it (nvcf#465)",
    "start it without GDRCopy (UCX_TLS without gdr), or a cold start",
)
GPU = Kind(
    "a GPU device",
    "left open by a forked child or by NVML: only the CUDA state of CUDA processes is taken off "
    "the GPU before the dump (cuda-checkpoint#7, cuda-checkpoint#28)",
    "close it before forking, or exec after it; for NVML a driver of branch 570 or newer",
)
MIG = Kind(
    "a MIG slice",
    "CUDA cannot checkpoint a process on a MIG slice (cuda-checkpoint#42)",
    "a whole GPU, or a cold start",
)
IMEX = Kind(
    "GPU memory shared between nodes",
    "CUDA cannot checkpoint memory of an IMEX channel (cuda-checkpoint: README)",
    "NCCL_MNNVL_ENABLE=0 at its start, or a cold start",
)
UVM_TOOLS = Kind(
    "a profiler of GPU memory",
    "its device, nvidia-uvm-tools, is not closed by a CUDA checkpoint (cuda-checkpoint: README)",
    "end the profiler or debugger",
)
OTHER_GPU = Kind(
    "a GPU device of another make",
    "pitstop saves the GPU state of CUDA processes alone",
    "start it without that GPU, or a cold start",
)
TERMINAL = Kind(
    "a terminal",
    "the terminal belongs to a session outside the workload",
    "start it through pitstop-node launch, or with its output in files",
)
TUN = Kind(
    "a tunnel interface",
    "CRIU saves it only with the network namespace, which is not saved (criu: tun.c)",
    "let the tunnel be held by a process outside of the workload",
)
BLOCK = Kind(
    "a block device",
    "CRIU cannot dump an open block device (criu: files.c, dump_one_file)",
    "use files on a file system instead, or close it before",
)
DEVICE = Kind(
    "a device",
    "CRIU has no way to save this one (criu: files.c, dump_chrdev)",
    "start the program without it, or a cold start",
)
KINDS = (
    *(RDMA, GDRCOPY, GPU, MIG, IMEX, UVM_TOOLS, OTHER_GPU),
    *(TERMINAL, TUN, BLOCK, DEVICE),
)

# The first that matches counts. Names, because NVIDIA's and others' numbers are given out at
# run time.
_NAMED = (
    (re.compile(r"/dev/infiniband/|/dev/rdma_cm"), RDMA),
    (re.compile(r"/dev/gdrdrv"), GDRCOPY),
    (re.compile(r"/dev/nvidia-caps-imex"), IMEX),
    (re.compile(r"/dev/nvidia-caps/"), MIG),
    (re.compile(r"/dev/nvidia-uvm-tools"), UVM_TOOLS),
    (re.compile(r"/dev/(dri/|kfd)"), OTHER_GPU),
)
_CLOSED_BY_CUDA = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-modeset)( |$)")
_NVIDIA = "/dev/nvidia"

_MEMORY, _MISC, _TTY, _PTS = 1, 10, (4, 5), range(136, 144)
_AUTOFS, _TUN = (_MISC, 235), (_MISC, 200)
_CONSOLES = re.compile(r"/dev/(pts/\d+|tty)")


def gpu_and_network_devices(tree: Tree) -> Iterator[Blocker]:
    """Known by their names, open or mapped."""
    for process in tree.processes:
        for where, target in places(process):
            kind = _named(target, process.pid in tree.cuda)
            if kind is not None:
                yield kind.at(where)


def _named(target: str, cuda: bool) -> Kind | None:
    for pattern, kind in _NAMED:
        if pattern.match(target):
            return kind
    if target.startswith(_NVIDIA):
        return None if cuda and _CLOSED_BY_CUDA.match(target) else GPU
    return None


def terminals(tree: Tree) -> Iterator[Blocker]:
    """A pseudo terminal is saved if the tree holds its other side too."""
    own = {
        f"/dev/pts/{descriptor.terminal}"
        for process in tree.processes
        for descriptor in process.descriptors
        if descriptor.terminal is not None and _number(descriptor.device) == PTMX
    }
    for process in tree.processes:
        for where, target in places(process):
            if _CONSOLES.match(target) and target not in own:
                yield TERMINAL.at(where)


def other_devices(tree: Tree) -> Iterator[Blocker]:
    """Everything else that is a device, wherever its file lies."""
    for process in tree.processes:
        yield from _others(process, process.pid in tree.cuda)


def _others(process: Process, cuda: bool) -> Iterator[Blocker]:
    for where, target, device in devices(process):
        if _named(target, cuda) or (cuda and target.startswith(_NVIDIA)):
            continue
        if device.block:
            yield BLOCK.at(where, _shown(device))
        elif device.number == _TUN:
            yield TUN.at(where)
        elif not _saved(device):
            yield DEVICE.at(where, _shown(device))


def _saved(device: Node) -> bool:
    """CRIU 4.2.1 knows memory devices (null, zero, random, kmsg), terminals and autofs."""
    major = device.number[0]
    return major == _MEMORY or major in _TTY or major in _PTS or device.number == _AUTOFS


def _number(device: Node | None) -> tuple[int, int] | None:
    return device.number if device is not None else None


def _shown(device: Node) -> str:
    return f"number {device.number[0]}:{device.number[1]}"
