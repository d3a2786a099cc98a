"""What a workload holds on GPUs, and whether GPUs that are there can take it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pitstop.decide.gpu_map import fits, map_gpus
from pitstop.model.errors import Refused
from pitstop.model.inventory import Gpu, Inventory, number
from pitstop.node.gpus import read_inventory

if TYPE_CHECKING:
    from pitstop.model.manifest import CudaSaved


def holdings(inventory: Inventory, pids: Collection[int]) -> dict[str, int]:
    """Return the bytes that processes hold, by UUID of the GPU: never less than they do.

    Where the driver does not say which process holds how much, all that is in use there counts.
    """
    listed = any(p.pid in pids for gpu in inventory.gpus for p in gpu.processes)
    held = {
        gpu.uuid.value: _held(gpu, pids, listed)
        for gpu in inventory.gpus
        if gpu.uuid.value is not None and not gpu.lost
    }
    return {uuid: size for uuid, size in held.items() if size}


def _held(gpu: Gpu, pids: Collection[int], listed: bool) -> int:
    ours = [p for p in gpu.processes if p.pid in pids]
    if listed and not ours:
        return 0
    sizes = [number(p.memory) for p in ours]
    known = [size for size in sizes if size is not None]
    if sizes and len(known) == len(sizes):
        return sum(known)
    return number(gpu.memory_used) or number(gpu.memory) or 0


def gpu_map_here(checkpoint: str, saved: CudaSaved) -> dict[str, str]:
    """Return to which GPU of this node the state of each GPU goes; empty for the same ones.

    Raises:
        Refused: it cannot go here, or there is no room for it; nothing was touched.
    """
    before, present = Inventory.from_json(saved.inventory), read_inventory()
    found = map_gpus(before.gpus, present.gpus, before.links, present.links)
    if not found.possible:
        raise Refused(checkpoint, f"its GPU state cannot go here: {'; '.join(found.refusals)}")
    new = dict(found.pairs)
    unfit = fits({new[uuid]: size for uuid, size in saved.holds.items()}, present)
    if unfit:
        raise Refused(checkpoint, f"no room for its GPU state: {'; '.join(unfit)}")
    return new if found.moved else {}


def refuse_unless_free(workload: str, holds: Mapping[str, int]) -> None:
    """Look whether the GPUs that a workload was taken off can take it back.

    Raises:
        Refused: they are in use or not there; it stays as it is.
    """
    unfit = fits(holds, read_inventory())
    if unfit:
        raise Refused(workload, f"its GPUs cannot take it back: {'; '.join(unfit)}")
