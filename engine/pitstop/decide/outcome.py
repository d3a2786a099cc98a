"""How a run ended, read from its plan and events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pitstop.decide.attempts import cause_of, effect_unknown, standing
from pitstop.decide.job_outcome import job_result
from pitstop.decide.moves import is_there
from pitstop.model.errors import EndedInDump
from pitstop.model.event import Event
from pitstop.model.plan import Plan, WorkloadPlan
from pitstop.model.result import RunResult, WorkloadResult
from pitstop.model.words import Outcome, Strategy, Verb

State = Literal["done", "refused", "partial", "failed"]


def result_of(plan: Plan, run: str, events: Sequence[Event]) -> RunResult:
    """Build the result of a run. Also right for one that has not ended: it is `partial`."""
    last = next((e for e in reversed(events) if e.kind in ("run.ended", "run.resumed")), None)
    ended = last if last is not None and last.kind == "run.ended" else None
    state: State = ended.data["state"] if ended else "partial"
    quarantined = standing(events, Verb.QUARANTINE, plan.node).result is not None
    lifted = any(e.kind == "decision" and e.data.get("topic") == "unquarantine" for e in events)
    return RunResult(
        run=run,
        node=plan.node,
        plan_digest=plan.digest,
        state=state,
        node_state="quarantined" if quarantined and not lifted else _in_service(plan, events),
        ended=ended is not None,
        cause=str(ended.data.get("cause", "")) if ended else "the run has not ended",
        workloads=(
            *(_workload(w, events) for w in plan.workloads),
            *(job_result(job, scheduler_node(plan), events) for job in plan.jobs),
        ),
    )


def _in_service(plan: Plan, events: Sequence[Event]) -> Literal["in-service", "drained"]:
    """Tell whether the scheduler gives the node new work, as far as the run has seen."""
    closed = standing(events, Verb.DRAIN, plan.node).result
    opened = standing(events, Verb.RETURN_TO_SERVICE, plan.node).result
    last = opened or closed
    return "drained" if last is not None and last["claim"] != "nobody" else "in-service"


def scheduler_node(plan: Plan) -> str:
    """Return what the scheduler calls the node."""
    return plan.scheduler.node if plan.scheduler else plan.node


def _workload(plan: WorkloadPlan, events: Sequence[Event]) -> WorkloadResult:
    name = plan.name
    saved = standing(events, Verb.CHECKPOINT, name).result
    stopped = standing(events, Verb.STOP, name).result
    restored = standing(events, Verb.RESTORE, name).result
    cold = standing(events, Verb.COLD_START, name).result
    gate = standing(events, Verb.GATE, name).result
    moved = standing(events, Verb.TRANSFER, name).result
    there = plan.target.node if plan.target and is_there(plan, events) else None
    # What did not come to the other node is of no use there: only its launch is.
    left_behind = there is not None and moved is None
    kept, ended = (None, saved) if left_behind else (saved, stopped)
    outcome, cause = _outcome(plan, kept, ended, restored, cold, there)
    if outcome is Outcome.UNTOUCHED:
        outcome, cause = _not_moved(plan, events)
    if outcome is Outcome.MIGRATED:
        cause = f"restored on {there}"
    if outcome is Outcome.COLD_STARTED:
        cause = cause_of(events, name, "cold-start") or plan.reason
    return WorkloadResult(
        name=name,
        outcome=outcome,
        cause=cause,
        verdict=gate["verdict"] if gate else None,
        checkpoint=saved["checkpoint"] if saved else None,
        image_bytes=saved["image_bytes"] if saved else None,
        node=there if restored or cold else None,
        transfer_bytes=moved["bytes"] if moved else None,
        transfer_seconds=moved["seconds"] if moved else None,
        frozen_seconds=_frozen(events, name, restored),
        restore_seconds=restored["ready_seconds"] if restored else None,
        cold_start_seconds=cold["ready_seconds"] if cold else None,
        earlier_cold_start_seconds=_earlier(events, name, restored or cold),
    )


def _outcome(
    plan: WorkloadPlan,
    saved: dict[str, Any] | None,
    stopped: dict[str, Any] | None,
    restored: dict[str, Any] | None,
    cold: dict[str, Any] | None,
    there: str | None,
) -> tuple[Outcome | None, str]:
    if cold is not None:
        return Outcome.COLD_STARTED, ""
    if restored is not None:
        return (Outcome.MIGRATED if there else Outcome.RESTORED), ""
    if saved is not None:
        return None, f"waits as checkpoint {saved['checkpoint']} on {there or _where(plan)}"
    if stopped is not None:
        return None, "stopped; its launch is known, and it was not started again yet"
    return Outcome.UNTOUCHED, ""


def _not_moved(plan: WorkloadPlan, events: Sequence[Event]) -> tuple[Outcome | None, str]:
    """Tell a workload that runs on from one that has ended, or of which nobody knows."""
    name = plan.name
    if standing(events, Verb.WAIT, name).result is not None:
        return Outcome.UNTOUCHED, "it ended by itself while it was waited for"
    for verb in (Verb.STOP, Verb.CHECKPOINT, Verb.DRAIN):
        failure = standing(events, verb, name).failure
        if failure is None:
            continue
        if failure["code"] == EndedInDump.code:
            return None, f"{failure['cause']}; its launch is known, and it was not started again"
        if effect_unknown(failure) and verb is not Verb.DRAIN:
            return None, f"whether it still runs is not known: {failure['cause']}"
    left = cause_of(events, name, "leave")
    if left:
        return Outcome.UNTOUCHED, left
    if plan.strategy is Strategy.LEAVE:
        return Outcome.UNTOUCHED, plan.reason
    return Outcome.UNTOUCHED, "it was never stopped"


def _where(plan: WorkloadPlan) -> str:
    return ", ".join(sorted(plan.spec.placement))


def _frozen(events: Sequence[Event], name: str, restored: dict[str, Any] | None) -> float | None:
    """Seconds from the start of the dump until the restored workload was ready."""
    begun = next(
        (
            e.time
            for e in reversed(events)
            if e.kind == "step.started" and e.verb == Verb.CHECKPOINT and e.subject == name
        ),
        None,
    )
    if restored is None or begun is None:
        return None
    ready = datetime.fromisoformat(restored["ready"])
    return round((ready - datetime.fromisoformat(begun)).total_seconds(), 3)


def _earlier(events: Sequence[Event], name: str, started: dict[str, Any] | None) -> float | None:
    if started and started.get("earlier_cold_start_seconds") is not None:
        return float(started["earlier_cold_start_seconds"])
    for event in events:
        if event.verb == Verb.PRECHECK and event.kind == "step.finished":
            found = event.data["result"].get("workloads", {}).get(name, {})
            if found.get("cold_start_seconds") is not None:
                return float(found["cold_start_seconds"])
    return None
