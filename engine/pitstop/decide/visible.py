"""What CUDA_VISIBLE_DEVICES means on a node: which GPUs, by UUID.

It is a hint of what a process was given. What it uses is what it has open.
Forms: CUDA C++ Programming Guide, "CUDA Environment Variables".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pitstop.model.inventory import Gpu


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs and slices that a process may use, by UUID, in CUDA's order.

    Attributes:
        refusals: why the rest of the list could not be resolved. CUDA itself ignores what
            follows a wrong entry; here that is said.
    """

    uuids: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


class _Unresolved(Exception):
    """An entry that is not exactly one device."""


def visible(value: str | None, gpus: Sequence[Gpu], device_order: str | None = None) -> Visible:
    """Resolve CUDA_VISIBLE_DEVICES.

    Args:
        value: of the variable; None when it is unset (all GPUs), empty for none.
        gpus: all of the node.
        device_order: value of CUDA_DEVICE_ORDER. Without `PCI_BUS_ID` CUDA puts the fastest GPU
            first, so a number means nothing on a node with several models.
    """
    if value is None:
        unnamed = [gpu.label for gpu in gpus if gpu.uuid.value is None]
        return Visible(
            tuple(gpu.uuid.value for gpu in gpus if gpu.uuid.value is not None),
            tuple(f"{label}: it cannot be named" for label in unnamed),
        )
    found: list[str] = []
    for entry in value.split(",") if value.strip() else ():
        try:
            uuid = _resolve(entry.strip(), gpus, device_order)
        except _Unresolved as error:
            return Visible(tuple(found), (str(error),))
        if uuid in found:
            return Visible(tuple(found), (f"{entry.strip()!r} names {uuid} a second time",))
        found.append(uuid)
    return Visible(tuple(found))


def _resolve(entry: str, gpus: Sequence[Gpu], order: str | None) -> str:
    if re.fullmatch(r"\d{1,4}", entry, re.ASCII):
        return _by_index(int(entry), gpus, order)
    if entry.startswith("GPU-"):
        return _only(entry, [g.uuid.value for g in gpus if g.uuid.value is not None])
    old = re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry, re.ASCII)
    if old is not None:
        parent = _only(old.group(1), [g.uuid.value for g in gpus if g.uuid.value is not None])
        slices = [
            device.uuid.value
            for gpu in gpus
            if gpu.uuid.value == parent
            for device in gpu.mig_devices
            if (device.gpu_instance.value, device.compute_instance.value) == old.groups()[1:]
            and device.uuid.value is not None
        ]
        if len(slices) != 1:
            raise _Unresolved(f"{entry!r} is not a slice of {parent}")
        return slices[0]
    if entry.startswith("MIG-"):
        return _only(
            entry,
            [d.uuid.value for g in gpus for d in g.mig_devices if d.uuid.value is not None],
        )
    raise _Unresolved(f"{entry!r} is neither a number nor the UUID of a GPU or slice")


def _only(prefix: str, uuids: Sequence[str]) -> str:
    # CUDA takes a UUID in either case; the driver writes it in small letters.
    found = sorted({uuid for uuid in uuids if uuid.lower().startswith(prefix.lower())})
    if not found:
        raise _Unresolved(f"no device of this node has the UUID {prefix!r}")
    if len(found) > 1:
        raise _Unresolved(f"{prefix!r} fits to {len(found)} devices: {', '.join(found)}")
    return found[0]


def _by_index(index: int, gpus: Sequence[Gpu], order: str | None) -> str:
    models = {gpu.name.value for gpu in gpus}
    if order != "PCI_BUS_ID" and (len(models) > 1 or None in models):
        raise _Unresolved(
            f"{index} could be any GPU: the node has several models, and without "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA puts the fastest first"
        )
    if any(gpu.pci.value is None for gpu in gpus):
        raise _Unresolved(f"{index}: the order of the GPUs on the bus is not known")
    ordered = sorted(gpus, key=lambda gpu: (len(gpu.pci.value or ""), gpu.pci.value or ""))
    if index >= len(ordered):
        raise _Unresolved(f"{index} is not a GPU of this node, which has {len(ordered)}")
    uuid = ordered[index].uuid.value
    if uuid is None:
        raise _Unresolved(f"{index}: the UUID of that GPU is not known")
    return uuid
