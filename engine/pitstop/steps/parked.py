"""Saving what runs under a launcher inside somebody else's job or pod, and bringing it back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pitstop.model.errors import (
    CheckpointFailed,
    ConnectionLost,
    DeadlineExceeded,
    NodeUnreachable,
    PitstopError,
)
from pitstop.model.jobs import JobPlan
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.saving import SLACK, checkpoint_id, save
from pitstop.steps.specs import plain, probes_of

RESTORE_DEADLINE = 3600.0

GENERATION = "generation before"
"""Under this topic the journal says which start of it was ended."""


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
        "probes": probes_of(plan.policy),
        "tolerate": list(ctx.plan.policy.tolerate),
        "stay": True,
        "gpu_limits": plain(plan.policy.gpu_limits),
    }
    identifier = ctx.operation_id(Verb.CHECKPOINT, plan.name, attempt)
    try:
        return save(ctx, plan.name, plan.workload, identifier, checkpoint, arguments)
    except CheckpointFailed:
        # It runs on. Cut off in the middle, the dump may have left the run's hold.
        with suppress(PitstopError):
            ctx.node.call("release", workload=plan.workload, run=ctx.run)
        raise


def bring_back_parked(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Bring it back where it is, by the launcher that waits there.

    Raises:
        WorkloadGone: none waits any more.
        PitstopError: it could not be brought back.
    """
    saved = ctx.result(Verb.CHECKPOINT, plan.name)
    return ctx.node.operate(
        ctx.operation_id(Verb.RESTORE, plan.name, attempt),
        "bring-back",
        {
            "workload": plan.workload,
            "run": ctx.run,
            # Without one: the newest, of a dump whose end nobody has heard of.
            "checkpoint": saved["checkpoint"] if saved else None,
            "deadline": RESTORE_DEADLINE,
        },
        RESTORE_DEADLINE + SLACK,
        ctx.progress,
    )


def came_back(ctx: RunContext, plan: JobPlan) -> dict[str, Any] | None:
    """Return how a launcher, on whichever node, has brought it back; None while none has."""
    saved = ctx.result(Verb.CHECKPOINT, plan.name)
    before = saved or ctx.noted(plan.name, GENERATION) or {"generation": 0}
    found = ask_of_workload(ctx, "workload", workload=plan.workload)
    # One that never ran has no time of that.
    if found["generation"] <= before["generation"] or found["start_seconds"] is None:
        return None
    return {
        "how": found["how"],
        "cause": found["cause"],
        "generation": found["generation"],
        "started": found["started"],
        "ready_seconds": found["start_seconds"],
        "boot_id": found["boot_id"],
    }


def ask_of_workload(ctx: RunContext, call: str, **arguments: Any) -> dict[str, Any]:
    """Ask what the run's node knows of a workload; where that is shared, any node does.

    A node that does not come back from its maintenance must keep no job in the queue.

    Raises:
        PitstopError: nobody answers.
    """
    try:
        return ctx.node.call(call, **arguments)
    except (NodeUnreachable, ConnectionLost, DeadlineExceeded):
        peer = ctx.peer
        if peer is None:
            raise
        ctx.progress(f"{ctx.plan.node} does not answer; {peer.name} is asked instead")
        return peer.call(call, **arguments)
