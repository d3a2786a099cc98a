"""All CUDA processes of a workload at one boundary: lock all, and only then checkpoint all.

A lock waits for the GPU work that was submitted, and ranks wait for each other in collectives:
locked one by one they would wait for ever (cuda-checkpoint#30). So all are asked at once, with
one deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pitstop.decide.cuda_boundary import sets_of
from pitstop.decide.failures import Where
from pitstop.model.cuda import Call, CudaAnswer, CudaLimits, CudaRequest, ProcessState
from pitstop.node.cuda.undo import Caller, Undone, bring_back
from pitstop.node.processes import Identity

WHERE = {
    Call.LOCK: Where.CUDA_LOCK,
    Call.CHECKPOINT: Where.CUDA_CHECKPOINT,
    Call.RESTORE: Where.CUDA_RESTORE,
    Call.UNLOCK: Where.CUDA_UNLOCK,
}
"""What the failure catalogue calls these calls."""

LOCK_GRACE = 5.0
"""Seconds for the driver to say that the deadline of a lock has passed."""


class BoundaryFailedError(Exception):
    """A call failed. The processes are wherever they are: they have to be brought back.

    Attributes:
        lines: what failed, a line for each process.
        where: at which call, for the failure catalogue.
    """

    def __init__(self, lines: Sequence[str], where: Where) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)
        self.where = where


class Boundary:
    """The CUDA processes of one workload.

    Args:
        in_turn: the driver has to take them one after another, but for locks.

    Attributes:
        in_turn: as given.
        trace: all calls that were made, in the order of their ends.
    """

    def __init__(
        self, caller: Caller, processes: Sequence[Identity], limits: CudaLimits, in_turn: bool
    ) -> None:
        self._caller = caller
        self._processes = tuple(processes)
        self._limits = limits
        self.in_turn = in_turn
        self.trace: list[CudaAnswer] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes, as this machine counts."""
        return tuple(process.pid for process in self._processes)

    def lock(self) -> None:
        """Lock all: their GPU work comes to a stop, and no new work is taken.

        Raises:
            BoundaryFailedError: not all could be locked in time.
        """
        timeout_ms = max(1, int(self._limits.lock * 1000))
        requests = [CudaRequest(pid, Call.LOCK, timeout_ms=timeout_ms) for pid in self.pids]
        self._all(requests, self._limits.lock + LOCK_GRACE, at_once=True)

    def checkpoint(self) -> None:
        """Bring all GPU state into the processes' own memory, and see that it is so.

        Raises:
            BoundaryFailedError: not all of it could be.
        """
        self._expect(ProcessState.LOCKED, Where.CUDA_LOCK)
        requests = [CudaRequest(pid, Call.CHECKPOINT) for pid in self.pids]
        self._all(requests, self._limits.move)
        self._expect(ProcessState.CHECKPOINTED, Where.CUDA_CHECKPOINT)

    def restore(self, gpu_map: Mapping[str, str]) -> None:
        """Bring all GPU state back onto the GPUs, let the processes go on, and see that they do.

        Args:
            gpu_map: from each GPU that there was to one that there is; empty for the same ones.

        Raises:
            BoundaryFailedError: not all of it could be.
        """
        self._expect(ProcessState.CHECKPOINTED, Where.CUDA_RESTORE)
        requests = [CudaRequest(pid, Call.RESTORE, gpu_map=gpu_map) for pid in self.pids]
        self._all(requests, self._limits.move)
        self._all([CudaRequest(pid, Call.UNLOCK) for pid in self.pids], self._limits.call)
        self._expect(ProcessState.RUNNING, Where.CUDA_UNLOCK)

    def undo(self) -> Undone:
        """Bring every process back to running, whatever was done before, and verify it."""
        undone = bring_back(self._caller, self._processes, self._limits, self.in_turn)
        self.trace += undone.trace
        return undone

    def _all(self, requests: Sequence[CudaRequest], seconds: float, at_once: bool = False) -> None:
        for some in sets_of(requests, self.in_turn and not at_once):
            answers = self._caller.ask(some, seconds)
            self.trace += answers
            failed = [str(answer) for answer in answers if not answer.ok]
            if failed:
                raise BoundaryFailedError(failed, WHERE[some[0].call])

    def _expect(self, state: ProcessState, where: Where) -> None:
        """See that a call has done what it says: its success is not the state."""
        answers = self._caller.ask(
            [CudaRequest(pid, Call.STATE) for pid in self.pids], self._limits.call
        )
        self.trace += answers
        wrong = [
            str(answer) if not answer.ok else f"pid {answer.pid} is {answer.value}, not {state}"
            for answer in answers
            if answer.value != state
        ]
        if wrong:
            raise BoundaryFailedError(wrong, where)
