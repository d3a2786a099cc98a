"""The way back: every CUDA process of a workload to `running`, from wherever it stands.

What was asked before is not trusted: a call without an answer may have had its effect, and one
that failed may have had half of it. So each round asks the driver for the states anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pitstop.decide.cuda_boundary import call_towards_running, sets_of
from pitstop.model.cuda import Call, CudaAnswer, CudaLimits, CudaRequest, ProcessState
from pitstop.node.processes import Identity

ROUNDS = 6
"""Three are needed from `checkpointed`, the last to look; the others are for what fails once."""

PATIENCE = 2
"""Calls of one process that may stay without an answer; each has cost its whole deadline."""


class Caller(Protocol):
    """Whoever makes calls: `pitstop.node.cuda.driver.Driver`, or the guard itself."""

    def ask(self, requests: Sequence[CudaRequest], seconds: float) -> list[CudaAnswer]:
        """Make calls at once, one for a process, and return the answers in any order."""


@dataclass
class Undone:
    """What became of the processes.

    Attributes:
        running: seen to be running by the driver.
        ended: they live no more.
        lost: pid to why its GPU state is gone or cannot be got at.
        unasked: why the driver could not be asked about those that are left. Nothing is known of
            them then, least of all that anything is lost.
        trace: all calls that were made.
    """

    running: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    unasked: str = ""
    trace: list[CudaAnswer] = field(default_factory=list)

    def losses(self, held: Collection[int] = ()) -> dict[int, str]:
        """Return pid to what is lost of it.

        Args:
            held: processes whose GPU state was, or may have been, in our hands. Any other that
                has ended has ended by itself, and its workload knows what to make of that.
        """
        gone = {pid: "it ended with its GPU state parked" for pid in self.ended if pid in held}
        return {**gone, **self.lost}

    def __str__(self) -> str:
        said = [f"pid {pid}: {why}" for pid, why in sorted(self.lost.items())]
        said += [f"pid {pid} has ended" for pid in self.ended]
        said += [self.unasked] if self.unasked else []
        return "; ".join(said) or f"{len(self.running)} CUDA processes run"


def bring_back(
    caller: Caller, processes: Sequence[Identity], limits: CudaLimits, in_turn: bool
) -> Undone:
    """Restore and unlock what is not running, last process first, and verify.

    On the GPUs it came from: it has never left its node. `in_turn`: the driver has to take the
    processes one after another.
    """
    undone = Undone()
    left = list(reversed(processes))
    for _round in range(ROUNDS):
        left = _without_ended(left, undone)
        worth = [p for p in left if _unanswered(p.pid, undone.trace) < PATIENCE]
        states = _states(caller, worth, limits, undone)
        undone.unasked = next((a.error for a in undone.trace if not a.sent), "")
        if undone.unasked:
            return undone
        running = {pid for pid, state in states.items() if state is ProcessState.RUNNING}
        undone.running += [p.pid for p in left if p.pid in running]
        left = [p for p in left if p.pid not in running]
        if all(states.get(p.pid) is ProcessState.FAILED for p in worth if p.pid not in running):
            break
        due = [(p.pid, call_towards_running(states[p.pid])) for p in left if p.pid in states]
        for kind, seconds in ((Call.RESTORE, limits.move), (Call.UNLOCK, limits.call)):
            requests = [CudaRequest(pid, call) for pid, call in due if call is kind]
            for some in sets_of(requests, in_turn):
                undone.trace += caller.ask(some, seconds)
    for process in _without_ended(left, undone):
        undone.lost[process.pid] = _why(process.pid, undone.trace)
    return undone


def _unanswered(pid: int, trace: Sequence[CudaAnswer]) -> int:
    return sum(answer.pid == pid and not answer.answered for answer in trace)


def _without_ended(processes: list[Identity], undone: Undone) -> list[Identity]:
    undone.ended += [process.pid for process in processes if not process.alive()]
    return [process for process in processes if process.alive()]


def _states(
    caller: Caller, processes: Sequence[Identity], limits: CudaLimits, undone: Undone
) -> dict[int, ProcessState]:
    """Ask for the states; what cannot be told is not in the answer."""
    requests = [CudaRequest(process.pid, Call.STATE) for process in processes]
    answers = caller.ask(requests, limits.call) if requests else []
    undone.trace += answers
    return {a.pid: ProcessState(a.value) for a in answers if a.ok}


def _why(pid: int, trace: Sequence[CudaAnswer]) -> str:
    """Say what kept a process from running: its last error, or its last state."""
    of_it = [answer for answer in trace if answer.pid == pid]
    state = next((a for a in reversed(of_it) if a.call is Call.STATE), None)
    if state is None:
        return "the driver was never asked for its state"
    if not state.ok:
        return f"its state cannot be told: {state.error}"
    if state.value == ProcessState.FAILED:
        return "the driver gave it up (state failed): its GPU memory is lost"
    error = next((a for a in reversed(of_it) if not a.ok), None)
    return f"it is {state.value}" + (f", and {error.call} failed: {error.error}" if error else "")
