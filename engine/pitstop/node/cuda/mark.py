"""On disk: that GPU state of a workload is not where its processes need it.

Written before the first lock and removed once all processes are seen to run, or are gone. So
whoever comes after a process that was killed in between knows what to bring back.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pitstop.images.durable import read_json, write_json
from pitstop.model.cuda import CudaLimits
from pitstop.node.paths import boot_id
from pitstop.node.processes import Identity
from pitstop.node.record import WorkloadState

FILE = "gpus.json"

What = Literal["checkpoint", "suspended"]


@dataclass(frozen=True, slots=True)
class GpuMark:
    """Whose GPU state is parked, and why.

    Attributes:
        what: `checkpoint` while one is taken; `suspended` until it is resumed.
        root: of the workload.
        processes: the CUDA processes.
        in_turn: the driver has to take them one after another.
        limits: how long its calls may take.
        data: what else is known, for a resume.
        token: tells this mark from any other.
    """

    what: What
    run: str
    root: Identity
    processes: tuple[Identity, ...]
    in_turn: bool
    limits: CudaLimits
    data: dict[str, Any] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def lives(self) -> bool:
        """Whether any of the processes still runs."""
        return any(process.alive() for process in self.processes)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "what": self.what,
            "run": self.run,
            "root": [self.root.pid, self.root.start],
            "processes": [[process.pid, process.start] for process in self.processes],
            "in_turn": self.in_turn,
            "limits": asdict(self.limits),
            "data": self.data,
            "token": self.token,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GpuMark:
        """Rebuild it from `to_json`."""
        [root] = _identities([data["root"]])
        return GpuMark(
            data["what"],
            str(data["run"]),
            root,
            _identities(data["processes"]),
            bool(data["in_turn"]),
            CudaLimits.from_json(data["limits"]),
            data["data"],
            str(data["token"]),
        )


def set_mark(files: WorkloadState, mark: GpuMark) -> None:
    """Write it, durably."""
    write_json(files.directory / FILE, {**mark.to_json(), "boot_id": boot_id()})


def read_mark(files: WorkloadState) -> GpuMark | None:
    """Return it; None where there is none, or its processes are gone, as after a reboot."""
    written = read_json(files.directory / FILE)
    if written is None or written["boot_id"] != boot_id():
        return None
    mark = GpuMark.from_json(written)
    return mark if mark.lives else None


def clear_mark(files: WorkloadState) -> None:
    """Remove it."""
    (files.directory / FILE).unlink(missing_ok=True)


def _identities(written: Sequence[Sequence[int]]) -> tuple[Identity, ...]:
    return tuple(Identity(int(pid), int(start)) for pid, start in written)
