"""GPUs: driver, NVML, and the CUDA checkpoint API. A machine without a GPU is no failure."""

from __future__ import annotations

import importlib.metadata
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pitstop.node.checks.check import Check, CheckState, first_line

SAVES_GPU_STATE = False
"""Whether this engine drives the CUDA checkpoint API. Until it does, `node/blockers.py`
refuses to dump a process with a GPU open, and such a workload is cold-started."""

MINIMUM_DRIVER = {"x86_64": 570, "aarch64": 595}
"""Driver branches from which the checkpoint API may be called (580 to move to another GPU)."""

_NVIDIA = "0x10de"
_DISPLAY = "0x03"

Answer = Literal["ok", "no-binding", "no-library", "no-driver", "mismatch", "error"]


@dataclass(frozen=True, slots=True)
class Nvml:
    """What NVML says.

    Attributes:
        words: its own words for anything but `ok`.
    """

    answer: Answer
    words: str = ""
    driver: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaBinding:
    """cuda-python on this machine; `error` where it cannot be imported."""

    version: str | None
    error: str = ""


def gpus() -> list[Check]:
    """Look at all of it. cuda-python is imported only where there is a GPU to use it on."""
    nvml, cards = read_nvml(), pci_cards(Path("/sys/bus/pci/devices"))
    binding = read_binding() if nvml.names else CudaBinding(None)
    return [
        judge_driver(nvml, cards),
        judge_cuda(nvml, binding, os.uname().machine),
        judge_gpu_state(nvml, cards),
    ]


def read_nvml() -> Nvml:
    """Ask NVML through its own binding."""
    try:
        import pynvml
    except ImportError as error:
        return Nvml("no-binding", first_line(error))
    known: dict[type[Exception], Answer] = {
        pynvml.NVMLError_LibraryNotFound: "no-library",
        pynvml.NVMLError_DriverNotLoaded: "no-driver",
        pynvml.NVMLError_LibRmVersionMismatch: "mismatch",
    }
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Nvml(known.get(type(error), "error"), str(error))
    try:
        names = [
            str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return Nvml("ok", driver=str(pynvml.nvmlSystemGetDriverVersion()), names=tuple(names))
    except pynvml.NVMLError as error:
        return Nvml(known.get(type(error), "error"), str(error))
    finally:
        pynvml.nvmlShutdown()


def read_binding() -> CudaBinding:
    """Import the part of cuda-python that a checkpoint calls."""
    try:
        from cuda.core import checkpoint  # noqa: F401  # only whether it is there

        return CudaBinding(importlib.metadata.version("cuda-core"))
    except Exception as error:  # noqa: BLE001  # a binding may raise anything at import
        return CudaBinding(None, first_line(error))


def pci_cards(devices: Path) -> int:
    """Count NVIDIA display and 3D controllers on the PCI bus, driver or not."""
    count = 0
    for device in devices.iterdir() if devices.is_dir() else ():
        vendor = (device / "vendor").read_text().strip()
        if vendor == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY):
            count += 1
    return count


def judge_driver(nvml: Nvml, cards: int) -> Check:
    """Say how driver and NVML are."""
    what = "NVIDIA driver and NVML"
    if nvml.answer == "ok" and nvml.names:
        return Check(
            "gpu-driver",
            CheckState.OK,
            what,
            f"driver {nvml.driver}, {len(nvml.names)} GPU: {', '.join(sorted(set(nvml.names)))}",
        )
    if nvml.answer == "no-binding":
        return Check(
            "gpu-driver",
            CheckState.UNKNOWN,
            what,
            nvml.words,
            "GPUs and their driver cannot be seen, so no fingerprint is complete",
            "pip install nvidia-ml-py",
        )
    if nvml.answer in ("ok", "no-library", "no-driver") and cards == 0:
        words = nvml.words or f"driver {nvml.driver}, no GPU"
        return Check(
            "gpu-driver",
            CheckState.ABSENT,
            what,
            f"no GPU on the PCI bus ({words})",
            "workloads without a GPU need none",
        )
    return _broken(nvml, cards, what)


def _broken(nvml: Nvml, cards: int, what: str) -> Check:
    why, fix = {
        "ok": ("the driver runs but drives no GPU", "nvidia-smi -q; dmesg | grep -i nvrm"),
        "no-library": ("no driver is installed for it", "install the NVIDIA driver, then reboot"),
        "no-driver": ("the driver's module is not loaded", "modprobe nvidia && nvidia-smi"),
        "mismatch": (
            "the driver was upgraded while the old module stayed loaded",
            "reboot, or end all GPU processes and reload the module: "
            "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia",
        ),
        "error": ("NVML does not answer", "nvidia-smi -q; dmesg | grep -i nvrm"),
    }[nvml.answer]
    on_bus = f"{cards} NVIDIA GPU on the PCI bus" if cards else "no GPU seen on the PCI bus"
    return Check(
        "gpu-driver",
        CheckState.FAILED,
        what,
        f"{on_bus}; NVML: {nvml.words or 'shows no GPU'}",
        why,
        fix,
    )


def judge_cuda(nvml: Nvml, binding: CudaBinding, machine: str) -> Check:
    """Say whether the CUDA checkpoint API could be called."""
    what = "CUDA checkpoint API"
    if not nvml.names:
        return Check("cuda-checkpoint", CheckState.ABSENT, what, "no GPU to use it on")
    minimum = MINIMUM_DRIVER.get(machine)
    major = re.match(r"\d+", nvml.driver)
    if minimum is None or major is None:
        return Check(
            "cuda-checkpoint",
            CheckState.UNKNOWN,
            what,
            f"driver {nvml.driver!r} on {machine}",
            "it is not known from which driver on it works here",
        )
    if int(major.group()) < minimum:
        return Check(
            "cuda-checkpoint",
            CheckState.FAILED,
            what,
            f"driver {nvml.driver}",
            f"on {machine} the API needs driver {minimum} or newer",
            f"upgrade the NVIDIA driver to {minimum} or newer (580 to move to another GPU)",
        )
    if binding.version is None:
        return Check(
            "cuda-checkpoint",
            CheckState.FAILED,
            what,
            f"driver {nvml.driver}; cuda-python: {binding.error}",
            "it is called through cuda-python",
            "pip install 'pitstop[gpu]'",
        )
    return Check(
        "cuda-checkpoint", CheckState.OK, what, f"driver {nvml.driver}, cuda-core {binding.version}"
    )


def judge_gpu_state(nvml: Nvml, cards: int) -> Check:
    """Say what this engine does with GPU memory."""
    what = "GPU state of workloads"
    if not nvml.names and not cards:
        return Check("gpu-state", CheckState.ABSENT, what, "no GPU")
    if SAVES_GPU_STATE:
        return Check("gpu-state", CheckState.OK, what, "saved with the workload")
    return Check(
        "gpu-state",
        CheckState.WARNING,
        what,
        "not saved by this version of the engine",
        "a dump of a process with a GPU open is refused before it is touched",
        "`on_checkpoint_failure: cold-start` in the workload's policy",
    )
