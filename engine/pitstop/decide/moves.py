"""On which node the steps of a workload that moves take place, read from the journal."""

from __future__ import annotations

from collections.abc import Sequence

from pitstop.decide.attempts import standing
from pitstop.model.errors import TargetLost
from pitstop.model.event import Event
from pitstop.model.plan import WorkloadPlan
from pitstop.model.words import Strategy, Verb

LIFTS = (Verb.GATE, Verb.RESTORE, Verb.COLD_START)
"""Verbs that bring a workload up, in the order in which they are tried."""


def is_there(plan: WorkloadPlan, events: Sequence[Event]) -> bool:
    """Tell whether a workload is brought up on the plan's target, and not on the run's node.

    It is from the end of its transfer on, also when that has failed: there is room for it
    there, and the node it comes from is about to be maintained. Only where the target is lost
    it is the run's node again.
    """
    if plan.strategy is not Strategy.MIGRATE or plan.target is None:
        return False
    transfer = standing(events, Verb.TRANSFER, plan.name)
    if transfer.result is None and transfer.failure is None:
        return False
    return not _lost(events, plan.name, Verb.TRANSFER, *LIFTS)


def lost_after_hand_over(events: Sequence[Event], name: str) -> str:
    """Say why the target was given up though it had taken the workload over; else empty."""
    return _lost(events, name, *LIFTS)


def _lost(events: Sequence[Event], name: str, *verbs: Verb) -> str:
    """Return why the target was given up in one of these steps, whatever came after."""
    for event in events:
        about = event.subject == name and event.verb in verbs and event.kind == "step.failed"
        if about and event.data.get("final") and event.data["error"]["code"] == TargetLost.code:
            return str(event.data["error"]["cause"])
    return ""
