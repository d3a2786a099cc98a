"""Which strategy a workload gets. The run may fall from it, never rise above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pitstop.decide.homes import Candidate
from pitstop.model.verdict import Verdict
from pitstop.model.words import OnCheckpointFailure, Shape, Strategy


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy with its reason, in words.

    Attributes:
        target: the node that the workload moves to; empty if it does not.
    """

    strategy: Strategy
    reason: str
    target: str = ""


def invalid_here(predicted: Verdict) -> str:
    """Say why a checkpoint will not be valid on this node; empty if it will be."""
    return "; ".join(f"invalid here: {difference}" for difference in predicted.invalid)


def choose(
    shape: Shape,
    running: bool,
    why_not: str,
    blockers: Sequence[str],
    predicted: Verdict,
    on_checkpoint_failure: OnCheckpointFailure,
    candidates: Sequence[Candidate] = (),
    spares: bool = False,
) -> Choice:
    """Choose from what is known beforehand (DESIGN, section 5).

    Args:
        shape: of the workload.
        running: whether it runs now; `why_not` says why it does not.
        blockers: what would make a dump fail.
        predicted: what the gate will say after the declared changes.
        on_checkpoint_failure: the workload's policy.
        candidates: other nodes that it may move to, the best first, as they were found.
        spares: whether there are such nodes, asked or not.
    """
    if not running:
        return Choice(Strategy.LEAVE, f"it does not run: {why_not}")
    if shape is Shape.MULTI_NODE:
        return Choice(
            Strategy.REFUSE,
            "its GPUs sit in several machines at once; saving it needs coordination that is "
            "not there, and no part of it is touched alone",
        )
    if not predicted.valid:
        in_the_way = blockers if spares else ()
        return _elsewhere(invalid_here(predicted), in_the_way, () if blockers else candidates)
    if blockers:
        found = "; ".join(blockers)
        if on_checkpoint_failure is OnCheckpointFailure.COLD_START:
            return Choice(Strategy.COLD_START, f"cannot be saved: {found}")
        return Choice(
            Strategy.REFUSE,
            f"cannot be saved ({found}), and its policy for that is {on_checkpoint_failure.value}",
        )
    return Choice(Strategy.RESTORE, "the declared changes keep its fingerprint")


def may_move(shape: Shape, running: bool, blockers: Sequence[str], predicted: Verdict) -> bool:
    """Tell whether it is worth asking other nodes about a workload."""
    return running and shape is not Shape.MULTI_NODE and not blockers and not predicted.valid


def _elsewhere(here: str, blockers: Sequence[str], candidates: Sequence[Candidate]) -> Choice:
    """Choose for a workload whose checkpoint will be invalid here."""
    if blockers:
        found = "; ".join(blockers)
        return Choice(Strategy.COLD_START, f"{here}; it cannot be saved, so not be moved: {found}")
    for candidate in candidates:
        if candidate.fits:
            return Choice(
                Strategy.MIGRATE, f"{here}; {candidate.node} matches and has room", candidate.node
            )
    # A dump would be worthless after the change, so none is made.
    return Choice(Strategy.COLD_START, "; ".join((here, *map(str, candidates))))
