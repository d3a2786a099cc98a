"""Starting, resuming and reporting runs: what every front end does around the sequence."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pitstop.decide.outcome import result_of
from pitstop.journal.chain import faults
from pitstop.journal.store import Journal
from pitstop.model.errors import BadInput, Refused
from pitstop.model.event import Event
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.node.locks import held
from pitstop.report.change_record import render_report_html, report_json
from pitstop.steps.branching import Perform
from pitstop.steps.context import Progress, RunContext, default_actor
from pitstop.steps.execute import perform
from pitstop.steps.sequence import Sequence


def new_run_id() -> str:
    """Return an id that sorts by time."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def create_run(home: Path, plan: Plan, run: str, front_end: str, actor: str | None = None) -> None:
    """Record a new run.

    Raises:
        Refused: the plan says no go.
        BadInput: a run of this id exists.
    """
    if not plan.go:
        raise Refused(plan.node, "; ".join(plan.no_go), "nothing was touched")
    journal = Journal(home / "journal.db")
    try:
        journal.create_run(run, plan)
        journal.append(
            run,
            "run.started",
            actor or default_actor(),
            plan.node,
            data={"plan_digest": plan.digest, "front_end": front_end, "title": plan.title},
        )
    finally:
        journal.close()


def has_run(home: Path, run: str) -> bool:
    """Tell whether a run of this id is recorded."""
    journal = Journal(home / "journal.db")
    try:
        return any(run == found for found, _ in journal.runs())
    finally:
        journal.close()


def open_run(home: Path, run: str, progress: Progress = lambda _t: None) -> RunContext:
    """Open a recorded run.

    Raises:
        BadInput: there is none of this id.
    """
    return RunContext(home, run, progress=progress)


def drive(ctx: RunContext, perform_step: Perform | None = None) -> RunResult:
    """Go through a run, from wherever it stands, and write its report.

    A run that has ended is not driven again, but for one that waits for a person: that one
    is recovered.

    Raises:
        Busy: another living process drives it.
        Refused: it has ended for good.
    """
    # One driver at a time: a second one would take the first one's busy steps for failed.
    with held(ctx.directory / "driver.lock", ctx.run, "another driver of this run"):
        events = ctx.events()
        state = ended_as(events)
        if state not in ("", "partial"):
            raise Refused(ctx.run, f"it has ended: {state}")
        if state == "partial" or any(e.kind == "step.started" for e in events):
            _taken_up_again(ctx, recover=state == "partial")
        result = go_through(ctx, perform_step or partial(perform, ctx))
        write_report(ctx)
        return result


def go_through(ctx: RunContext, perform_step: Perform) -> RunResult:
    """Go through the sequence that the run is in: the whole, or its recovery."""
    sequence = Sequence(ctx, perform_step)
    return sequence.recover() if is_recovery(ctx.events()) else sequence.run()


def is_recovery(events: Iterable[Event]) -> bool:
    """Tell whether a run was taken up again after its maintenance had failed.

    One that only lost contact, or could not bring a workload back, goes on where it stands.
    """
    quarantined = False
    for event in events:
        if event.kind == "decision" and event.data.get("topic") == "quarantine":
            quarantined = True
        elif event.kind == "run.resumed" and event.data.get("recover") and quarantined:
            return True
    return False


def needs_repair(events: Iterable[Event]) -> bool:
    """Tell whether a run waits until a person has mended its node."""
    quarantined = False
    for event in events:
        if event.kind == "decision" and event.data.get("topic") == "quarantine":
            quarantined = True
        elif event.kind == "decision" and event.data.get("topic") == "unquarantine":
            quarantined = False
    return quarantined


def ended_as(events: Iterable[Event]) -> str:
    """Return the state in which a run has ended, or an empty text while it has not."""
    state = ""
    for event in events:
        if event.kind == "run.ended":
            state = str(event.data["state"])
        elif event.kind == "run.resumed":
            state = ""
    return state


def _taken_up_again(ctx: RunContext, recover: bool) -> None:
    ctx.journal.append(ctx.run, "run.resumed", ctx.actor, ctx.plan.node, data={"recover": recover})


def write_report(ctx: RunContext) -> Path:
    """Write a run's report as HTML and JSON beside each other; return the HTML's path."""
    import json

    events = ctx.events()
    if not events:
        raise BadInput(ctx.run, "the run has no events")
    wrong = faults(events)
    chain = {"valid": not wrong, "head": events[-1].hash, "count": len(events), "faults": wrong}
    result = result_of(ctx.plan, ctx.run, events)
    html = ctx.directory / "report.html"
    html.write_text(render_report_html(ctx.plan, events, result, chain), encoding="utf-8")
    document = report_json(ctx.plan, events, result, chain)
    (ctx.directory / "report.json").write_text(
        json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8"
    )
    for path in (html, ctx.directory / "report.json"):
        path.chmod(0o600)
    return html
