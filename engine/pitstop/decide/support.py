"""What a driver can do with the state of a GPU, and which drivers and settings forbid it.

Data, with the public place of each. A branch that is not known to work does not; a driver whose
version cannot be read is unknown, and nothing is promised for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pitstop.model.fingerprint import NONE
from pitstop.model.inventory import NOT_SUPPORTED, OFF, Answer, Gpu, Inventory

X86, ARM = "x86_64", "aarch64"


class Feature(StrEnum):
    """Something that a driver can do."""

    TOGGLE = "toggle"
    ACTIONS = "actions"
    LOCK_DEADLINE = "lock-deadline"
    NVML = "nvml"
    API = "api"
    MIGRATION = "migration"
    IPC = "ipc"
    CUSTOM_STORAGE = "custom-storage"
    MIG = "mig"
    MPS = "mps"
    UVM = "uvm"


@dataclass(frozen=True, slots=True)
class Since:
    """From which driver branch on a feature works.

    Attributes:
        what: in words.
        branches: the first branch by machine, as the kernel names it; without an entry in none
            that is known.
        note: what else has to be known.
        sources: where it is documented or was reported.
    """

    feature: Feature
    what: str
    branches: Mapping[str, int]
    note: str
    sources: tuple[str, ...]


_README = "cuda-checkpoint: README"

TABLE: tuple[Since, ...] = (
    Since(
        Feature.TOGGLE,
        "save and restore of one process, in one step",
        {X86: 550, ARM: 595},
        "pitstop does not use it: it has no lock of its own, so no boundary for several processes",
        (_README,),
    ),
    Since(
        Feature.ACTIONS,
        "lock, checkpoint, restore and unlock as single steps",
        {X86: 555, ARM: 595},
        "by the command cuda-checkpoint; pitstop calls the API",
        (_README, "criu#2953"),
    ),
    Since(
        Feature.LOCK_DEADLINE,
        "a lock that gives up after a time",
        {X86: 570, ARM: 595},
        "",
        (_README,),
    ),
    Since(
        Feature.NVML,
        "processes that use NVML too",
        {X86: 570, ARM: 595},
        "before, a process that had called NVML kept /dev/nvidiactl open",
        (_README, "cuda-checkpoint#7"),
    ),
    Since(
        Feature.API,
        "all of it by API, through cuda-python",
        {X86: 570, ARM: 595},
        "CUDA 12.8; this is what pitstop needs. A GB10 on branch 580 answers 801",
        (_README, "cuda-python#1983", "cuda-checkpoint#51"),
    ),
    Since(
        Feature.MIGRATION,
        "restore onto other GPUs",
        {X86: 580, ARM: 595},
        "of the same model and count; the map covers every GPU of the node",
        (_README, "cuda-checkpoint#18"),
    ),
    Since(
        Feature.IPC,
        "memory shared by cuIpcGetMemHandle",
        {X86: 610, ARM: 610},
        "only in a job (cuda-checkpoint --launch-job), one process after another; not "
        "cuMemExportToShareableHandle, and NVLS multicast hangs",
        (_README, "cuda-checkpoint#56", "nccl#2340"),
    ),
    Since(
        Feature.CUSTOM_STORAGE,
        "GPU memory straight to a store, not through the host's memory",
        {},
        "a developer preview in CUDA 13.4; pitstop does not use it",
        ("CUDA Driver API 13.4: CUDA Checkpointing",),
    ),
    Since(Feature.MIG, "slices of a GPU (MIG)", {}, "", ("cuda-checkpoint#42",)),
    Since(
        Feature.MPS,
        "GPUs shared through the Multi-Process Service",
        {},
        "",
        ("criu: plugins/cuda/README.md",),
    ),
    Since(
        Feature.UVM,
        "managed memory (cudaMallocManaged)",
        {},
        "",
        (_README, "criu: plugins/cuda/README.md"),
    ),
)


@dataclass(frozen=True, slots=True)
class Denied:
    """A driver that is known to fail though its branch works.

    Attributes:
        version: of the driver; longer versions that begin so are meant too.
        why: what happens.
        fix: what to do.
    """

    version: str
    why: str
    fix: str
    sources: tuple[str, ...]

    def says(self, driver: str) -> bool:
        """Tell whether a driver is this one."""
        return driver == self.version or driver.startswith(f"{self.version}.")


_BETTER = "driver 575.57 or newer (580 to move to other GPUs)"

DENIED: tuple[Denied, ...] = (
    Denied(
        "570.86",
        'PyTorch cannot be checkpointed: "operation not supported"',
        _BETTER,
        ("cuda-checkpoint#34", "cuda-checkpoint#24"),
    ),
    Denied(
        "570.158",
        'PyTorch cannot be checkpointed: "operation not supported"',
        _BETTER,
        ("cuda-checkpoint#34", "cuda-checkpoint#24"),
    ),
    Denied(
        "610.57.04",
        "the lock ends the process it is asked for (SIGSEGV in libcuda, H100)",
        "another driver of branch 580 or newer",
        ("cuda-checkpoint#58",),
    ),
)


@dataclass(frozen=True, slots=True)
class Support:
    """What one driver can do on one machine.

    Attributes:
        driver: its version, None when unknown.
        machine: the processor, as the kernel names it.
        features: what works.
        denied: the entry of the deny list that it is, if any; nothing works then.
        unknown: why nothing can be said; empty when the table knows the driver.
    """

    driver: str | None
    machine: str
    features: frozenset[Feature] = frozenset()
    denied: Denied | None = None
    unknown: str = ""

    def has(self, feature: Feature) -> bool:
        """Whether something works."""
        return feature in self.features

    def why_not(self, feature: Feature) -> str:
        """Say why something does not work; empty when it does."""
        if self.has(feature):
            return ""
        if self.unknown:
            return self.unknown
        if self.denied is not None:
            return f"driver {self.driver}: {self.denied.why} ({self.denied.sources[0]})"
        since = since_of(feature)
        first = since.branches.get(self.machine)
        if first is None:
            return f"{since.what}: no driver is known that can ({since.sources[0]})"
        return (
            f"{since.what}: on {self.machine} from driver {first} on, here is {self.driver} "
            f"({since.sources[0]})"
        )


def since_of(feature: Feature) -> Since:
    """Return a feature's line of the table."""
    return next(since for since in TABLE if since.feature is feature)


