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


def look_for_cuda(tree: Sequence[Identity], inventory: Inventory, driver: Driver) -> CudaLook:
    """Ask the driver which processes are CUDA processes, where any could be one.

    A driver that could not be used for another workload is not tried again.
    """
    among = candidates(tree)
    if not among:
        return CudaLook()
    pids: list[int] = []
    unanswered = [driver.unusable] if driver.unusable else []
    if not unanswered:
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


def parked_blocker(mark: GpuMark, under_way: bool) -> Blocker:
    """Say that GPU state is not on its GPUs now.

    Args:
        mark: that says so.
        under_way: whether an operation works on the workload.
    """
    if mark.what == "suspended":
        why, fix = "its GPU state is parked in host memory", "pitstop unsuspend brings it back"
    elif under_way:
        why, fix = "an operation that takes its GPU state is under way", "wait for it"
    else:
        why = "an operation that was taking its GPU state was killed"
        fix = f"pitstop resume {mark.run or 'RUN'}, or pitstop unsuspend, brings it back"
    return Blocker("parked GPU state", f"pid {mark.root.pid}", why, fix)
