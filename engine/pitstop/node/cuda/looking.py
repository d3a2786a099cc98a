"""What of a running workload is CUDA's, seen without touching it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pitstop.model.cuda import CudaLimits
from pitstop.model.inventory import Inventory
from pitstop.node.blockers import Blocker
from pitstop.node.cuda.driver import Driver
from pitstop.node.cuda.finding import candidates, find
from pitstop.node.cuda.mark import GpuMark
from pitstop.node.cuda.placing import holdings
from pitstop.node.processes import Identity


@dataclass(frozen=True, slots=True)
class CudaLook:
    """What was seen.

    Attributes:
        pids: of the CUDA processes, as this machine counts.
        holds: bytes by UUID of the GPU.
        blockers: that the driver does not answer about them.
    """

    pids: tuple[int, ...] = ()
    holds: Mapping[str, int] = field(default_factory=dict)
    blockers: tuple[Blocker, ...] = ()


def look_for_cuda(tree: Sequence[Identity], inventory: Inventory) -> CudaLook:
    """Ask the driver which processes are CUDA processes, where any could be one."""
    among = candidates(tree)
    if not among:
        return CudaLook()
    with Driver() as driver:
        pids, unanswered = find(driver, among, CudaLimits().call)
    blockers = tuple(
        Blocker(
            "a CUDA driver that does not answer",
            words,
            "so nobody can tell what of its state would be saved",
            "nvidia-smi -q; dmesg | grep -i nvrm; reboot the node",
        )
        for words in unanswered
    )
    return CudaLook(tuple(pids), holdings(inventory, pids), blockers)


def parked_blocker(mark: GpuMark) -> Blocker:
    """Say that GPU state is not on its GPUs now."""
    if mark.what == "suspended":
        why, fix = "its GPU state is parked in host memory", "resume it"
    else:
        why, fix = "an operation that takes its GPU state is under way, or was killed", "wait"
    return Blocker("parked GPU state", f"pid {mark.root.pid}", why, fix)
