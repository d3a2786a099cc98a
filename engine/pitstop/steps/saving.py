"""A checkpoint as a step: asked for once, and settled when nobody can say how it went."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pitstop.model.errors import CheckpointFailed, EndedInDump, Interrupted, Refused
from pitstop.model.plain import is_name
from pitstop.model.workload import GpuLimits
from pitstop.steps.context import RunContext

CHECKPOINT_DEADLINE = 3600.0

SLACK = 120.0
"""Seconds that an operation may take over the deadlines it is given itself."""


def worst_case(limits: GpuLimits) -> float:
    """Return the seconds that GPU state may take to be parked and, if that fails, brought back.

    Processes that the driver takes in turn can take longer: then the step is asked for again, and
    attaches to the operation.
    """
    return limits.lock + 4 * limits.move + 8 * limits.call


def checkpoint_id(subject: str, run: str, attempt: int) -> str:
    """Name a checkpoint: the same whoever asks, and never longer than a name may be."""
    name = f"{subject}.{run}.{attempt}"
    if is_name(name):
        return name
    digest = hashlib.sha256(f"{subject}.{run}".encode()).hexdigest()[:16]
    return f"{subject[:30]}.{digest}.{attempt}"


def refuse_if_held(ctx: RunContext, subject: str, now: Mapping[str, Any]) -> None:
    """Leave alone what another run holds; `now` is what the node says of it.

    Raises:
        Refused: one does.
    """
    if now["holder"] not in ("", ctx.run):
        raise Refused(subject, f"held by run {now['holder']}")


def refuse_if_blocked(subject: str, now: Mapping[str, Any]) -> None:
    """Leave alone what was planned to be saved and cannot be any more.

    Raises:
        Refused: it is so; of what does not run nothing is known to be in the way.
    """
    if now["blockers"]:
        blocker = now["blockers"][0]
        raise Refused(
            subject,
            f"cannot be saved any more: {blocker['what']} at {blocker['where']}",
            "make a new plan",
        )


def save(
    ctx: RunContext,
    subject: str,
    workload: str,
    identifier: str,
    checkpoint: str,
    arguments: Mapping[str, Any],
    pid_file: str | None = None,
) -> dict[str, Any]:
    """Save a workload; after an interruption the node is asked what is true.

    Raises:
        CheckpointFailed: it runs on.
        EndedInDump: it does not run, and there is no image of it.
    """
    gpus = worst_case(GpuLimits.model_validate(arguments["gpu_limits"]))
    deadline = CHECKPOINT_DEADLINE + gpus + SLACK
    try:
        return ctx.node.operate(identifier, "checkpoint", arguments, deadline, ctx.progress)
    except Interrupted as error:
        found = ctx.node.call("settle", workload=workload, checkpoint=checkpoint, pid_file=pid_file)
        if found["checkpoint"] is not None:
            return dict(found["checkpoint"])
        if found["running"]:
            raise CheckpointFailed(subject, f"{error.cause}; the workload runs on") from error
        raise EndedInDump(subject, f"{error.cause}; the workload does not run") from error
