"""GPUs: driver, NVML, and the CUDA checkpoint API. A machine without a GPU is no failure."""

from __future__ import annotations

import importlib.metadata
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pitstop.decide.support import Feature, Kind, Obstacle, obstacles, support_of
from pitstop.model.inventory import Answer, Inventory, number
from pitstop.node.checks.check import Check, CheckState, first_line
from pitstop.node.gpus import has_no_driver, read_inventory


@dataclass(frozen=True, slots=True)
class CudaBinding:
    """cuda-python on this machine; `error` where it cannot be imported."""

    version: str | None
    error: str = ""


def gpus() -> list[Check]:
    """Look at all of it. cuda-python is imported only where there is a GPU to use it on."""
    found = read_inventory()
    binding = read_binding() if found.gpus else CudaBinding(None)
    machine = os.uname().machine
    return [
        judge_driver(found, machine),
        judge_cuda(found, binding, machine),
        judge_gpu_state(found, machine),
    ]


def read_binding() -> CudaBinding:
    """Import the part of cuda-python that a checkpoint calls."""
    try:
        from cuda.core import checkpoint  # noqa: F401  # only whether it is there

        return CudaBinding(importlib.metadata.version("cuda-core"))
    except Exception as error:  # noqa: BLE001  # a binding may raise anything at import
        return CudaBinding(None, first_line(error))


def judge_driver(inventory: Inventory, machine: str) -> Check:
    """Say how driver and NVML are."""
    what = "NVIDIA driver and NVML"
    if has_no_gpu(inventory):
        return Check(
            "gpu-driver",
            CheckState.ABSENT,
            what,
            f"{_on_bus(inventory)} ({inventory.words or f'driver {inventory.driver}, no GPU'})",
            "workloads without a GPU need none",
        )
    if inventory.answer is Answer.NO_BINDING:
        return Check(
            "gpu-driver",
            CheckState.UNKNOWN,
            what,
            inventory.words,
            "GPUs and their driver cannot be seen, so no fingerprint is complete",
            "pip install nvidia-ml-py",
        )
    broken = _of_kind(inventory, machine, Kind.BROKEN)
    if broken:
        return Check(
            "gpu-driver",
            CheckState.FAILED,
            what,
            f"{_on_bus(inventory)}; {_seen(inventory)}",
            _reasons(broken),
            _fixes(broken),
        )
    return Check("gpu-driver", CheckState.OK, what, _seen(inventory))


def judge_cuda(inventory: Inventory, binding: CudaBinding, machine: str) -> Check:
    """Say whether the CUDA checkpoint API can be called, and works with this driver."""
    what = "CUDA checkpoint API"
    if not inventory.gpus:
        return Check("cuda-checkpoint", CheckState.ABSENT, what, "no GPU to use it on")
    found = f"driver {inventory.driver}"
    wrong = _of_kind(inventory, machine, Kind.DRIVER)
    if wrong:
        unknown = support_of(inventory.driver.value, machine).unknown
        state = CheckState.UNKNOWN if unknown else CheckState.FAILED
        return Check("cuda-checkpoint", state, what, found, _reasons(wrong), _fixes(wrong))
    if binding.version is None:
        return Check(
            "cuda-checkpoint",
            CheckState.FAILED,
            what,
            f"{found}; cuda-python: {binding.error}",
            "it is called through cuda-python",
            "pip install 'pitstop[gpu]'",
        )
    return Check("cuda-checkpoint", CheckState.OK, what, f"{found}, cuda-core {binding.version}")


def judge_gpu_state(inventory: Inventory, machine: str) -> Check:
    """Say whether GPU memory of workloads is saved on this node."""
    what = "GPU state of workloads"
    if has_no_gpu(inventory):
        return Check("gpu-state", CheckState.ABSENT, what, "no GPU")
    against = obstacles(inventory, machine)
    if against:
        return Check(
            "gpu-state",
            CheckState.FAILED,
            what,
            "not saved here",
            _reasons(against),
            f"{_fixes(against)}; until then `on_checkpoint_failure: cold-start` in the policy",
        )
    stays = support_of(inventory.driver.value, machine).why_not(Feature.MIGRATION)
    return Check(
        "gpu-state",
        CheckState.OK,
        what,
        "saved with the workload" + ("" if stays else ", and restored onto other GPUs too"),
        stays,
    )


def has_no_gpu(inventory: Inventory) -> bool:
    """Whether the machine is known to have no NVIDIA GPU at all."""
    if has_no_driver(inventory):
        return True
    # A driver that runs without a GPU is at home in images that serve both kinds of machines.
    return inventory.answer is Answer.OK and not inventory.gpus and number(inventory.cards) == 0


def _of_kind(inventory: Inventory, machine: str, kind: Kind) -> list[Obstacle]:
    return [found for found in obstacles(inventory, machine) if found.kind is kind]


def _reasons(found: Iterable[Obstacle]) -> str:
    return "; ".join(f"{one.what} at {one.where}: {one.why}" for one in found)


def _fixes(found: Iterable[Obstacle]) -> str:
    return "; ".join(dict.fromkeys(one.fix for one in found))


def _on_bus(inventory: Inventory) -> str:
    cards = number(inventory.cards)
    if cards is None:
        return f"GPUs on the PCI bus: {inventory.cards}"
    return f"{cards} NVIDIA GPU on the PCI bus" if cards else "no GPU seen on the PCI bus"


def _seen(inventory: Inventory) -> str:
    if inventory.answer is not Answer.OK:
        return f"NVML: {inventory.words or inventory.answer.value}"
    names = Counter("lost" if gpu.lost else str(gpu.name) for gpu in inventory.gpus)
    shown = ", ".join(f"{count} x {name}" for name, count in sorted(names.items()))
    return f"driver {inventory.driver}, {len(inventory.gpus)} GPU: {shown or 'none'}"
