"""Saving what runs under a launcher inside somebody else's job or pod, and bringing it back."""

from __future__ import annotations

from typing import Any

from pitstop.model.errors import PermanentError
from pitstop.model.jobs import JobPlan
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.saving import SLACK, checkpoint_id, save
from pitstop.steps.specs import probes_of_policy

RESTORE_DEADLINE = 3600.0


def checkpoint_parked(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Save it. Its launcher stays, so that its job or pod does not end.

    Raises:
        PitstopError: it was not saved, and runs on; or it had ended.
    """
    checkpoint = checkpoint_id(plan.name, ctx.run, attempt)
    arguments = {
        "workload": plan.workload,
        "checkpoint": checkpoint,
        "run": ctx.run,
        "node": ctx.plan.node,
        "shape": plan.shape.value,
        "connections": plan.policy.connections.value,
        "probes": probes_of_policy(plan.policy),
        "tolerate": list(ctx.plan.policy.tolerate),
        "stay": True,
    }
    identifier = ctx.operation_id(Verb.CHECKPOINT, plan.name, attempt)
    return save(ctx, plan.name, plan.workload, identifier, checkpoint, arguments)


def bring_back_parked(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Bring it back where it is, by the launcher that waits there.

    Raises:
        WorkloadGone: none waits any more.
        PitstopError: it could not be brought back.
    """
    saved = ctx.result(Verb.CHECKPOINT, plan.name)
    if saved is None:
        raise PermanentError(plan.name, "there is no checkpoint of it in this run")
    return ctx.node.operate(
        ctx.operation_id(Verb.RESTORE, plan.name, attempt),
        "bring-back",
        {
            "workload": plan.workload,
            "run": ctx.run,
            "checkpoint": saved["checkpoint"],
            "deadline": RESTORE_DEADLINE,
        },
        RESTORE_DEADLINE + SLACK,
        ctx.progress,
    )


def came_back(ctx: RunContext, plan: JobPlan) -> dict[str, Any] | None:
    """Return how a launcher, on whichever node, has brought it back; None while none has."""
    before = (ctx.result(Verb.CHECKPOINT, plan.name) or {}).get("generation", 0)
    found = ctx.node.call("workload", workload=plan.workload)
    if found["generation"] <= before or found["phase"] == "starting":
        return None
    return {
        "how": found["how"],
        "cause": found["cause"],
        "generation": found["generation"],
        "started": found["started"],
        "ready_seconds": found["start_seconds"],
        "boot_id": found["boot_id"],
    }
