"""Asks NVML for all of a node's GPUs, in a process of its own: `python -m pitstop.node.gpus_probe`.

NVML is the driver's own code. On a broken node it crashes or never comes back, and then this
process is lost and not the engine (`pitstop.node.gpus`). It prints an inventory as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from pitstop.model.fingerprint import NONE, Fact
from pitstop.model.inventory import (
    NOT_OFFERED,
    NOT_SUPPORTED,
    OFF,
    ON,
    Answer,
    Gpu,
    GpuProcess,
    Inventory,
    Link,
    MigDevice,
)

MPS_SERVER = "nvidia-cuda-mps-server"
MPS_CONTROL = "nvidia-cuda-mps-control"

_P2P_READ = 0  # the binding has a tuple here
_P2P = ("ok", "chipset", "GPU", "I/O hub", "switched off", "not supported")
_ANCESTORS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
_RECOVERY_FIELD = 230
_RECOVERY = (
    "none",
    "reset the GPU",
    "reboot the node",
    "drain P2P",
    "drain and reset",
    "recover the IMEX domain",
    "reset the bus",
    "reboot the system",
)


def main() -> None:
    """Print the inventory as one line."""
    sys.stdout.write(json.dumps(look().to_json()) + "\n")


def look() -> Inventory:
    """Ask NVML. What it answers is in the result; it does not raise for it."""
    try:
        import pynvml
    except ImportError as error:
        return Inventory(Answer.NO_BINDING, str(error))
    ask = _Nvml(pynvml)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        answers = {
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Answer.NO_LIBRARY,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Answer.NO_DRIVER,
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Answer.MISMATCH,
        }
        answer = answers.get(error.value, Answer.ERROR)
        library = Fact(NONE) if answer is Answer.NO_LIBRARY else _library(ask)
        return Inventory(answer, str(error), library=library)
    try:
        return _node(ask)
    finally:
        pynvml.nvmlShutdown()


class _Lost(Exception):
    """The GPU has fallen off the bus: ask it nothing more, that may crash the library."""


class _Nvml:
    """NVML's functions, whose failures are facts."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def ask(self, name: str, *arguments: Any) -> tuple[Any, Fact | None]:
        """Call a function; return what it says, or the fact that stands for its failure.

        Raises:
            _Lost: the GPU is lost.
        """
        function = getattr(self.nvml, name, None)
        if function is None:
            return None, Fact(NOT_OFFERED)
        try:
            return function(*arguments), None
        except self.nvml.NVMLError as error:
            return None, self.failure(error.value, str(error))
        except UnicodeDecodeError:
            return None, Fact(None, f"NVML: {name} answered with bytes that are no text")

    def failure(self, code: int, words: str) -> Fact:
        """Return the fact for an error.

        Raises:
            _Lost: the GPU is lost.
        """
        if code == self.nvml.NVML_ERROR_GPU_IS_LOST:
            raise _Lost(words)
        if code == self.nvml.NVML_ERROR_NOT_SUPPORTED:
            return Fact(NOT_SUPPORTED)
        if code in (self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND, self.nvml.NVML_ERROR_DEPRECATED):
            return Fact(NOT_OFFERED)
        return Fact(None, f"NVML: {words}")

    def fact(self, name: str, *arguments: Any, text: Callable[[Any], str] | None = None) -> Fact:
        """Call a function and return what it says as a fact."""
        found, failed = self.ask(name, *arguments)
        return failed or Fact((text or _text)(found))


def _node(ask: _Nvml) -> Inventory:
    found = Inventory(
        Answer.OK,
        driver=ask.fact("nvmlSystemGetDriverVersion"),
        library=_library(ask),
        cuda=ask.fact("nvmlSystemGetCudaDriverVersion_v2", text=_cuda),
        mps_control=Fact(ON if any(_programs(MPS_CONTROL)) else OFF),
    )
    count, failed = ask.ask("nvmlDeviceGetCount")
    if failed is not None:
        return replace(found, answer=Answer.ERROR, words=f"number of GPUs: {failed}")
    handles: dict[str, Any] = {}
    gpus = []
    for index in range(count):
        gpu, handle = _gpu(ask, index)
        gpus.append(gpu)
        if gpu.uuid.value is not None and not gpu.lost:
            handles[gpu.uuid.value] = handle
    return replace(found, gpus=tuple(gpus), links=tuple(_links(ask, handles, gpus)))


