"""The GPUs of a node and their driver, as they were seen once.

Each thing that is read is a `Fact`. What a card does not have is a value (`not supported`), and
so is what the driver has no function for; what could not be read is unknown, with the driver's
own words, and equals nothing. A GPU is named by its UUID only: its number changes with a reboot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from pitstop.model.fingerprint import NONE, Fact

NOT_SUPPORTED = "not supported"
"""The value of what this card does not have."""

NOT_OFFERED = "not offered by this driver"
"""The value of what driver or binding have no function for."""

ON, OFF = "on", "off"

NOT_READ = Fact(None, "not read")


class Answer(StrEnum):
    """What came of asking NVML.

    `none`: nothing here says that there is an NVIDIA driver. `no-driver`: its library is there,
    its module is not loaded. `crash` and `hang`: of the library, in a process of its own.
    """

    OK = "ok"
    NONE = "none"
    NO_LIBRARY = "no-library"
    NO_DRIVER = "no-driver"
    NO_BINDING = "no-binding"
    MISMATCH = "mismatch"
    ERROR = "error"
    CRASH = "crash"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver lists on a GPU.

    Attributes:
        pid: as the driver counts; in a container it may be the host's.
        kind: `compute`, `graphics` or `mps`.
        memory: bytes on this GPU.
    """

    pid: int
    kind: str
    memory: Fact

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"pid": self.pid, "kind": self.kind, "memory": _to_json(self.memory)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GpuProcess:
        """Rebuild it from `to_json`."""
        return GpuProcess(int(data["pid"]), str(data["kind"]), _from_json(data["memory"]))


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A slice of a GPU, with the numbers that the older form of its name is made of."""

    uuid: Fact
    gpu_instance: Fact = NOT_READ
    compute_instance: Fact = NOT_READ

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {f.name: _to_json(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MigDevice:
        """Rebuild it from `to_json`."""
        return MigDevice(**{f.name: _from_json(data.get(f.name)) for f in fields(MigDevice)})


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: in NVML's order when it was read. Never to be kept.
        lost: it has fallen off the bus; nothing else is asked of it then.
        pci: its address as the kernel writes it, `0000:3b:00.0`.
        memory: bytes in all. `memory_used`: bytes in use.
        ecc, mig: `on`, `off`, or with what a reset will make of it.
        mps: `on` when a server of NVIDIA's Multi-Process Service works on it.
        compute_mode: `default`, `exclusive-process` or `prohibited`.
        recovery: what the driver says has to be done to it; `none` when it is well.
        processes: what runs on it. Only all of it when `processes_read` is known, which is
            then their number.
    """

    index: int
    lost: bool = False
    uuid: Fact = NOT_READ
    name: Fact = NOT_READ
    serial: Fact = NOT_READ
    pci: Fact = NOT_READ
    vbios: Fact = NOT_READ
    compute_capability: Fact = NOT_READ
    memory: Fact = NOT_READ
    memory_used: Fact = NOT_READ
    ecc: Fact = NOT_READ
    mig: Fact = NOT_READ
    mps: Fact = NOT_READ
    compute_mode: Fact = NOT_READ
    persistence: Fact = NOT_READ
    recovery: Fact = NOT_READ
    processes_read: Fact = NOT_READ
    processes: tuple[GpuProcess, ...] = ()
    mig_devices: tuple[MigDevice, ...] = ()

    @property
    def label(self) -> str:
        """How to name it to a person."""
        return f"{self.uuid.value or f'GPU {self.index}, whose UUID is {self.uuid}'}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "index": self.index,
            "lost": self.lost,
            **{name: _to_json(getattr(self, name)) for name in GPU_FACTS},
            "processes": [process.to_json() for process in self.processes],
            "mig_devices": [device.to_json() for device in self.mig_devices],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Gpu:
        """Rebuild it from `to_json`. A field that is not there is unknown."""
        return Gpu(
            index=int(data["index"]),
            lost=bool(data["lost"]),
            processes=tuple(map(GpuProcess.from_json, data.get("processes", ()))),
            mig_devices=tuple(map(MigDevice.from_json, data.get("mig_devices", ()))),
            **{name: _from_json(data.get(name)) for name in GPU_FACTS},
        )


