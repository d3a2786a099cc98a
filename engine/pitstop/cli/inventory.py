"""inventory: the GPUs of a machine, and what keeps their state from being saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pitstop.cli.options import Json, SiteFile
from pitstop.cli.output import emit, errors, out, printable
from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import BadInput
from pitstop.model.inventory import Answer, Gpu, Inventory
from pitstop.steps.files import load_site


def inventory(
    node: Annotated[str | None, typer.Argument(help="A node of the site; default here.")] = None,
    site: SiteFile = Path("site.yaml"),
    json: Json = False,
) -> None:
    """Show GPUs, driver and links, each value or why it is not known."""
    with errors(json):
        found = _here() if node is None else _there(node, site)
        emit(found, json, lambda: _show(found))


def _here() -> dict[str, Any]:
    from pitstop.node.gpus import describe

    return describe()


def _there(name: str, site: Path) -> dict[str, Any]:
    declared = load_site(site)
    if name not in declared.nodes:
        raise BadInput(name, "no such node in the site", ", ".join(declared.nodes))
    node = RemoteNode(name, declared.nodes[name])
    try:
        return node.call("inventory")
    finally:
        node.close()


def _show(found: dict[str, Any]) -> None:
    inventory = Inventory.from_json(found["inventory"])
    for line in _lines(inventory, found["why_not"]):
        out.print(printable(line), markup=False)


def _lines(inventory: Inventory, why_not: list[str]) -> list[str]:
    if inventory.answer is Answer.NONE:
        return [f"no GPU: {inventory.words}"]
    lines = [
        f"driver {inventory.driver}, module {inventory.loaded}, library {inventory.library}, "
        f"CUDA {inventory.cuda}"
    ]
    if inventory.answer is not Answer.OK:
        lines.append(f"NVML: {inventory.answer}: {inventory.words}")
    for gpu in inventory.gpus:
        lines += _gpu(gpu)
    for link in inventory.links:
        lines.append(
            f"{link.one} - {link.other}: {link.nvlinks} NVLinks, P2P {link.p2p}, {link.ancestor}"
        )
    if inventory.gpus:
        lines.append("GPU state can be saved here" if not why_not else "GPU state is NOT saved:")
        lines += [f"  {reason}" for reason in why_not]
    return lines


def _gpu(gpu: Gpu) -> list[str]:
    if gpu.lost:
        return [f"{gpu.label}: LOST ({gpu.name})"]
    lines = [
        f"{gpu.label}: {gpu.name} at {gpu.pci}, serial {gpu.serial}, VBIOS {gpu.vbios}, "
        f"compute capability {gpu.compute_capability}",
        f"  memory {gpu.memory} bytes, {gpu.memory_used} used; ECC {gpu.ecc}, MIG {gpu.mig}, "
        f"MPS {gpu.mps}, mode {gpu.compute_mode}, persistence {gpu.persistence}, "
        f"to be done: {gpu.recovery}",
    ]
    if not gpu.processes_read.known:
        lines.append(f"  processes: {gpu.processes_read}")
    for process in gpu.processes:
        lines.append(f"  pid {process.pid} ({process.kind}): {process.memory} bytes")
    for device in gpu.mig_devices:
        lines.append(f"  slice {device.uuid}")
    return lines