def _gpu(ask: _Nvml, index: int) -> tuple[Gpu, Any]:
    facts: dict[str, Any] = {}
    unknown: dict[str, Any]
    try:
        handle, failed = ask.ask("nvmlDeviceGetHandleByIndex", index)
        if failed is not None:
            unknown = dict.fromkeys(_SIMPLE, Fact(None, failed.reason or f"NVML: {failed}"))
            return Gpu(index, **unknown), None
        for name, (function, text) in _SIMPLE.items():
            facts[name] = ask.fact(function, handle, text=text)
        facts.update(_memory(ask, handle))
        facts["recovery"] = _recovery(ask, handle)
        facts.update(_processes(ask, handle))
        if str(facts["mig"].value).startswith(ON):
            facts["mig_devices"] = tuple(_slices(ask, handle))
    except _Lost as lost:
        # What was read before is true of a GPU that is not there any more: only its name stays.
        unknown = dict.fromkeys(_SIMPLE, Fact(None, f"NVML: {lost}"))
        kept = {name: facts.get(name, unknown[name]) for name in ("uuid", "name", "pci", "serial")}
        return Gpu(index, lost=True, **{**unknown, **kept}), None
    return Gpu(index, **facts), handle


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _mode(modes: Any) -> str:
    """Return a mode that a reset may change."""
    current, pending = (ON if mode else OFF for mode in modes)
    return current if current == pending else f"{current}, {pending} after a reset"


def _pci_address(info: Any) -> str:
    """Return an address as the kernel writes it: the domain has four digits, not eight."""
    domain, _, rest = _text(info.busId).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _one_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    return lambda number: names[number] if 0 <= number < len(names) else f"code {number}"


_SIMPLE: dict[str, tuple[str, Callable[[Any], str] | None]] = {
    "uuid": ("nvmlDeviceGetUUID", None),
    "name": ("nvmlDeviceGetName", None),
    "pci": ("nvmlDeviceGetPciInfo", _pci_address),
    "serial": ("nvmlDeviceGetSerial", None),
    "vbios": ("nvmlDeviceGetVbiosVersion", None),
    "compute_capability": (
        "nvmlDeviceGetCudaComputeCapability",
        lambda pair: f"{pair[0]}.{pair[1]}",
    ),
    "ecc": ("nvmlDeviceGetEccMode", _mode),
    "mig": ("nvmlDeviceGetMigMode", _mode),
    "compute_mode": ("nvmlDeviceGetComputeMode", _one_of(_COMPUTE_MODES)),
    "persistence": ("nvmlDeviceGetPersistenceMode", lambda mode: ON if mode else OFF),
}


def _library(ask: _Nvml) -> Fact:
    """Return the driver's version that the library belongs to; it says so without a driver.

    NVML's own version is that of CUDA's first number, then the driver's: `13.580.65.06`.
    """
    found = ask.fact("nvmlSystemGetNVMLVersion")
    if found.value is None:
        return found
    first, _, rest = found.value.partition(".")
    return Fact(rest if rest and first.isdigit() and int(first) < 100 else found.value)


def _memory(ask: _Nvml, handle: Any) -> dict[str, Fact]:
    found, failed = ask.ask("nvmlDeviceGetMemoryInfo", handle)
    if failed is not None:
        return {"memory": failed, "memory_used": failed}
    return {"memory": Fact(str(found.total)), "memory_used": Fact(str(found.used))}


def _recovery(ask: _Nvml, handle: Any) -> Fact:
    """Return what has to be done to the GPU; a driver before 570 has no such field."""
    found, failed = ask.ask("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    if failed is not None:
        return failed
    (field,) = found
    if field.nvmlReturn:
        if field.nvmlReturn == ask.nvml.NVML_ERROR_INVALID_ARGUMENT:
            return Fact(NOT_OFFERED)
        return ask.failure(field.nvmlReturn, str(ask.nvml.NVMLError(field.nvmlReturn)))
    return Fact(_one_of(_RECOVERY)(int(field.value.uiVal)))


# By version: the binding's own choice of one raises something else where the driver has none.
_LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses_v3",
}


def _processes(ask: _Nvml, handle: Any) -> dict[str, Any]:
    found: list[GpuProcess] = []
    failures: dict[str, Fact] = {}
    for kind, function in _LISTS.items():
        listed, failed = ask.ask(function, handle)
        if failed is not None and failed.value == NOT_OFFERED:  # before driver 510
            listed, failed = ask.ask(function.replace("_v3", "_v2"), handle)
        if failed is not None:
            failures[kind] = failed
        for process in listed or ():
            used = process.usedGpuMemory
            memory = Fact(None, "not available") if used is None else Fact(str(used))
            found.append(GpuProcess(int(process.pid), kind, memory))
    return {
        "processes": tuple(found),
        "processes_read": failures.get("compute", Fact(str(len(found)))),
        "mps": _mps(found, failures),
    }


