"""The failure catalogue: what CRIU, CUDA, NVML and the kernel say, and what to do about it.

Data, with the public place where each was reported. The same words mean different things at a
dump and at a restore, so an entry says where it holds. What is not in it is called unknown, and
is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pitstop.decide.failures_criu import CRIU
from pitstop.decide.failures_cuda import CUDA
from pitstop.decide.failures_gpu import GPU
from pitstop.decide.known import Action, Known, Where

__all__ = ["CATALOGUE", "UNKNOWN", "Action", "Judged", "Known", "Where", "classify", "judge"]

CATALOGUE: tuple[Known, ...] = (*CRIU, *CUDA, *GPU)

_CALL = re.compile(r"\bCUDA (lock|checkpoint|restore|unlock) of pid \d+:")
_CALLS = {
    "lock": Where.CUDA_LOCK,
    "checkpoint": Where.CUDA_CHECKPOINT,
    "restore": Where.CUDA_RESTORE,
    "unlock": Where.CUDA_RESTORE,
}
_COSTS = tuple(Action)
"""What helps, the costliest last."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What follows from the lines of a failure.

    Attributes:
        name: of the entry that decides; empty when the failure is unknown.
        hint: causes and ways out, in words; empty when it is unknown.
        retryable: whether the same again may help; None when it is unknown.
    """

    name: str = ""
    hint: str = ""
    retryable: bool | None = None


UNKNOWN = Judged()


def classify(lines: Iterable[str], where: Where) -> tuple[Known, ...]:
    """Return the known failures that lines of a log speak of, in the order of the lines.

    An empty answer means that it is unknown: say so, with the log's end.

    Args:
        lines: of one log.
        where: at what they were said; a line that names a call of CUDA says so itself.
    """
    found: dict[str, Known] = {}
    for line in lines:
        call = _CALL.search(line)
        at = _CALLS[call.group(1)] if call else where
        for known in CATALOGUE:
            if at in known.where and known.says(line):
                found.setdefault(known.name, known)
    return tuple(found.values())


def judge(lines: Iterable[str], where: Where) -> Judged:
    """Return what follows from a failure: of several known ones the costliest decides.

    So one rank's lock that timed out is worth a retry, but not beside another that has lost
    its state.
    """
    found = classify(lines, where)
    if not found:
        return UNKNOWN
    decides = max(found, key=lambda known: _COSTS.index(known.action))
    said = dict.fromkeys((decides, *found))
    hint = "; ".join(known.hint for known in list(said)[:2])
    return Judged(decides.name, hint, decides.action is Action.RETRY)
