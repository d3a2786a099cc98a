"""The GPUs of this node. No GPU, no driver, and a driver that crashes are values, not errors."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pitstop.decide.support import why_not_checkpoint
from pitstop.decide.topology import links_text
from pitstop.model.fingerprint import NONE, Fact
from pitstop.model.inventory import EMPTY, Answer, Gpu, Inventory, number
from pitstop.node.capture import Captured, capture

DEADLINE = 15.0
"""Seconds in which NVML has to answer. A driver without persistence starts every GPU first."""

LIBRARY = "libnvidia-ml.so.1"
_MODULE = Path("/proc/driver/nvidia/version")
_CONTROL = Path("/dev/nvidiactl")
_BUS = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"

FIELDS = ("name", "uuid", "vbios", "memory", "compute_capability", "ecc", "mig")
"""What of each GPU is part of the fingerprint."""


def read_inventory(deadline: float = DEADLINE) -> Inventory:
    """Look at all GPUs. What cannot be read is unknown, with the reason; it never raises.

    NVML is asked in a process of its own, which is left behind if nothing ends it. On a node
    where nothing says that there is a driver, no process is started.

    Args:
        deadline: seconds NVML has.
    """
    cards, loaded = pci_cards(_BUS), _loaded()
    if not cards and loaded.value == NONE and not _CONTROL.exists() and not library_is_there():
        return EMPTY
    found = _ask(deadline)
    return replace(found, loaded=loaded, cards=Fact(str(cards)))


def describe() -> dict[str, Any]:
    """Return the machine, its GPUs, and what keeps their state from being saved.

    Returns:
        `machine` (the processor, as the kernel names it), `inventory` (`Inventory.to_json`) and
        `why_not` (texts; none when GPU state can be saved).
    """
    found, machine = read_inventory(), os.uname().machine
    return {
        "machine": machine,
        "inventory": found.to_json(),
        "why_not": list(why_not_checkpoint(found, machine)),
    }


def gpu_facts(inventory: Inventory | None = None) -> dict[str, Fact]:
    """Return the GPU and driver part of the fingerprint.

    Without a driver and a GPU `gpu.count` is 0 and the driver none. When NVML does not answer
    all of it is unknown, with NVML's own words as the reason.

    GPUs are numbered by model, memory and the like, and by UUID last: so the numbers survive a
    reboot, and are the same on every node that has the same set.

    Args:
        inventory: what was read already; without it, it is read now.
    """
    found = read_inventory() if inventory is None else inventory
    if has_no_driver(found):
        return {"gpu.count": Fact("0"), "driver.version": Fact(NONE), "cuda.version": Fact(NONE)}
    if found.answer is not Answer.OK:
        unknown = Fact(None, f"{found.answer.value}: {found.words}" if found.words else "no answer")
        return dict.fromkeys(("gpu.count", "driver.version", "cuda.version"), unknown)
    facts = {
        "gpu.count": Fact(str(len(found.gpus))),
        "driver.version": _driver(found),
        "cuda.version": found.cuda,
    }
    if found.gpus:
        facts["gpu.links"] = links_text(found.gpus, found.links)
    for at, gpu in enumerate(sorted(found.gpus, key=_order)):
        facts.update({f"gpu.{at}.{name}": getattr(gpu, name) for name in FIELDS})
    return facts


def has_no_driver(found: Inventory) -> bool:
    """Whether this node is known to have no GPU that a driver could drive."""
    if found.answer is Answer.NONE:
        return True
    missing = found.answer in (Answer.NO_LIBRARY, Answer.NO_DRIVER)
    return missing and found.loaded.value == NONE and number(found.cards) == 0


def pci_cards(devices: Path) -> int:
    """Count NVIDIA display and 3D controllers on the PCI bus, driver or not."""
    return sum(
        _attribute(device / "vendor") == _NVIDIA
        and _attribute(device / "class").startswith(_DISPLAY)
        for device in (devices.iterdir() if devices.is_dir() else ())
    )


def _attribute(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # it has gone from the bus while we looked


def library_is_there() -> bool:
    """Whether NVML's library could be loaded. It is not: its code runs in the probe only."""
    directories = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    directories += ["/lib", "/usr/lib", "/lib64", "/usr/lib64"]
    if any((Path(directory) / LIBRARY).exists() for directory in directories if directory):
        return True
    try:
        return LIBRARY.encode() in Path("/etc/ld.so.cache").read_bytes()
    except FileNotFoundError:
        return False


def module_version(text: str) -> str | None:
    """Read the version of the loaded module from /proc/driver/nvidia/version."""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", text, re.MULTILINE)
    return found.group(1) if found else None


def _loaded() -> Fact:
    try:
        version = module_version(_MODULE.read_text(errors="replace"))
    except FileNotFoundError:
        return Fact(NONE)
    except OSError as error:
        return Fact(None, f"{_MODULE}: {error.strerror}")
    return Fact(version) if version else Fact(None, f"{_MODULE} names no version")


def _ask(deadline: float) -> Inventory:
    try:
        said = capture([sys.executable, "-m", "pitstop.node.gpus_probe"], deadline)
    except OSError as error:
        return Inventory(Answer.ERROR, f"{sys.executable}: {error.strerror}")
    if said.status == 0:
        try:
            return Inventory.from_json(json.loads(said.out.strip().splitlines()[-1]))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            return Inventory(Answer.ERROR, f"its answer cannot be read: {error!r}")
    return _failed(said, deadline)


def _failed(said: Captured, deadline: float) -> Inventory:
    if said.status is None:
        return Inventory(Answer.HANG, f"NVML gave no answer in {deadline:g} s")
    if said.status < 0:
        return Inventory(Answer.CRASH, f"NVML ended by {_signal(-said.status)}")
    tail = "".join(said.err.strip().splitlines()[-1:])[:200]
    return Inventory(Answer.ERROR, f"exit status {said.status} {tail}".strip())


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _driver(found: Inventory) -> Fact:
    """Return the driver's version, unless another one is loaded than answers."""
    if found.loaded.value in (None, NONE, found.driver.value) or not found.driver.known:
        return found.driver
    return Fact(
        None, f"driver/library version mismatch: {found.driver} answers, {found.loaded} is loaded"
    )


def _order(gpu: Gpu) -> tuple[tuple[bool, str], ...]:
    keys = ("name", "memory", "compute_capability", "ecc", "mig", "vbios", "uuid", "pci")
    return tuple((not getattr(gpu, key).known, getattr(gpu, key).value or "") for key in keys)
