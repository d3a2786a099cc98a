"""Which strategy a scheduler's job gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pitstop.decide.strategy import Choice, invalid_here
from pitstop.model.jobs import JobPolicy, OnJob
from pitstop.model.verdict import Verdict
from pitstop.model.words import Shape, Strategy

RESERVE = 300.0
"""Seconds that saving a job and starting it again are reckoned with, before there are figures
of the site's own."""


VALID = Verdict()


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a job beforehand.

    Attributes:
        launched: how many launchers of it run on the node.
        blockers: what would make a dump fail.
        predicted: what the gate will say on this node after the declared changes.
        elsewhere: another node whose fingerprint it fits; empty without one.
        requeue: whether it may be put back into the queue.
        seconds_left: until its time limit ends it; None without one, or when nobody knows.
    """

    shape: Shape
    launched: int
    requeue: bool | None
    seconds_left: float | None
    blockers: Sequence[str] = ()
    predicted: Verdict = VALID
    elsewhere: str = ""


def choose_for_job(facts: JobFacts, policy: JobPolicy) -> Choice:
    """Choose from what is known beforehand (DESIGN, section 5)."""
    if facts.shape is Shape.MULTI_NODE:
        why = "its GPUs sit in several machines at once, and no part of it is touched alone"
        return _by_policy(policy.multi_node, why, facts, policy)
    why = _why_not_saved(facts)
    if why:
        return _by_policy(policy.not_launched, why, facts, policy)
    if facts.predicted.valid:
        return Choice(Strategy.RESTORE, "the declared changes keep its fingerprint")
    found = invalid_here(facts.predicted)
    return Choice(Strategy.RESTORE, f"{found}; {facts.elsewhere} fits, so it starts there")


def notes_on(facts: JobFacts, choice: Choice) -> tuple[str, ...]:
    """Return what a person should know of a job before the run."""
    left = facts.seconds_left
    if left is None or choice.strategy not in (Strategy.RESTORE, Strategy.APPLICATION):
        return ()
    if left > RESERVE:
        return ()
    return (
        f"its time limit ends it in {max(left, 0):.0f} s: that may not be enough to save it and "
        f"start it again (reckoned with {RESERVE:.0f} s)",
    )


def _why_not_saved(facts: JobFacts) -> str:
    """Return why it cannot be saved as processes; empty if it can."""
    if facts.launched == 0:
        return (
            "it does not run under `pitstop-node launch`, so nothing would restore it inside "
            "its job"
        )
    if facts.launched > 1:
        return f"{facts.launched} launchers run in it, and there is no boundary for all of them"
    if facts.requeue is False:
        return "its owner forbids to requeue it (--no-requeue)"
    if facts.blockers:
        return f"cannot be saved: {'; '.join(facts.blockers)}"
    if not facts.predicted.valid and not facts.elsewhere:
        return f"{invalid_here(facts.predicted)}, and no other node is known that it fits"
    return ""


def _by_policy(on_job: OnJob, why: str, facts: JobFacts, policy: JobPolicy) -> Choice:
    if on_job in (OnJob.SIGNAL, OnJob.REQUEUE) and facts.requeue is False:
        forbidden = "its owner forbids to requeue it (--no-requeue)"
        return Choice(Strategy.REFUSE, f"{why}; policy is {on_job.value}, but {forbidden}")
    if on_job is OnJob.SIGNAL:
        return Choice(Strategy.APPLICATION, f"{why}: it saves itself when it is told to")
    if on_job is OnJob.REQUEUE:
        return Choice(Strategy.REQUEUE, f"{why}: by policy it is requeued, and starts over")
    if on_job is OnJob.WAIT:
        return _waiting(why, facts, policy)
    return Choice(Strategy.REFUSE, f"{why}, and its policy for that is refuse")


def _waiting(why: str, facts: JobFacts, policy: JobPolicy) -> Choice:
    left, deadline = facts.seconds_left, policy.wait_deadline
    if left is None:
        return Choice(
            Strategy.WAIT, f"{why}: its end is waited for, up to {deadline:g} s; it has no limit"
        )
    if left <= deadline:
        return Choice(Strategy.WAIT, f"{why}: its time limit ends it in {max(left, 0):.0f} s")
    return Choice(
        Strategy.REFUSE,
        f"{why}, and its time limit ends it only in {left:.0f} s; policy waits {deadline:g} s",
    )
