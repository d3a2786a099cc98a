"""Calls of the CUDA checkpoint API, and how they were answered.

The API: cuda.core, `checkpoint.Process`; a process is running, locked, checkpointed or failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Call(StrEnum):
    """What is asked of the driver about one process."""

    STATE = "state"
    RESTORE_THREAD = "restore-thread"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


class ProcessState(StrEnum):
    """A process as the driver sees it."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CudaRequest:
    """One call.

    Attributes:
        timeout_ms: of a lock, after which the driver gives up; 0 is never.
        gpu_map: of a restore, from the UUID of each GPU that the kernel driver saw at the
            checkpoint to the one it is restored to; empty for the same GPUs.
    """

    pid: int
    call: Call
    timeout_ms: int = 0
    gpu_map: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "pid": self.pid,
            "call": self.call.value,
            "timeout_ms": self.timeout_ms,
            "gpu_map": dict(self.gpu_map),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CudaRequest:
        """Rebuild a request from `to_json`."""
        return CudaRequest(
            int(data["pid"]), Call(data["call"]), int(data["timeout_ms"]), dict(data["gpu_map"])
        )


@dataclass(frozen=True, slots=True)
class CudaAnswer:
    """How a call was answered.

    Attributes:
        value: of a state or a thread id, as text.
        error: the driver's words, or why there is no answer; empty when it succeeded.
        answered: whether the driver said anything at all. Without an answer the call may
            still have its effect, also later.
        sent: whether the driver was asked at all; False where it could not even be loaded.
        began: seconds since boot when it was called; `ended` when its end was known.
    """

    pid: int
    call: Call
    value: str = ""
    error: str = ""
    answered: bool = True
    sent: bool = True
    began: float = 0.0
    ended: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it did what was asked."""
        return not self.error

    def __str__(self) -> str:
        return f"CUDA {self.call} of pid {self.pid}: {self.error or self.value or 'done'}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data, for a trace."""
        return {
            "pid": self.pid,
            "call": self.call.value,
            "value": self.value,
            "error": self.error,
            "answered": self.answered,
            "sent": self.sent,
            "began": self.began,
            "ended": self.ended,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CudaAnswer:
        """Rebuild an answer from `to_json`."""
        return CudaAnswer(
            int(data["pid"]),
            Call(data["call"]),
            str(data["value"]),
            str(data["error"]),
            bool(data["answered"]),
            bool(data["sent"]),
            float(data["began"]),
            float(data["ended"]),
        )


@dataclass(frozen=True, slots=True)
class CudaLimits:
    """How long calls may take, in seconds.

    Attributes:
        lock: until all submitted GPU work has come to a stop. CRIU's plugin gives 10 s, which
            long kernels exceed (cuda-checkpoint#26).
        call: for what moves no memory.
        move: for a checkpoint or restore, which moves all memory of a GPU; 15 s were seen for
            one of 80 GB (cuda-checkpoint#29).
    """

    lock: float = 60.0
    call: float = 30.0
    move: float = 600.0

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CudaLimits:
        """Rebuild it from plain data; what another version of the engine wrote is left out."""
        known = {field.name for field in fields(CudaLimits)}
        return CudaLimits(**{n: float(v) for n, v in data.items() if n in known})