def _mps(found: list[GpuProcess], failures: dict[str, Fact]) -> Fact:
    servers = {process.pid for process in found if process.kind == "mps"}
    servers |= {process.pid for process in found if _program(process.pid) == MPS_SERVER}
    if servers:
        return Fact(ON)
    for kind in ("compute", "mps"):
        if kind in failures and not failures[kind].known:
            return failures[kind]
    return Fact(OFF)


def _slices(ask: _Nvml, handle: Any) -> Iterator[MigDevice]:
    count, failed = ask.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    for index in range(0 if failed is not None else count):
        try:
            device = ask.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except ask.nvml.NVMLError as error:
            if error.value != ask.nvml.NVML_ERROR_NOT_FOUND:  # that place is empty
                yield MigDevice(ask.failure(error.value, str(error)))
            continue
        yield MigDevice(
            ask.fact("nvmlDeviceGetUUID", device),
            ask.fact("nvmlDeviceGetGpuInstanceId", device),
            ask.fact("nvmlDeviceGetComputeInstanceId", device),
        )


# --- links

_Ends = dict[str, int]
"""How many NVLinks of a GPU end where: at another GPU's UUID, or at a switch (`""`)."""


def _links(ask: _Nvml, handles: dict[str, Any], gpus: list[Gpu]) -> Iterator[Link]:
    at: dict[str, str] = {}
    for gpu in gpus:
        if gpu.pci.value is not None and gpu.uuid.value is not None:
            at[gpu.pci.value] = gpu.uuid.value
    ends: dict[str, _Ends | Fact] = {}
    for uuid, handle in handles.items():
        try:
            ends[uuid] = _nvlinks(ask, handle, at)
        except _Lost as lost:
            ends[uuid] = Fact(None, f"NVML: {lost}")
    for one, other in combinations(sorted(handles), 2):
        pair = handles[one], handles[other]
        try:
            p2p = ask.fact("nvmlDeviceGetP2PStatus", *pair, _P2P_READ, text=_one_of(_P2P))
            ancestor = ask.fact("nvmlDeviceGetTopologyCommonAncestor", *pair, text=_ancestor)
        except _Lost as lost:
            p2p = ancestor = Fact(None, f"NVML: {lost}")
        yield Link(one, other, _between(ends[one], ends[other], other), p2p, ancestor)


def _ancestor(level: int) -> str:
    return _ANCESTORS.get(level, f"code {level}")


def _nvlinks(ask: _Nvml, handle: Any, at: dict[str, str]) -> _Ends | Fact:
    """Count a GPU's active NVLinks by where they end."""
    ends: _Ends = {}
    for number in range(ask.nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = ask.nvml.nvmlDeviceGetNvLinkState(handle, number)
        except ask.nvml.NVMLError as error:
            # The first link that it does not have; some drivers call it an invalid argument.
            if error.value == ask.nvml.NVML_ERROR_INVALID_ARGUMENT and number > 0:
                break
            failed = ask.failure(error.value, str(error))
            if failed.value == NOT_SUPPORTED:
                break
            return failed
        if not active:
            continue
        end = _end(ask, handle, number, at)
        if isinstance(end, Fact):
            return end
        ends[end] = ends.get(end, 0) + 1
    return ends


def _end(ask: _Nvml, handle: Any, number: int, at: dict[str, str]) -> str | Fact:
    kind, failed = ask.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
    if failed is not None and not failed.known:
        return failed
    if failed is None and kind == ask.nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return ""
    pci, failed = ask.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
    if failed is not None:
        return failed if not failed.known else Fact(None, f"the end of NVLink {number}: {failed}")
    address = _pci_address(pci)
    # What is no GPU of ours is a switch, if the driver cannot say what it is; else no link to us.
    return at.get(address, address if kind is not None else "")


def _between(one: _Ends | Fact, other: _Ends | Fact, uuid: str) -> Fact:
    """Count the links of two GPUs to each other; a switch gives each as many as both have."""
    for end in (one, other):
        if isinstance(end, Fact):
            return end if not end.known else Fact(None, f"NVLinks: {end}")
    assert not isinstance(one, Fact)  # noqa: S101  # the loop has returned
    assert not isinstance(other, Fact)  # noqa: S101
    return Fact(str(one.get(uuid, 0) + min(one.get("", 0), other.get("", 0))))


# --- processes of the node


def _program(pid: int) -> str:
    """Return the name of a process's program; empty when it is gone, or of another namespace."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return Path(command.split(b"\0", 1)[0].decode(errors="replace")).name


def _programs(name: str) -> Iterator[int]:
    """Yield the processes of a program."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _program(int(entry.name)) == name:
            yield int(entry.name)


if __name__ == "__main__":
    main()
