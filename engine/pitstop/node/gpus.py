"""GPUs as NVML shows them. No GPU, no driver and no NVML are values, not errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pitstop.model.fingerprint import NONE, Fact


def gpu_facts() -> dict[str, Fact]:
    """Return the GPU and driver part of the fingerprint.

    Without the NVML library there is no NVIDIA driver: `gpu.count` is 0 and the driver none.
    Any other failure (a driver and library of different versions, a lost GPU, a field the
    card does not have) makes the fact unknown, with NVML's own words as the reason.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return {"gpu.count": Fact("0"), "driver.version": Fact(NONE), "cuda.version": Fact(NONE)}
    except pynvml.NVMLError as error:
        unknown = Fact(None, f"NVML: {error}")
        return dict.fromkeys(("gpu.count", "driver.version", "cuda.version"), unknown)
    try:
        return _read(pynvml)
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any) -> dict[str, Fact]:
    facts = {
        "driver.version": _fact(nvml, nvml.nvmlSystemGetDriverVersion),
        "cuda.version": _fact(nvml, lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2())),
        "gpu.count": _fact(nvml, nvml.nvmlDeviceGetCount),
    }
    count = facts["gpu.count"].value
    for index in range(int(count) if count else 0):
        for name, fact in _device(nvml, index).items():
            facts[f"gpu.{index}.{name}"] = fact
    return facts


def _device(nvml: Any, index: int) -> dict[str, Fact]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"name": Fact(None, f"NVML: {error}")}
    return {
        "name": _fact(nvml, lambda: nvml.nvmlDeviceGetName(handle)),
        "uuid": _fact(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)),
        "vbios": _fact(nvml, lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
        "memory": _fact(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
    }


def _fact(nvml: Any, read: Callable[[], Any]) -> Fact:
    try:
        value = read()
    except nvml.NVMLError_NotSupported:
        return Fact("not supported")
    except nvml.NVMLError as error:
        return Fact(None, f"NVML: {error}")
    return Fact(value.decode(errors="replace") if isinstance(value, bytes) else str(value))


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
