"""From plan, events and result to the report's document. Pure, and tolerant of events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pitstop.model.event import Event
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult, WorkloadResult
from pitstop.model.runbook import RunbookStep
from pitstop.report import pick
from pitstop.report.document import (
    Chain,
    Decision,
    EventLine,
    Evidence,
    Failure,
    FieldDifference,
    GateReport,
    GpuBoundary,
    Report,
    WorkloadReport,
)
from pitstop.report.headline import headline
from pitstop.report.text import OUTPUT_LIMIT, bounded, parse_time, rfc3339

EVENTS_SHOWN = 500
LIST_LIMIT = 200
TEXT = pick.TEXT_LIMIT
# Escaped text is up to five times as long; the whole page stays below 5 MB all the same.
_ROW_TEXT = 1000
_DIFFERENCES = 50
_EVENT_DATA = 1500
_EVENT_BUDGET = 200 * _EVENT_DATA
_OUTPUT_BUDGET = 50 * OUTPUT_LIMIT
_T = TypeVar("_T")
_EVIDENCE_VERBS = ("maintain", "rollback", "validate")


def build(
    plan: Plan, events: Sequence[Event], result: RunResult, chain: Mapping[str, Any]
) -> Report:
    """Build the document. Every list and text in it is bounded."""
    started = next((e for e in events if e.kind == "run.started"), None)
    ended = next((e for e in reversed(events) if e.kind == "run.ended"), None)
    first = started or (events[0] if events else None)
    shown, left_out = _bounded_events(events)
    notes: list[str] = []
    steps = {step.step: step for step in plan.runbook.steps}
    return Report(
        run=result.run,
        site=plan.site,
        node=plan.node,
        title=_text(plan.title),
        reason=_text(plan.reason),
        headline=_text(headline(result)),
        state=result.state,
        node_state=result.node_state,
        cause=_text(result.cause),
        started=rfc3339(first.time) if first else "",
        ended=rfc3339(ended.time) if ended else None,
        seconds=_between(first, ended),
        actors=tuple(_text(actor) for actor in dict.fromkeys(e.actor for e in events))[:20],
        front_end=_text(pick.text(started.data, "front_end")) if started else "",
        plan_digest=plan.digest,
        runbook=_text(plan.runbook.name),
        runbook_title=_text(plan.runbook.title),
        runbook_digest=plan.runbook.digest,
        runbook_variables={k: _json(v, TEXT) for k, v in plan.runbook.variables.items()},
        changes={_text(k): _text(v) for k, v in plan.runbook.changes.items()},
        workloads=tuple(_workload(w, plan, events) for w in result.workloads),
        gates=_limited(_gates(plan, events), "answers of the gate", notes),
        evidence=_outputs_within_budget(_limited(_evidence(events, steps), "step results", notes)),
        decisions=_limited(_decisions(events), "decisions", notes),
        failures=_limited(_failures(events), "failures", notes),
        chain=_chain(plan, events, result, chain),
        events=tuple(_line(e, min(_EVENT_DATA, _EVENT_BUDGET // len(shown))) for e in shown),
        events_left_out=left_out,
        notes=tuple(notes),
    )


def _text(text: str, limit: int = TEXT) -> str:
    # A lone surrogate cannot be written as UTF-8; it is replaced, visibly.
    return bounded(text, limit).encode("utf-8", "replace").decode()


def _json(data: Any, limit: int) -> str:
    return _text(json.dumps(data, ensure_ascii=False, default=str), limit)


def _limited(items: Iterator[_T], what: str, notes: list[str]) -> tuple[_T, ...]:
    """Keep the first and the last; say what is left out."""
    found = list(items)
    if len(found) <= LIST_LIMIT:
        return tuple(found)
    half = LIST_LIMIT // 2
    notes.append(f"{len(found) - 2 * half} of {len(found)} {what} are left out in the middle")
    return (*found[:half], *found[-half:])


def _outputs_within_budget(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    if sum(len(e.output_tail) for e in evidence) <= _OUTPUT_BUDGET:
        return evidence
    share = _OUTPUT_BUDGET // len(evidence)
    return tuple(
        e.model_copy(update={"output_tail": bounded(e.output_tail, share)}) for e in evidence
    )


def _optional(data: Mapping[str, Any], key: str) -> str | None:
    found = pick.optional_text(data, key)
    return None if found is None else _text(found)


def _between(first: Event | None, last: Event | None) -> float | None:
    begin, end = parse_time(first.time) if first else None, parse_time(last.time) if last else None
    return round((end - begin).total_seconds(), 3) if begin and end else None


def _last_result(events: Sequence[Event], verb: str, subject: str) -> Mapping[str, Any]:
    for event in reversed(events):
        if (event.kind, event.verb, event.subject) == ("step.finished", verb, subject):
            return pick.mapping(event.data, "result")
    return {}


def _workload(result: WorkloadResult, plan: Plan, events: Sequence[Event]) -> WorkloadReport:
    planned = next((w for w in plan.all_workloads if w.name == result.name), None)
    drain = _last_result(events, "drain", result.name)
    # A router counts what also the workload itself may not know of yet.
    seen = pick.mapping(drain, "router") or drain
    before, after = (pick.number(seen, f"in_flight_at_{at}") for at in ("start", "end"))
    restore, earlier = result.restore_seconds, result.earlier_cold_start_seconds
    return WorkloadReport(
        name=result.name,
        shape=planned.shape.value if planned else "",
        strategy=planned.strategy.value if planned else "",
        strategy_reason=_text(planned.reason) if planned else "not in the plan",
        outcome=result.outcome.value if result.outcome else None,
        cause=_text(result.cause),
        checkpoint=_text(result.checkpoint) if result.checkpoint else None,
        image_bytes=result.image_bytes,
        frozen_seconds=result.frozen_seconds,
        restore_seconds=restore,
        cold_start_seconds=result.cold_start_seconds,
        earlier_cold_start_seconds=earlier,
        ratio=round(earlier / restore, 2) if restore and earlier else None,
        proof=_optional(_last_result(events, "restore", result.name), "proof"),
        in_flight=f"{before:g} → {after:g}" if before is not None and after is not None else None,
        node=result.node,
        transfer_bytes=result.transfer_bytes,
        transfer_seconds=result.transfer_seconds,
        gpu_state=_gpu_state(pick.mapping(_last_result(events, "checkpoint", result.name), "gpus")),
    )


def _gpu_state(taken: Mapping[str, Any]) -> GpuBoundary | None:
    if not taken:
        return None
    locked, first = pick.number(taken, "all_locked"), pick.number(taken, "first_checkpointed")
    return GpuBoundary(
        **{name: int(pick.number(taken, name) or 0) for name in ("processes", "gpus", "bytes")},
        one_boundary=taken.get("one_boundary") is True,
        margin_seconds=round(first - locked, 6)
        if first is not None and locked is not None
        else None,
    )


def _verdict(
    data: Mapping[str, Any],
    workload: str,
    node: str,
    when: Literal["predicted", "found", "decided"],
    time: str,
) -> GateReport:
    valid = data.get("valid")
    return GateReport(
        workload=_text(workload),
        node=_text(node),
        when=when,
        time=time,
        valid=valid if isinstance(valid, bool) else None,
        differences=tuple(
            FieldDifference(
                **{k: _text(pick.text(d, k), _ROW_TEXT) for k in FieldDifference.model_fields}
            )
            for d in pick.mappings(data, "differences")[:_DIFFERENCES]
        ),
    )


def _gates(plan: Plan, events: Sequence[Event]) -> Iterator[GateReport]:
    for workload in plan.all_workloads:
        if workload.predicted:
            yield _verdict(workload.predicted, workload.name, plan.node, "predicted", "")
    for moving in plan.workloads:
        if moving.target is not None:
            there = moving.target
            yield _verdict(there.predicted, moving.name, there.node, "predicted", "")
    known: list[tuple[str, Mapping[str, Any]]] = []
    for event in events:
        time = rfc3339(event.time)
        if event.kind == "step.finished" and event.verb == "gate":
            found = pick.mapping(pick.mapping(event.data, "result"), "verdict")
            known.append((event.subject, found))
            where = pick.text(pick.mapping(event.data, "result"), "node") or plan.node
            yield _verdict(found, event.subject, where, "found", time)
        elif event.kind == "decision":
            found = pick.mapping(event.data, "verdict")
            # A decision repeats the gate's answer that it rests on; once is enough.
            if found and (event.subject, found) not in known:
                yield _verdict(found, event.subject, plan.node, "decided", time)


def _evidence(events: Sequence[Event], steps: Mapping[str, RunbookStep]) -> Iterator[Evidence]:
    for event in events:
        if event.kind in ("step.finished", "step.failed") and event.verb in _EVIDENCE_VERBS:
            for entry in pick.mappings(pick.mapping(event.data, "result"), "steps"):
                yield _one_evidence(event, entry)
            if event.kind == "step.failed":
                yield from _failed_part(event, steps)


def _failed_part(event: Event, steps: Mapping[str, RunbookStep]) -> Iterator[Evidence]:
    """The runbook step that made a phase fail is named by the error's subject."""
    error = pick.mapping(event.data, "error")
    step = steps.get(pick.text(error, "subject"))
    if step is not None:
        entry = {"step": step.step, "kind": step.kind, "error": error}
        yield _one_evidence(event, entry)


