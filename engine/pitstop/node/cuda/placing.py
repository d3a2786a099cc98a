"""What a workload holds on GPUs, and whether GPUs that are there can take it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pitstop.decide.gpu_map import fits, map_gpus
from pitstop.decide.visible import visible
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


def _listed(inventory: Inventory, pids: Collection[int]) -> dict[str, int]:
    """Return the bytes that processes are known to hold, by UUID of the GPU: never more."""
    return {
        gpu.uuid.value: sum(number(p.memory) or 0 for p in gpu.processes if p.pid in pids)
        for gpu in inventory.gpus
        if gpu.uuid.value is not None
    }


def _held(gpu: Gpu, pids: Collection[int], listed: bool) -> int:
    ours = [p for p in gpu.processes if p.pid in pids]
    if listed and not ours:
        return 0
    sizes = [number(p.memory) for p in ours]
    known = [size for size in sizes if size is not None]
    if sizes and len(known) == len(sizes):
        return sum(known)
    used = number(gpu.memory_used)
    return used if used is not None else number(gpu.memory) or 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where GPU state would go on a node.

    Attributes:
        gpu_map: from every old GPU to a new one; empty when none is another.
        takes: the GPUs that would hold it.
        refusals: why it cannot go there; the rest is empty then.
    """

    gpu_map: Mapping[str, str] = field(default_factory=dict)
    takes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def place(
    before: Inventory,
    holds: Mapping[str, int],
    present: Inventory,
    reserved: Collection[str] = (),
    only: Collection[str] | None = None,
) -> Place:
    """Find GPUs for the state of a workload.

    Args:
        before: all GPUs of the node it was on.
        holds: what it held there: UUID to bytes.
        present: all GPUs of the node it is to go to, as they are now.
        reserved: GPUs there that are promised to others.
        only: those there that it may use; None for all.
    """
    most = max(holds.values(), default=0)
    free = {
        gpu.uuid.value
        for gpu in present.gpus
        if gpu.uuid.value is not None
        and gpu.uuid.value not in reserved
        and (only is None or gpu.uuid.value in only)
        and not fits({gpu.uuid.value: most}, present)
    }
    found = map_gpus(
        before.gpus, present.gpus, before.links, present.links, usable=free, used=holds.keys()
    )
    if not found.possible:
        busy = fits({uuid: most for uuid in _uuids(present) if uuid not in free}, present)
        return Place(refusals=(*found.refusals, *busy))
    new = dict(found.pairs)
    unfit = fits({new[uuid]: size for uuid, size in holds.items()}, present)
    takes = tuple(sorted(new[uuid] for uuid in holds))
    return Place(refusals=unfit) if unfit else Place(new if found.moved else {}, takes)


def _uuids(inventory: Inventory) -> list[str]:
    return [gpu.uuid.value for gpu in inventory.gpus if gpu.uuid.value is not None]


def place_for(
    before: Inventory,
    holds: Mapping[str, int],
    present: Inventory,
    environment: Mapping[str, str],
    reserved: Collection[str] = (),
) -> Place:
    """Find GPUs for the state of a workload, among those that its start may use.

    Args:
        before: as for `place`, like `holds`, `present` and `reserved`.
        environment: of the start: `CUDA_VISIBLE_DEVICES` in it says what it may use.
    """
    seen = visible(
        environment.get("CUDA_VISIBLE_DEVICES"), present.gpus, environment.get("CUDA_DEVICE_ORDER")
    )
    if not seen.refusals:
        return place(before, holds, present, reserved, seen.uuids)
    if set(holds) <= set(_uuids(present)):
        # What cannot be resolved forbids nothing to a workload whose own GPUs are all here.
        return place(before, holds, present, reserved)
    return Place(refusals=seen.refusals)


def gpu_map_here(
    checkpoint: str, saved: CudaSaved, environment: Mapping[str, str]
) -> Mapping[str, str]:
    """Return to which GPU of this node the state of each GPU goes; empty for the same ones.

    Args:
        checkpoint: its name.
        saved: what it holds.
        environment: of the start.

    Raises:
        Refused: it cannot go here, or there is no room for it; nothing was touched.
    """
    before = Inventory.from_json(saved.inventory)
    found = place_for(before, saved.holds, read_inventory(), environment)
    if found.refusals:
        raise Refused(checkpoint, f"its GPU state cannot go here: {'; '.join(found.refusals)}")
    return found.gpu_map


def refuse_unless_free(workload: str, holds: Mapping[str, int], own: Collection[int]) -> None:
    """Look whether the GPUs that a workload was taken off can take it back.

    Args:
        workload: its name.
        holds: what it held there, by UUID of the GPU, in bytes.
        own: PIDs of its CUDA processes. Some are back already where an earlier try was killed.

    Raises:
        Refused: they are in use or not there; it stays as it is.
    """
    present = read_inventory()
    back = _listed(present, own)
    unfit = fits({uuid: size - back.get(uuid, 0) for uuid, size in holds.items()}, present, own)
    if unfit:
        raise Refused(workload, f"its GPUs cannot take it back: {'; '.join(unfit)}")