def branch_of(driver: str) -> int | None:
    """Return the branch of a driver's version, `580` of `580.65.06`; None when it is no version."""
    found = re.fullmatch(r"(\d{1,4})(\.\d{1,4}){1,3}", driver, re.ASCII)
    return int(found.group(1)) if found else None


def support_of(driver: str | None, machine: str) -> Support:
    """Say what a driver can do.

    Args:
        driver: its version; None when it is unknown.
        machine: the processor, as the kernel names it: `x86_64`, `aarch64`.
    """
    if driver is None:
        return Support(None, machine, unknown="the driver's version is not known")
    branch = branch_of(driver)
    if branch is None:
        return Support(driver, machine, unknown=f"{driver!r} is not the version of a driver")
    if not any(machine in since.branches for since in TABLE):
        return Support(
            driver, machine, unknown=f"no driver is known to save GPU state on {machine!r}"
        )
    denied = next((entry for entry in DENIED if entry.says(driver)), None)
    if denied is not None:
        return Support(driver, machine, denied=denied)
    return Support(
        driver,
        machine,
        frozenset(
            since.feature
            for since in TABLE
            if machine in since.branches and branch >= since.branches[machine]
        ),
    )


class Kind(StrEnum):
    """What an obstacle is about.

    `broken`: GPUs or driver do not work as they should. `driver`: it works, and cannot save
    state. `setting`: it could, but not as GPUs are set up or used.
    """

    BROKEN = "broken"
    DRIVER = "driver"
    SETTING = "setting"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something of a node that keeps GPU state from being saved.

    Attributes:
        what: the thing. `where`: driver or GPU.
        why: what follows from it, with its reference. `fix`: what to do.
    """

    kind: Kind
    what: str
    where: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what} at {self.where}: {self.why}; {self.fix}"


RELOAD = (
    "reboot, or end all GPU processes and reload the module: "
    "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia"
)
_LOOK = "nvidia-smi -q; dmesg | grep -i nvrm"


def why_not_checkpoint(inventory: Inventory, machine: str) -> tuple[str, ...]:
    """Say why no GPU state can be saved on a node; empty when it can.

    Args:
        inventory: the node as it is now.
        machine: the processor, as the kernel names it.
    """
    return tuple(map(str, obstacles(inventory, machine)))


def obstacles(inventory: Inventory, machine: str) -> tuple[Obstacle, ...]:
    """Return what keeps GPU state from being saved on a node, each with what to do."""
    if inventory.answer is not Answer.OK:
        return (_no_answer(inventory),)
    return (
        *_driver(inventory, machine),
        *(found for gpu in inventory.gpus for found in _gpu(gpu)),
        *_none(inventory),
    )


def _no_answer(inventory: Inventory) -> Obstacle:
    if inventory.answer is Answer.MISMATCH:
        return _mismatch(inventory)
    words = inventory.words or inventory.answer.value
    why, fix = {
        Answer.NONE: ("there is no GPU to save the state of", "a node with a GPU"),
        Answer.NO_LIBRARY: (
            "the driver's library NVML is not installed",
            "install the NVIDIA driver, then reboot",
        ),
        Answer.NO_DRIVER: ("the driver's module is not loaded", "modprobe nvidia && nvidia-smi"),
        Answer.NO_BINDING: ("NVML cannot be asked", "pip install nvidia-ml-py"),
        Answer.CRASH: ("the driver's library crashes", f"{_LOOK}; reboot the node"),
        Answer.HANG: ("the driver does not answer", f"{_LOOK}; reboot the node"),
    }.get(inventory.answer, ("NVML does not answer", _LOOK))
    return Obstacle(Kind.BROKEN, "the driver", "NVML", f"{why} ({words})", fix)


def _mismatch(inventory: Inventory) -> Obstacle:
    return Obstacle(
        Kind.BROKEN,
        "driver and library of different versions",
        f"library {inventory.library}, module {inventory.loaded}",
        "the driver was upgraded while the old module stayed loaded: a checkpoint would mix "
        "versions (nvidia-smi(1))",
        RELOAD,
    )


def _driver(inventory: Inventory, machine: str) -> Iterator[Obstacle]:
    versions = {
        fact.value
        for fact in (inventory.driver, inventory.loaded)
        if fact.value not in (None, NONE)
    }
    if len(versions) > 1:
        yield _mismatch(inventory)
        return
    where = f"driver {inventory.driver}"
    support = support_of(inventory.driver.value, machine)
    if support.unknown:
        fix = _LOOK if support.driver is None else "a driver and machine of docs/gpu-support.md"
        yield Obstacle(Kind.DRIVER, "an unknown driver", where, support.unknown, fix)
    elif support.denied is not None:
        denied = support.denied
        yield Obstacle(
            Kind.DRIVER,
            "a driver that is known to fail",
            where,
            f"{denied.why} ({denied.sources[0]})",
            denied.fix,
        )
    elif not support.has(Feature.API):
        first = since_of(Feature.API).branches[machine]
        yield Obstacle(
            Kind.DRIVER,
            "a driver that is too old",
            where,
            support.why_not(Feature.API),
            f"upgrade the NVIDIA driver to {first} or newer (580 to move to other GPUs)",
        )


def _gpu(gpu: Gpu) -> Iterable[Obstacle]:
    where = gpu.label
    if gpu.lost:
        yield Obstacle(
            Kind.BROKEN,
            "a lost GPU",
            where,
            "it has fallen off the bus, and the driver's calls may hang (NVIDIA: Xid Errors, 79)",
            "reboot the node, and see that the GPU is back; else it needs hands",
        )
        return
    if gpu.mig.value is None:
        yield Obstacle(
            Kind.SETTING, "an unknown MIG mode", where, f"it could not be read ({gpu.mig})", _LOOK
        )
    elif gpu.mig.value not in (OFF, NOT_SUPPORTED):
        yield Obstacle(
            Kind.SETTING,
            f"MIG {gpu.mig.value}",
            where,
            "the state of slices cannot be saved (cuda-checkpoint#42)",
            "a node without MIG, or a cold start",
        )
    if gpu.mps.value is None:
        yield Obstacle(
            Kind.SETTING, "unknown use of MPS", where, f"it could not be read ({gpu.mps})", _LOOK
        )
    elif gpu.mps.value != OFF:
        yield Obstacle(
            Kind.SETTING,
            "the Multi-Process Service",
            where,
            "state that goes through an MPS server cannot be saved (criu: plugins/cuda/README.md)",
            "start the workload without MPS: echo quit | nvidia-cuda-mps-control",
        )


def _none(inventory: Inventory) -> Iterable[Obstacle]:
    if not inventory.gpus:
        yield Obstacle(
            Kind.BROKEN, "no GPU", f"driver {inventory.driver}", "the driver shows none", _LOOK
        )