def _one_evidence(event: Event, entry: Mapping[str, Any]) -> Evidence:
    error = pick.mapping(entry, "error")
    return Evidence(
        time=rfc3339(event.time),
        verb=_text(event.verb),
        attempt=event.attempt,
        step=_text(pick.text(entry, "step")),
        kind=_text(pick.text(entry, "kind")),
        command=tuple(_text(word, 1000) for word in pick.words(entry, "command")[:100]),
        exit_status=pick.whole(entry, "exit_status"),
        seconds=pick.number(entry, "seconds"),
        attempts=pick.whole(entry, "attempts"),
        output_tail=_text(pick.text(entry, "output_tail"), OUTPUT_LIMIT),
        output_bytes=pick.whole(entry, "output_bytes"),
        output_digest=_optional(entry, "output_digest"),
        boot_id_before=_optional(entry, "boot_id_before"),
        boot_id_after=_optional(entry, "boot_id_after"),
        undoes=_optional(entry, "undoes"),
        failure=_text(pick.text(error, "cause") or "no cause recorded") if error else None,
    )


def _decisions(events: Sequence[Event]) -> Iterator[Decision]:
    for event in events:
        if event.kind == "decision":
            yield Decision(
                time=rfc3339(event.time),
                actor=_text(event.actor),
                subject=_text(event.subject),
                **{
                    key: _text(pick.text(event.data, key), _ROW_TEXT)
                    for key in ("topic", "choice", "cause")
                },
            )


