"""The report's first sentence: what happened, and for whom."""

from __future__ import annotations

from collections.abc import Sequence

from pitstop.model.plan import Plan
from pitstop.model.result import RunResult, WorkloadResult
from pitstop.model.words import Outcome, Strategy
from pitstop.report.text import bounded, one_line, seconds

STATE_WORDS = {
    "done": "Done",
    "refused": "Refused",
    "partial": "Needs a person",
    "failed": "Failed",
}
_NAMED = 3
_INTENT = {
    Strategy.RESTORE: ("is checkpointed and restored", "are checkpointed and restored"),
    Strategy.MIGRATE: ("is moved to another node", "are moved to other nodes"),
    Strategy.COLD_START: ("is stopped and cold-started", "are stopped and cold-started"),
    Strategy.APPLICATION: ("saves itself and is requeued", "save themselves and are requeued"),
    Strategy.WAIT: ("is waited for", "are waited for"),
    Strategy.REQUEUE: ("is requeued and starts over", "are requeued and start over"),
    Strategy.LEAVE: ("is left as it is", "are left as they are"),
}


_STANDS = {
    "in-service": "is in service",
    "drained": "stays drained in its scheduler",
    "quarantined": "is quarantined",
}


def headline(result: RunResult) -> str:
    """Return one sentence for people who read nothing else."""
    parts = ", ".join(_workloads(result.workloads))
    tail = f": {parts}" if parts else ""
    node = result.node
    where = {**_STANDS, "in-service": "is back in service"}[result.node_state]
    if result.state == "done":
        return f"{node} was serviced and {where}{tail}."
    if result.state == "refused":
        return f"{node} was not touched: {_cause(result)}."
    if result.state == "failed":
        stays = _STANDS[result.node_state]
        failed = f"The maintenance of {node} failed and the node {stays}"
        return f"{failed}: {_cause(result)}{_and(parts)}."
    person = _STANDS[result.node_state]
    return f"{node} {person} and a person is needed: {_cause(result)}{_and(parts)}."


def plan_headline(plan: Plan) -> str:
    """Return one sentence on what is going to happen, and to whom."""
    if not plan.go:
        return f"{plan.node} will not be touched: a run of this plan would be refused."
    parts = []
    for strategy, words in _INTENT.items():
        group = [w.name for w in plan.all_workloads if w.strategy is strategy]
        if group:
            who = f"{len(group)} workloads" if len(group) > _NAMED else " and ".join(group)
            parts.append(f"{who} {words[len(group) > 1]}")
    tail = f": {', '.join(parts)}" if parts else "; no workload is concerned"
    return f"{plan.node} is drained, serviced and put back into service{tail}."


def _and(parts: str) -> str:
    return f"; {parts}" if parts else ""


def _cause(result: RunResult) -> str:
    return one_line(bounded(result.cause, 300)).rstrip(".") or "no cause was recorded"


def _workloads(workloads: Sequence[WorkloadResult]) -> list[str]:
    """Group by outcome, the worst first; few are named, many are counted."""
    order = [Outcome.LOST, None, *(o for o in Outcome if o is not Outcome.LOST)]
    parts = []
    for outcome in order:
        group = [w for w in workloads if w.outcome is outcome]
        if not group:
            continue
        verb = "waiting for a person" if outcome is None else outcome.value
        if outcome is Outcome.LOST:
            verb = "LOST"
        if len(group) > _NAMED and outcome not in (None, Outcome.LOST):
            parts.append(f"{len(group)} workloads {verb}")
        else:
            names = " and ".join(w.name for w in group)
            parts.append(f"{names} {verb}{_measured(group)}")
    return parts


def _measured(group: Sequence[WorkloadResult]) -> str:
    if len(group) != 1:
        return ""
    only = group[0]
    if only.outcome is Outcome.RESTORED and only.restore_seconds is not None:
        return f" in {seconds(only.restore_seconds)}"
    there = f" on {only.node}" if only.node else ""
    if only.outcome is Outcome.MIGRATED and only.node and only.restore_seconds is not None:
        return f" to {only.node} in {seconds(only.restore_seconds)}"
    if only.outcome is Outcome.COLD_STARTED and only.cold_start_seconds is not None:
        return f"{there} in {seconds(only.cold_start_seconds)}"
    return there
