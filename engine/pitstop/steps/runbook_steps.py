"""The runbook's own steps on the node: commands, checks, reboots, and their undoing."""

from __future__ import annotations

from typing import Any, Literal

from pitstop.model.errors import Interrupted, MaintenanceFailed, PitstopError, ValidationFailed
from pitstop.model.runbook import RunbookStep
from pitstop.model.slurm import SlurmSpec
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext

SLACK = 120.0


def run_phase(
    ctx: RunContext, phase: Literal["maintain", "validate"], attempt: int
) -> list[dict[str, Any]]:
    """Run all steps of a phase in order and return their evidence.

    Every command has an id of its own on the node, so that doing this again after a crash
    attaches to what ran already instead of running it twice.

    Raises:
        MaintenanceFailed: a step of `maintain` failed.
        ValidationFailed: a check of `validate` failed.
    """
    verb = Verb.MAINTAIN if phase == "maintain" else Verb.VALIDATE
    evidence = []
    for step in ctx.plan.runbook.steps:
        if step.phase != phase:
            continue
        ctx.progress(f"{ctx.plan.node}: {step.step}")
        try:
            if step.kind == "reboot":
                evidence.append(_reboot(ctx, step))
            else:
                evidence.append(_command(ctx, step, verb, attempt))
        except PitstopError as error:
            error.evidence = {"steps": [*evidence, *error.evidence.get("steps", ())]}
            raise
    return evidence


def rollback(ctx: RunContext, attempt: int) -> dict[str, Any]:
    """Undo, newest first, every step that was begun, then look whether the node is fit.

    Returns:
        `steps` with the evidence of both, and `valid`: whether undoing and checks went well.
    """
    evidence, valid = [], True
    for step in reversed(ctx.plan.runbook.steps):
        if step.rollback is None or not _begun(ctx, step):
            continue
        undo = step.model_copy(update={"command": step.rollback, "expect": None, "retries": 0})
        try:
            evidence.append({**_command(ctx, undo, Verb.ROLLBACK, attempt), "undoes": step.step})
        except PitstopError as error:
            valid = False
            evidence.append({"step": step.step, "undoes": step.step, "error": error.to_json()})
    try:
        evidence += run_checks_after_rollback(ctx, attempt)
    except PitstopError as error:
        valid = False
        evidence.append({"step": "validation", "error": error.to_json()})
    return {"steps": evidence, "valid": valid}


def run_checks_after_rollback(ctx: RunContext, attempt: int) -> list[dict[str, Any]]:
    """Run the validation's checks under the rollback's ids."""
    return [
        _command(ctx, step, Verb.ROLLBACK, attempt)
        for step in ctx.plan.runbook.steps
        if step.phase == "validate"
    ]


def maintenance_begun(ctx: RunContext) -> bool:
    """Tell whether the first step of the maintenance was begun; later ones follow it."""
    first = next((step for step in ctx.plan.runbook.steps if step.phase == "maintain"), None)
    if first is None:
        return False
    if first.kind == "reboot":
        return ctx.noted(ctx.plan.node, _boot_topic(first)) is not None
    return _begun(ctx, first)


def _command(ctx: RunContext, step: RunbookStep, verb: Verb, attempt: int) -> dict[str, Any]:
    assert step.command is not None  # noqa: S101  # the model requires it of these kinds
    failure = MaintenanceFailed if verb is Verb.MAINTAIN else ValidationFailed
    seen: dict[str, Any] = {}
    for number in range(1, step.retries + 2):
        try:
            result = ctx.node.operate(
                ctx.operation_id(verb, ctx.plan.node, attempt, f"{step.step}.{number}"),
                "execute",
                {"command": list(step.command), "timeout": step.timeout},
                step.timeout + SLACK,
                ctx.progress,
            )
        except Interrupted as error:
            # How far it came is unknown, so it is not run again.
            raise failure(step.step, f"its end is unknown: {error.cause}") from error
        seen = {
            "step": step.step,
            "kind": step.kind,
            "command": list(step.command),
            "attempts": number,
            **result,
        }
        problem = _problem(step, result)
        if not problem:
            return seen
    tail = str(seen.get("output_tail", ""))[-400:]
    failed = failure(step.step, f"{problem}; output ends: {tail!r}")
    failed.evidence = {"steps": [seen]}
    raise failed


def _problem(step: RunbookStep, result: dict[str, Any]) -> str:
    if result["timed_out"]:
        return f"not done after {step.timeout:g} s"
    if result["exit_status"] != 0:
        return f"exit status {result['exit_status']}"
    if step.expect is not None and step.expect not in str(result["output_tail"]):
        return f"the expected {step.expect!r} is not in its output"
    return ""


def _reboot(ctx: RunContext, step: RunbookStep) -> dict[str, Any]:
    before = _boot_id_before(ctx, step)
    now = str(ctx.node.ping()["boot_id"])
    by_scheduler = _scheduler_reboots(ctx)
    if now == before:
        if by_scheduler:
            ctx.scheduler.reboot(ctx.scheduler_node, ctx.run)
        else:
            identifier = ctx.operation_id(Verb.MAINTAIN, ctx.plan.node, 1, step.step)
            _start_reboot(ctx, identifier, step)
        now = ctx.node.wait_reboot(before, ctx.plan.node_spec.reboot_deadline, ctx.progress)
    return {
        "step": step.step,
        "kind": "reboot",
        "command": ["slurm"] if by_scheduler else list(ctx.plan.node_spec.reboot),
        "boot_id_before": before,
        "boot_id_after": now,
        "attempts": 1,
    }


def _scheduler_reboots(ctx: RunContext) -> bool:
    """A scheduler writes to a node's reason when it reboots it: only where that is ours."""
    spec = ctx.plan.scheduler.spec if ctx.plan.scheduler else None
    if not isinstance(spec, SlurmSpec) or spec.reboot != "slurm":
        return False
    drained = ctx.result(Verb.DRAIN, ctx.plan.node) or {}
    return bool(drained.get("claim") == "ours")


def _start_reboot(ctx: RunContext, identifier: str, step: RunbookStep) -> None:
    """Ask for it. How the asking ends says nothing; only a refusal in so many words does."""
    status = ctx.node.call(
        "op.start",
        id=identifier,
        kind="reboot",
        arguments={"command": list(ctx.plan.node_spec.reboot), "timeout": step.timeout},
    )
    if status["state"] == "failed":
        raise MaintenanceFailed(step.step, str(status["error"]["cause"]))


def _boot_id_before(ctx: RunContext, step: RunbookStep) -> str:
    """Return the boot id from before the reboot: recorded first, so that it is known later."""
    topic = _boot_topic(step)
    noted = ctx.noted(ctx.plan.node, topic)
    if noted is not None:
        return str(noted["boot_id"])
    found = str(ctx.node.ping()["boot_id"])
    ctx.note(ctx.plan.node, topic, Verb.MAINTAIN, boot_id=found)
    return found


def _boot_topic(step: RunbookStep) -> str:
    return f"boot id before {step.step}"


def _begun(ctx: RunContext, step: RunbookStep) -> bool:
    if step.kind == "reboot":
        return False
    identifier = ctx.operation_id(Verb.MAINTAIN, ctx.plan.node, 1, f"{step.step}.1")
    return bool(ctx.node.call("op.status", id=identifier)["state"] != "unknown")