def _failures(events: Sequence[Event]) -> Iterator[Failure]:
    for event in events:
        if event.kind == "step.failed":
            error = pick.mapping(event.data, "error")
            subject = pick.text(error, "subject")
            about = f"{subject}: " if subject and subject != event.subject else ""
            yield Failure(
                time=rfc3339(event.time),
                subject=_text(event.subject),
                verb=_text(event.verb),
                attempt=event.attempt,
                final=pick.flag(event.data, "final"),
                code=_text(pick.text(error, "code")),
                cause=_text(about + (pick.text(error, "cause") or "no cause was recorded")),
                hint=_text(pick.text(error, "hint")),
            )


def _chain(
    plan: Plan, events: Sequence[Event], result: RunResult, chain: Mapping[str, Any]
) -> Chain:
    """Truncated, absent, unfinished and foreign are different findings; none is "valid"."""
    head, count = pick.text(chain, "head"), pick.whole(chain, "count") or 0
    valid = pick.flag(chain, "valid")
    notes = []
    if not events:
        notes.append("the journal holds no event of this run")
    if not valid:
        notes.append("the journal's hash chain does not verify: events were changed or are missing")
    if count != len(events):
        notes.append(f"the chain counts {count} events, and this report was made of {len(events)}")
    elif events and head != events[-1].hash:
        notes.append("the chain's head is not the hash of the last event here")
    if events and not any(e.kind == "run.ended" for e in events):
        notes.append("the run has no end in the journal: it goes on, or was cut off")
    digests = {pick.text(e.data, "plan_digest") for e in events if e.kind == "run.started"}
    if (digests | {result.plan_digest}) != {plan.digest} and events:
        notes.append("the run was started with another plan than the one shown here")
    return Chain(valid=valid, head=_text(head), count=count, notes=tuple(notes))


def _bounded_events(events: Sequence[Event]) -> tuple[list[Event], int]:
    if len(events) <= EVENTS_SHOWN:
        return list(events), 0
    half = EVENTS_SHOWN // 2
    return [*events[:half], *events[-half:]], len(events) - 2 * half


def _line(event: Event, limit: int) -> EventLine:
    return EventLine(
        seq=event.seq,
        time=rfc3339(event.time),
        kind=event.kind,
        actor=_text(event.actor),
        subject=_text(event.subject),
        verb=_text(event.verb),
        attempt=event.attempt,
        data=_json(event.data, limit) if event.data else "",
        hash=_text(event.hash),
    )
