"""What each verb does. One function per verb: `(context, subject, attempt) -> result`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pitstop.decide.attempts import WITHOUT_CONTACT
from pitstop.decide.gate import compare
from pitstop.model.errors import EndedInDump, PermanentError, PitstopError, Refused
from pitstop.model.fingerprint import Fingerprint
from pitstop.model.words import Strategy, Verb
from pitstop.steps import scheduling
from pitstop.steps.context import RunContext
from pitstop.steps.jobs import JOB_VERBS
from pitstop.steps.migrating import (
    NO_CONTACT,
    give_the_launch,
    lost_for_good,
    refuse_if_target_changed,
    take_back,
    transfer,
)
from pitstop.steps.pods import POD_VERBS, evict_node
from pitstop.steps.routing import close_at_router, look_at_routers, open_at_router, still_closed
from pitstop.steps.runbook_steps import rollback, run_phase
from pitstop.steps.saving import (
    SLACK,
    checkpoint_id,
    refuse_if_blocked,
    refuse_if_held,
    save,
)
from pitstop.steps.specs import (
    bring_up_arguments,
    checkpoint_arguments,
    inspect_argument,
    inspect_arguments,
    plain,
    probes_of,
)

Step = Callable[[RunContext, str, int], dict[str, Any]]


def _precheck(ctx: RunContext, _subject: str, _attempt: int) -> dict[str, Any]:
    """Look before anything is touched: is all as it was planned?

    Raises:
        Refused: it is not.
    """
    scheduling.refuse_if_claimed(ctx)
    found = ctx.node.call("inspect", workloads=inspect_arguments(ctx.plan))
    scheduling.refuse_if_unsavable(ctx)
    quarantine = found.get("quarantine")
    if quarantine:
        raise Refused(
            ctx.plan.node,
            f"quarantined by run {quarantine.get('run')}: {quarantine.get('cause')}",
            f"pitstop resume {quarantine.get('run')}",
        )
    for workload in ctx.plan.workloads:
        now = found["workloads"][workload.name]
        if now["running"] != workload.running:
            planned = "running" if workload.running else "not running"
            raise Refused(
                workload.name,
                f"planned as {planned}, and now: {now['why_not'] or 'it runs'}",
                "make a new plan",
            )
        refuse_if_held(ctx, workload.name, now)
        if workload.strategy in (Strategy.RESTORE, Strategy.MIGRATE):
            refuse_if_blocked(workload.name, now)
    targets = refuse_if_target_changed(ctx, found)
    return {**found, "routers": look_at_routers(ctx.plan), "targets": targets}


def _drain(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    if subject == ctx.plan.node:
        return scheduling.drain_node(ctx)
    drain = ctx.workload(subject).spec.drain
    try:
        at_router = close_at_router(ctx, subject, attempt)
        at_node = ctx.node.operate(
            ctx.operation_id(Verb.DRAIN, subject, attempt),
            "drain",
            {"workload": subject, "drain": plain(drain)},
            drain.deadline + SLACK,
            ctx.progress,
        )
        return {**at_node, **at_router}
    except PitstopError as error:
        _went_down_with_its_node(ctx, subject, error)
        raise


def _went_down_with_its_node(ctx: RunContext, subject: str, error: PitstopError) -> None:
    """Tell what failed because the node lost power from all other failures.

    Such a workload has not ended by itself, nobody would start it again, and there is nothing
    left to drain or save.

    Raises:
        EndedInDump: it ran when the run began, the node has booted since, and it does not run.
    """
    planned = ctx.workload(subject)
    before = (ctx.result(Verb.PRECHECK, ctx.plan.node) or {}).get("boot_id")
    if not planned.running or before is None or error.code in WITHOUT_CONTACT:
        return
    now = ctx.node.ping()["boot_id"]
    if now == before:
        return
    asked = {subject: inspect_argument(planned.spec)}
    if not ctx.node.call("inspect", workloads=asked)["workloads"][subject]["running"]:
        raise EndedInDump(
            subject, f"the node went down before it was saved (boot id {before} -> {now})"
        ) from error


def _still_drained(ctx: RunContext, subject: str) -> None:
    """Ask again right before the first disruptive step: the flag is not the state.

    Raises:
        Refused: requests are in flight again, or may come again.
    """
    still_closed(ctx, subject)
    gauge = ctx.workload(subject).spec.drain.in_flight
    if gauge is None:
        return
    value = ctx.node.call("gauge", in_flight=plain(gauge))["in_flight"]
    if value > 0:
        raise Refused(
            subject,
            f"no longer drained: {value:g} requests in flight",
            "somebody lets requests in; nothing was touched",
        )


def _checkpoint(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    try:
        return _save(ctx, subject, attempt)
    except PitstopError as error:
        if not isinstance(error, EndedInDump):
            _went_down_with_its_node(ctx, subject, error)
        raise


def _save(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    spec = ctx.workload(subject).spec
    identifier = ctx.operation_id(Verb.CHECKPOINT, subject, attempt)
    if not _under_way(ctx, identifier):
        _still_drained(ctx, subject)
    checkpoint = checkpoint_id(subject, ctx.run, attempt)
    arguments = checkpoint_arguments(
        subject, spec, ctx.run, checkpoint, ctx.plan.node, ctx.plan.policy.tolerate
    )
    return save(ctx, subject, subject, identifier, checkpoint, arguments, spec.pid_file)


def _under_way(ctx: RunContext, identifier: str) -> bool:
    return bool(ctx.node.call("op.status", id=identifier)["state"] != "unknown")


def _transfer(ctx: RunContext, subject: str, _attempt: int) -> dict[str, Any]:
    saved = ctx.result(Verb.CHECKPOINT, subject)
    if saved is None:
        raise PermanentError(subject, "there is no checkpoint of it in this run")
    return transfer(ctx, subject, saved["checkpoint"])


def _stop(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    spec = ctx.workload(subject).spec
    identifier = ctx.operation_id(Verb.STOP, subject, attempt)
    fingerprint = ctx.node.call("fingerprint", probes=probes_of(spec))["fingerprint"]
    result = ctx.node.operate(
        identifier,
        "stop",
        {
            "workload": subject,
            "run": ctx.run,
            "signal": spec.stop.signal,
            "grace": spec.stop.grace,
            "pid_file": spec.pid_file,
        },
        spec.stop.grace + SLACK,
        ctx.progress,
    )
    return {**result, "fingerprint": fingerprint}


def _wait(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    deadline = ctx.workload(subject).spec.policy.wait_deadline
    return ctx.node.operate(
        ctx.operation_id(Verb.WAIT, subject, attempt),
        "wait-end",
        {"workload": subject, "deadline": deadline},
        deadline + SLACK,
        ctx.progress,
    )


def _maintain(ctx: RunContext, _subject: str, _attempt: int) -> dict[str, Any]:
    scheduling.wait_until_empty(ctx)
    return {"steps": run_phase(ctx, "maintain", 1)}


def _validate(ctx: RunContext, _subject: str, attempt: int) -> dict[str, Any]:
    return {"steps": run_phase(ctx, "validate", attempt)}


def _rollback(ctx: RunContext, _subject: str, attempt: int) -> dict[str, Any]:
    return rollback(ctx, attempt)


def _gate(ctx: RunContext, subject: str, _attempt: int) -> dict[str, Any]:
    """Compare what was with what is. Its answer, either way, is a result and no failure."""
    saved = ctx.result(Verb.CHECKPOINT, subject) or ctx.result(Verb.STOP, subject)
    if saved is None:
        raise PermanentError(subject, "there is nothing to compare with: it was not stopped")
    probes = probes_of(ctx.workload(subject).spec)
    with _given_up_if_lost(ctx, subject):
        present = ctx.where(subject).call("fingerprint", probes=probes)
    verdict = compare(
        Fingerprint.from_json(saved["fingerprint"]),
        Fingerprint.from_json(present["fingerprint"]),
        ctx.plan.policy.tolerate,
    )
    return {"verdict": verdict.to_json(), "fingerprint": present["fingerprint"]}


def _restore(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    saved = ctx.result(Verb.CHECKPOINT, subject)
    if saved is None:
        raise PermanentError(subject, "there is no checkpoint of it in this run")
    return _bring_up(ctx, subject, attempt, Verb.RESTORE, saved["checkpoint"])


def _cold_start(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    return _bring_up(ctx, subject, attempt, Verb.COLD_START, None)


@contextmanager
def _given_up_if_lost(ctx: RunContext, subject: str) -> Iterator[None]:
    """Tell a target that does not answer from one that a person has given up.

    Raises:
        TargetLost: it was given up.
    """
    try:
        yield
    except NO_CONTACT as error:
        if ctx.is_there(subject):
            lost_for_good(ctx, subject, error)
        raise


def _bring_up(
    ctx: RunContext, subject: str, attempt: int, verb: Verb, checkpoint: str | None
) -> dict[str, Any]:
    spec = ctx.workload(subject).spec
    with _given_up_if_lost(ctx, subject):
        if not ctx.is_there(subject):
            take_back(ctx, subject)
        elif checkpoint is None:
            give_the_launch(ctx, subject)
        return ctx.where(subject).operate(
            ctx.operation_id(verb, subject, attempt),
            "restore" if verb is Verb.RESTORE else "cold-start",
            bring_up_arguments(subject, spec, ctx.run, checkpoint),
            spec.ready.deadline + SLACK,
            ctx.progress,
        )


def _return_to_service(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    """Let work in again, and give the workload back to whoever supervises it."""
    if subject == ctx.plan.node:
        return scheduling.give_back_node(ctx)
    action = ctx.workload(subject).spec.drain.end
    node = ctx.where(subject)
    result: dict[str, Any] = {}
    if action is not None:
        result = node.operate(
            ctx.operation_id(Verb.RETURN_TO_SERVICE, subject, attempt),
            "action",
            {"action": plain(action)},
            action.timeout + SLACK,
            ctx.progress,
        )
    at_router = open_at_router(ctx, subject)
    for holding in {node.name: node, ctx.node.name: ctx.node}.values():
        holding.call("release", workload=subject, run=ctx.run)
    admission = "opened" if action is not None else "not controlled"
    return {"admission": admission, **result, **at_router}


def _quarantine(ctx: RunContext, _subject: str, _attempt: int) -> dict[str, Any]:
    cause = next(
        (
            str(e.data.get("cause", ""))
            for e in reversed(ctx.events())
            if e.kind == "decision" and e.data.get("topic") == "quarantine"
        ),
        "maintenance failed",
    )
    return ctx.node.call("quarantine", run=ctx.run, cause=cause)


def _or_of_job(verb: Verb, step: Step | None) -> Step:
    """A verb that is done in another way with a scheduler's job, or with such a job alone."""

    def run(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
        job = ctx.plan.job(subject)
        if job is not None:
            verbs = JOB_VERBS if job.kind == "job" else POD_VERBS
            if verb not in verbs:
                raise PermanentError(subject, f"{verb.value} is not for a {job.kind}")
            return verbs[verb](ctx, job, attempt)
        if step is None:
            raise PermanentError(subject, f"{verb.value} is for jobs of a scheduler")
        return step(ctx, subject, attempt)

    return run


_STEPS: dict[Verb, Step | None] = {
    Verb.PRECHECK: _precheck,
    Verb.DRAIN: _drain,
    Verb.SIGNAL: None,
    Verb.CHECKPOINT: _checkpoint,
    Verb.TRANSFER: _transfer,
    Verb.REQUEUE: None,
    Verb.EVICT: lambda ctx, _subject, _attempt: evict_node(ctx),
    Verb.STOP: _stop,
    Verb.WAIT: _wait,
    Verb.MAINTAIN: _maintain,
    Verb.ROLLBACK: _rollback,
    Verb.VALIDATE: _validate,
    Verb.GATE: _gate,
    Verb.RESTORE: _restore,
    Verb.COLD_START: _cold_start,
    Verb.RETURN_TO_SERVICE: _return_to_service,
    Verb.RELEASE: None,
    Verb.QUARANTINE: _quarantine,
}

VERBS: dict[Verb, Step] = {verb: _or_of_job(verb, step) for verb, step in _STEPS.items()}
