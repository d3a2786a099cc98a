"""How a scheduler's job ended, read from its plan and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pitstop.decide.attempts import cause_of, effect_unknown, standing
from pitstop.model.errors import EndedInDump
from pitstop.model.event import Event
from pitstop.model.jobs import JobPlan
from pitstop.model.result import WorkloadResult
from pitstop.model.words import Outcome, Strategy, Verb


def job_result(job: JobPlan, node: str, events: Sequence[Event]) -> WorkloadResult:
    """Build the result of one job.

    Args:
        job: its plan.
        node: the one that is maintained, as the scheduler calls it.
        events: of the run.
    """
    saved = standing(events, Verb.CHECKPOINT, job.name).result
    back = (
        standing(events, Verb.RELEASE, job.name).result
        or standing(events, Verb.RESTORE, job.name).result
    )
    outcome, cause = _outcome(job, node, saved, back, events)
    seconds = back.get("ready_seconds") if back else None
    restored = outcome in (Outcome.RESTORED, Outcome.MIGRATED)
    return WorkloadResult(
        name=job.name,
        outcome=outcome,
        cause=cause,
        verdict=dict(job.predicted) if job.predicted else None,
        checkpoint=saved["checkpoint"] if saved else None,
        image_bytes=saved["image_bytes"] if saved else None,
        frozen_seconds=_frozen(job, events) if restored else None,
        restore_seconds=seconds if restored else None,
        cold_start_seconds=seconds if outcome is Outcome.COLD_STARTED else None,
    )


def _outcome(
    job: JobPlan,
    node: str,
    saved: Mapping[str, Any] | None,
    back: Mapping[str, Any] | None,
    events: Sequence[Event],
) -> tuple[Outcome | None, str]:
    if back is not None:
        return _came_back(job, node, back)
    requeued = standing(events, Verb.REQUEUE, job.name).result
    if requeued is not None and not requeued["requeued"]:
        return _ended(requeued)
    if requeued is not None:
        return None, "it is held in the queue, and was not released yet"
    if saved is not None:
        return None, f"waits as checkpoint {saved['checkpoint']}, with its job running"
    waited = standing(events, Verb.WAIT, job.name).result
    if waited is not None:
        return Outcome.UNTOUCHED, f"it ended by itself while it was waited for: {waited['state']}"
    failure = standing(events, Verb.CHECKPOINT, job.name).failure
    if failure is not None and failure["code"] == EndedInDump.code:
        return None, f"{failure['cause']}; its job was not started again"
    if effect_unknown(failure):
        return None, f"whether it was saved is not known: {failure['cause'] if failure else ''}"
    return Outcome.UNTOUCHED, cause_of(events, job.name, "leave") or "it was never stopped"


def _ended(found: Mapping[str, Any]) -> tuple[Outcome | None, str]:
    """Tell one whose owner has ended it from one that a person should look after."""
    if found.get("kept"):
        return None, f"it ended as {found['state']}; checkpoint {found['kept']} is kept"
    return Outcome.UNTOUCHED, f"it was ended, not by this run: {found['state']}"


def _came_back(job: JobPlan, node: str, back: Mapping[str, Any]) -> tuple[Outcome | None, str]:
    how, where = str(back["how"]), str(back.get("node") or "")
    if how == "ended":
        return _ended(back)
    if how == "untouched":
        return Outcome.UNTOUCHED, "it runs on: it was not saved, and never stopped"
    if how == "requeued":
        return Outcome.REQUEUED, f"it waits in the queue: {back['state']}"
    if how == "started":
        cause = job.reason
        if job.strategy is Strategy.APPLICATION:
            cause = "it goes on from its own checkpoint"
        return Outcome.REQUEUED, f"started on {', '.join(back['nodes'])}: {cause}"
    if how == "cold":
        return Outcome.COLD_STARTED, str(back.get("cause") or "its launcher names no cause")
    if where and where != node:
        return Outcome.MIGRATED, f"restored on {where}"
    return Outcome.RESTORED, ""


def _frozen(job: JobPlan, events: Sequence[Event]) -> float | None:
    """Seconds from the start of the dump until it ran again, its time in the queue included."""
    begun = ready = None
    for event in events:
        if event.subject != job.name:
            continue
        if event.kind == "step.started" and event.verb == Verb.CHECKPOINT:
            begun = event.time
        elif event.kind == "step.finished" and event.verb in (Verb.RELEASE, Verb.RESTORE):
            ready = event.time
    if begun is None or ready is None:
        return None
    seconds = datetime.fromisoformat(ready) - datetime.fromisoformat(begun)
    return round(seconds.total_seconds(), 3)
