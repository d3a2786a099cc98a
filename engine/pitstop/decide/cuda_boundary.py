"""What follows from the states of CUDA processes, and what a trace of calls proves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pitstop.model.cuda import Call, CudaAnswer, CudaRequest, ProcessState

if TYPE_CHECKING:
    from pitstop.model.manifest import CudaSaved


def call_towards_running(state: ProcessState) -> Call | None:
    """Return the call that brings a process one step nearer to running.

    None when it runs, and when nothing does: from `failed` there is no way back.
    """
    return {ProcessState.CHECKPOINTED: Call.RESTORE, ProcessState.LOCKED: Call.UNLOCK}.get(state)


@dataclass(frozen=True, slots=True)
class BoundaryProof:
    """What a trace says of the boundary. Times are seconds since boot.

    Attributes:
        processes: how many were checkpointed.
        locked: when the last of them was known to be locked.
        checkpointed: when the first checkpoint was asked for.
    """

    processes: int
    locked: float
    checkpointed: float

    @property
    def holds(self) -> bool:
        """Whether nothing was checkpointed before all were locked."""
        return self.processes > 0 and self.locked <= self.checkpointed


def proof_of(trace: Iterable[CudaAnswer]) -> BoundaryProof | None:
    """Read the boundary from the calls of one checkpoint; None when nothing was checkpointed.

    A process that was checkpointed without ever having been locked makes the proof fail.
    """
    calls = [answer for answer in trace if answer.ok]
    locks = {answer.pid: answer.ended for answer in calls if answer.call is Call.LOCK}
    taken = {answer.pid: answer.began for answer in calls if answer.call is Call.CHECKPOINT}
    if not taken:
        return None
    locked = max((locks.get(pid, float("inf")) for pid in taken), default=0.0)
    return BoundaryProof(len(taken), locked, min(taken.values()))


def sets_of(requests: Sequence[CudaRequest], in_turn: bool) -> list[list[CudaRequest]]:
    """Return what may be called at once, set by set."""
    if in_turn:
        return [[request] for request in requests]
    return [list(requests)] if requests else []


def summary_of(saved: CudaSaved) -> dict[str, Any]:
    """Return what a run needs to know of the GPU state in a checkpoint."""
    proof = proof_of(CudaAnswer.from_json(call) for call in saved.trace)
    return {
        "processes": len(saved.pids),
        "gpus": len(saved.holds),
        "bytes": sum(saved.holds.values()),
        "all_locked": proof.locked if proof else None,
        "first_checkpointed": proof.checkpointed if proof else None,
        "one_boundary": proof is not None and proof.holds,
        "trace": list(saved.trace),
    }