GPU_FACTS = tuple(
    f.name for f in fields(Gpu) if f.name not in ("index", "lost", "processes", "mig_devices")
)
"""The fields of a `Gpu` that are facts."""


@dataclass(frozen=True, slots=True)
class Link:
    """How two GPUs reach each other.

    Attributes:
        one, other: their UUIDs.
        nvlinks: the number of NVLinks between them, through switches too; `0` for none.
        p2p: `ok` when one may read the other's memory, else why not.
        ancestor: what they have in common on PCIe, as `nvidia-smi topo` names it: `PIX`, …, `SYS`.
    """

    one: str
    other: str
    nvlinks: Fact = NOT_READ
    p2p: Fact = NOT_READ
    ancestor: Fact = NOT_READ

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "one": self.one,
            "other": self.other,
            **{name: _to_json(getattr(self, name)) for name in _LINK_FACTS},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Link:
        """Rebuild it from `to_json`. A field that is not there is unknown."""
        return Link(
            str(data["one"]),
            str(data["other"]),
            **{name: _from_json(data.get(name)) for name in _LINK_FACTS},
        )


_LINK_FACTS = ("nvlinks", "p2p", "ancestor")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node has.

    Attributes:
        answer: whether NVML answered; if it is not `ok`, `words` says why and `gpus` is empty.
        driver: the version of the driver that answers.
        library: the version of the installed library (NVML), which answers even when it does not
            fit to the module.
        loaded: the version of the kernel's module; `none` when none is loaded.
        cuda: the newest CUDA that the driver knows, such as `13.0`.
        cards: NVIDIA GPUs on the PCI bus, whether a driver drives them or not.
        mps_control: the control daemon of the Multi-Process Service: `on` or `off`.
        gpus: in NVML's order; never to be relied on.
        links: one for each pair of GPUs that are not lost.
    """

    answer: Answer
    words: str = ""
    driver: Fact = NOT_READ
    library: Fact = NOT_READ
    loaded: Fact = NOT_READ
    cuda: Fact = NOT_READ
    cards: Fact = NOT_READ
    mps_control: Fact = NOT_READ
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()

    @property
    def has_gpus(self) -> bool:
        """Whether a GPU is listed, lost ones too."""
        return bool(self.gpus)

    def gpu(self, uuid: str) -> Gpu | None:
        """Return the GPU with this UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid.value == uuid), None)

    def at_rest(self) -> Inventory:
        """Return what it is when nothing uses it: what belongs into a checkpoint's manifest."""
        return replace(
            self,
            gpus=tuple(
                replace(gpu, memory_used=NOT_READ, processes_read=NOT_READ, processes=())
                for gpu in self.gpus
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `from_json` takes it back."""
        return {
            "answer": self.answer.value,
            "words": self.words,
            **{name: _to_json(getattr(self, name)) for name in _NODE_FACTS},
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "links": [link.to_json() for link in self.links],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Inventory:
        """Rebuild it from `to_json`. A fact that is not there is unknown.

        Raises:
            KeyError, TypeError, ValueError: it is not an inventory.
        """
        return Inventory(
            answer=Answer(data["answer"]),
            words=str(data["words"]),
            gpus=tuple(map(Gpu.from_json, data["gpus"])),
            links=tuple(map(Link.from_json, data["links"])),
            **{name: _from_json(data.get(name)) for name in _NODE_FACTS},
        )


_NODE_FACTS = ("driver", "library", "loaded", "cuda", "cards", "mps_control")

EMPTY = Inventory(
    Answer.NONE,
    "nothing here says that there is an NVIDIA driver",
    driver=Fact(NONE),
    library=Fact(NONE),
    loaded=Fact(NONE),
    cuda=Fact(NONE),
    cards=Fact("0"),
    mps_control=Fact(OFF),
)
"""A node without a GPU."""


def number(fact: Fact) -> int | None:
    """Return a fact's value as a number; None when it is unknown, or not a number."""
    value = fact.value
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


def _to_json(fact: Fact) -> dict[str, str]:
    return {"value": fact.value} if fact.value is not None else {"unknown": fact.reason}


def _from_json(data: Mapping[str, Any] | None) -> Fact:
    if data is None:
        return Fact(None, "not recorded")
    if "value" in data:
        return Fact(str(data["value"]))
    return Fact(None, str(data["unknown"]))
