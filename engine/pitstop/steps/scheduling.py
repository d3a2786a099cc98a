"""The node in the eyes of its scheduler: closed, empty, and given back."""

from __future__ import annotations

import time
from typing import Any

from pitstop.fleet.scheduler import MARK, Claim, JobScheduler, Standing
from pitstop.model.errors import NotDrained, Refused
from pitstop.model.words import Strategy, Verb
from pitstop.steps.context import RunContext
from pitstop.steps.pods import refuse_late_pods
from pitstop.steps.runbook_steps import maintenance_begun
from pitstop.steps.saving import refuse_if_blocked, refuse_if_held
from pitstop.steps.specs import inspect_argument

INTERVAL = 1.0
"""Seconds between looks at a node: a scheduler sends no events."""

EMPTY = "closed and empty"
"""Under this topic the journal says in which state maintenance found the node."""


def refuse_if_claimed(ctx: RunContext) -> None:
    """Leave a node alone that another run of pitstop has drained.

    One that a person has drained is no obstacle: it stays theirs.

    Raises:
        Refused: another run has it.
    """
    if ctx.plan.scheduler is None:
        return
    found = ctx.scheduler.look(ctx.scheduler_node, ctx.run)
    if found.claim is Claim.FOREIGN and found.reason.startswith(MARK):
        other = found.reason.removeprefix(MARK)
        raise Refused(ctx.plan.node, f"drained by run {other}", f"pitstop resume {other}")


def refuse_if_unsavable(ctx: RunContext) -> None:
    """Look once more at what is to be saved: the plan may be hours old.

    One that has ended meanwhile is no obstacle.

    Raises:
        Refused: something cannot be saved any more, or another run holds it.
    """
    planned = [job for job in ctx.plan.jobs if job.strategy is Strategy.RESTORE]
    asked = {job.workload: inspect_argument(job.policy) for job in planned}
    found = ctx.node.call("inspect", workloads=asked)["workloads"] if asked else {}
    for job in planned:
        refuse_if_held(ctx, job.name, found[job.workload])
        refuse_if_blocked(job.name, found[job.workload])


def drain_node(ctx: RunContext) -> dict[str, Any]:
    """Keep new jobs away, and see that there are none but those that were planned with.

    Raises:
        NotDrained: another one has come since.
    """
    found = ctx.scheduler.drain(ctx.scheduler_node, ctx.run)
    if isinstance(ctx.scheduler, JobScheduler):
        _refuse_late_jobs(ctx, ctx.scheduler)
    else:
        refuse_late_pods(ctx)
    return _plain(found)


def _refuse_late_jobs(ctx: RunContext, scheduler: JobScheduler) -> None:
    planned = {job.number for job in ctx.plan.jobs}
    strange = [job for job in scheduler.jobs(ctx.scheduler_node) if job.number not in planned]
    if strange:
        names = ", ".join(f"{job.key} ({job.user})" for job in strange)
        raise NotDrained(
            ctx.plan.node, f"jobs have started since it was planned: {names}", "make a new plan"
        )


def wait_until_empty(ctx: RunContext) -> None:
    """See, right before the first disruptive step, that the node is closed and empty.

    The flag is not the state: it may have been taken off, and jobs leave slowly.

    Raises:
        NotDrained: it is not.
    """
    if ctx.plan.scheduler is None or maintenance_begun(ctx):
        return
    deadline = ctx.scheduler_spec.drain_deadline
    end = time.monotonic() + deadline
    while True:
        found = ctx.scheduler.look(ctx.scheduler_node, ctx.run)
        if found.claim is Claim.NOBODY:
            raise NotDrained(
                ctx.plan.node,
                f"somebody has opened it to new jobs: it is {found.state}",
                "nothing was done to it",
            )
        if found.drained:
            ctx.note(ctx.plan.node, EMPTY, Verb.MAINTAIN, **_plain(found))
            return
        if time.monotonic() > end:
            left = ", ".join(found.jobs) or "no job, but its scheduler does not call it empty"
            raise NotDrained(
                ctx.plan.node, f"not empty after {deadline:g} s: {left}; it is {found.state}"
            )
        ctx.progress(f"{ctx.plan.node}: {found.state}, with {', '.join(found.jobs) or 'no job'}")
        time.sleep(INTERVAL)


def give_back_node(ctx: RunContext) -> dict[str, Any]:
    """Let new jobs in again, if it is this run that keeps them away."""
    given = ctx.scheduler.give_back(ctx.scheduler_node, ctx.run)
    found = ctx.scheduler.look(ctx.scheduler_node, ctx.run)
    return {"given_back": given, **_plain(found)}


def _plain(found: Standing) -> dict[str, Any]:
    return {
        "claim": found.claim.value,
        "reason": found.reason,
        "state": found.state,
        "jobs": list(found.jobs),
    }
