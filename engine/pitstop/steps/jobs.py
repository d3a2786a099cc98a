"""What each verb does with a scheduler's job.

Its owner comes first: every verb looks at the job before it acts. One that was cancelled is not
brought back, and what was saved of it is removed. One that ended in any other way, or that its
scheduler has forgotten, keeps its checkpoint: a person decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pitstop.fleet.node import DeferringNode, Pending
from pitstop.fleet.scheduler import Job
from pitstop.model.errors import (
    CheckpointFailed,
    DeadlineExceeded,
    EndedInDump,
    PermanentError,
    Refused,
    WorkloadGone,
)
from pitstop.model.jobs import JobPlan, Signal
from pitstop.model.plain import is_name
from pitstop.model.slurm import SlurmSpec
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.parked import (
    GENERATION,
    ask_of_workload,
    bring_back_parked,
    came_back,
    checkpoint_parked,
)
from pitstop.steps.saving import SLACK

INTERVAL = 1.0
"""Seconds between looks at a job: a scheduler sends no events."""

QUEUE_DEADLINE = 300.0
"""Seconds until a job that was put back into the queue has left its nodes."""


def signal_job(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Tell a job to save itself, and wait until its checkpoint is complete.

    Raises:
        WorkloadGone: it has ended.
        DeadlineExceeded: no complete checkpoint in time. It runs on.
    """
    signal = plan.policy.signal
    if signal is None:
        raise PermanentError(plan.name, "no signal is declared for it")
    job = _there(ctx, plan)
    if not job.running:
        raise PermanentError(plan.name, f"it is not running: {job.state}")
    path = checkpoint_path(plan, signal)
    sent = ctx.noted(plan.name, "signalled", attempt)
    if sent is None:
        # The node's own clock, since the file's time is the node's (or its file server's).
        sent = {"time": ctx.node.call("stat", path=path)["now"]}
        ctx.note(plan.name, "signalled", Verb.SIGNAL, attempt, **sent)
    if ctx.noted(plan.name, "signal sent", attempt) is None:
        # After a crash in between it is sent twice, which costs a checkpoint; never not at all.
        ctx.slurm[0].signal(plan.key, signal.signal, signal.to == "batch")
        ctx.note(plan.name, "signal sent", Verb.SIGNAL, attempt)
    found = ctx.node.operate(
        ctx.operation_id(Verb.SIGNAL, plan.name, attempt),
        "wait-file",
        {
            "path": path,
            "since": sent["time"],
            "quiet": signal.quiet,
            "deadline": signal.deadline,
        },
        signal.deadline + SLACK,
        ctx.progress,
    )
    return {"signal": signal.signal, "to": signal.to, **found}


def checkpoint_path(plan: JobPlan, signal: Signal) -> str:
    """Return where a job writes its own checkpoint.

    Raises:
        PermanentError: a name that its owner chose is no name, but might be a path.
    """
    names = {"job": plan.key, "user": plan.user, "name": plan.title}
    for field, value in names.items():
        if f"{{{field}}}" in signal.file and not is_name(value):
            raise PermanentError(plan.name, f"its {field} {value[:100]!r} cannot be in a path")
    return signal.file.format(**names)


def checkpoint_job(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Save a job's processes. Its launcher stays, so that the job does not end.

    Raises:
        WorkloadGone: it has ended.
        PitstopError: it was not saved, and runs on.
    """
    _there(ctx, plan)
    try:
        return checkpoint_parked(ctx, plan, attempt)
    except (EndedInDump, WorkloadGone) as error:
        job = ctx.slurm[0].job(plan.number)
        if job is None or job.over:
            raise WorkloadGone(plan.name, f"it has ended: {_state(job)}") from error
        if isinstance(error, EndedInDump):
            raise
        # Its launcher is not here any more, or not yet; the job itself goes on.
        raise CheckpointFailed(plan.name, f"{error.cause}, and it is {job.state}") from error


def requeue_job(ctx: RunContext, plan: JobPlan, _attempt: int) -> dict[str, Any]:
    """Put a job back into the queue, held, and wait until it has left this node.

    Returns:
        `requeued`; False when it has ended, with `state`, and `kept`: the checkpoint that it
        has left, unless its owner cancelled it.
    """
    _note_generation(ctx, plan)
    end = time.monotonic() + QUEUE_DEADLINE
    asked = False
    while True:
        job = ctx.slurm[0].job(plan.number)
        if job is None or job.over:
            return {"requeued": False, **_ended(ctx, plan, job)}
        if job.waiting and job.held:
            return {"requeued": True, "state": job.state}
        if job.running and ctx.scheduler_node not in job.nodes:
            # Its scheduler was faster, as when the node died, or somebody has released it. If
            # it was saved its launcher waits there, for as long as this run holds it.
            return {"requeued": True, "state": f"{job.state} on {', '.join(job.nodes)}"}
        if job.waiting:
            ctx.slurm[0].hold(plan.key)
        elif job.running and not asked:
            _refuse_if_unsaved(ctx, plan)
            ctx.progress(f"{plan.name}: back into the queue, held")
            ctx.slurm[0].requeue(plan.key)
            asked = True
        if time.monotonic() > end:
            raise DeadlineExceeded(plan.name, f"still {job.state} after {QUEUE_DEADLINE:g} s")
        time.sleep(INTERVAL)


def _note_generation(ctx: RunContext, plan: JobPlan) -> None:
    """Note which start of it this is, to tell it from the one that comes after."""
    if plan.workload and ctx.noted(plan.name, GENERATION) is None:
        found = ctx.node.call("workload", workload=plan.workload)
        ctx.note(plan.name, GENERATION, Verb.REQUEUE, generation=found["generation"])


def _refuse_if_unsaved(ctx: RunContext, plan: JobPlan) -> None:
    """A saved job whose launcher does not wait any more runs something else by now.

    Raises:
        Refused: it would be ended without having been saved.
    """
    if ctx.result(Verb.CHECKPOINT, plan.name) is None:
        return
    if not ctx.node.call("workload", workload=plan.workload)["parked"]:
        raise Refused(plan.name, "it was saved, and its launcher does not wait any more")


def release_job(ctx: RunContext, plan: JobPlan, _attempt: int) -> dict[str, Any]:
    """Let a job start again, and see how it came back.

    Returns:
        `how`: `restored` or `cold` with its `cause`; `requeued` while it waits in the queue;
        `started` for one without a launcher; `ended` with `state`, and with `kept` where a
        checkpoint is left. `node`: where it started. `ready_seconds`: from the start of its
        launcher until it ran.
    """
    scheduler, spec = ctx.slurm
    if ctx.noted(plan.name, "released") is None:
        job = scheduler.job(plan.number)
        if job is None or job.over:
            return {"how": "ended", **_ended(ctx, plan, job)}
        if plan.workload:
            ask_of_workload(ctx, "release", workload=plan.workload, run=ctx.run)
        if job.held:
            excluded, only = where_to(ctx, plan, spec, job)
            scheduler.release(plan.key, excluded, only)
        ctx.note(plan.name, "released", Verb.RELEASE, state=job.state)
    return _watch_start(ctx, plan, spec)


def where_to(
    ctx: RunContext, plan: JobPlan, spec: SlurmSpec, job: Job
) -> tuple[tuple[str, ...], str]:
    """Return the nodes that a job must not start on, and the only one that it may."""
    here = ctx.scheduler_node
    saved = ctx.result(Verb.CHECKPOINT, plan.name) is not None
    if saved and not spec.shared_state:
        return (), here  # its checkpoint is there, and nowhere else
    # Its owner's own are kept.
    return ((*job.excluded, here), "") if saved and plan.avoid else ((), "")


def _watch_start(ctx: RunContext, plan: JobPlan, spec: SlurmSpec) -> dict[str, Any]:
    end = time.monotonic() + spec.start_deadline
    while True:
        job = ctx.slurm[0].job(plan.number)
        if job is None or job.over:
            found = came_back(ctx, plan) if plan.workload else None
            # Short work can have come back and ended between two looks.
            return found or {"how": "ended", **_ended(ctx, plan, job)}
        if job.running:
            node = job.nodes[0] if job.nodes else ""
            if not plan.workload:
                return {"how": "started", "node": node, "nodes": list(job.nodes)}
            found = came_back(ctx, plan)
            if found is not None:
                return {**found, "node": node}
        if time.monotonic() > end:
            return {"how": "requeued", "state": job.state}
        time.sleep(INTERVAL)


def wait_job(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Wait for a job's own end.

    Raises:
        DeadlineExceeded: it did not come in time. The job runs on.
        Pending: it has not come, and nobody has to hold a process for it.
    """
    deadline = plan.policy.wait_deadline
    if (begun := ctx.noted(plan.name, "waits", attempt)) is None:
        begun = {"time": time.time()}
        ctx.note(plan.name, "waits", Verb.WAIT, attempt, **begun)
    while True:
        job = ctx.slurm[0].job(plan.number)
        if job is None or job.over:
            return {"state": _state(job)}
        left = float(begun["time"]) + deadline - time.time()
        if left <= 0:
            raise DeadlineExceeded(plan.name, f"still {job.state} after {deadline:g} s")
        if isinstance(ctx.node, DeferringNode) and not ctx.node.out_of_time:
            raise Pending({"for": "job", "number": plan.number}, left)
        time.sleep(INTERVAL)


def resume_job(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Put a job right that was not requeued: the run has been given up.

    What is true is asked: its launcher may wait, or the job may never have stopped, or be in
    the queue all the same.

    Returns:
        As `release_job`, or `how`: `untouched`.
    """
    found = ask_of_workload(ctx, "workload", workload=plan.workload)
    if found["parked"]:
        try:
            return bring_back_parked(ctx, plan, attempt)
        except WorkloadGone as error:
            ctx.progress(f"{plan.name}: {error.cause}")
    elif found["running"] and ctx.result(Verb.CHECKPOINT, plan.name) is None:
        ask_of_workload(ctx, "release", workload=plan.workload, run=ctx.run)
        return {"how": "untouched"}
    return release_job(ctx, plan, attempt)


def _there(ctx: RunContext, plan: JobPlan) -> Job:
    job = ctx.slurm[0].job(plan.number)
    if job is None or job.over:
        raise WorkloadGone(plan.name, f"it has ended: {_state(job)}")
    return job


def _state(job: Job | None) -> str:
    return "no longer known to its scheduler" if job is None else job.state


def _ended(ctx: RunContext, plan: JobPlan, job: Job | None) -> dict[str, Any]:
    """Say how a job ended, and deal with what this run has saved of it."""
    state = {"state": _state(job)}
    saved = ctx.result(Verb.CHECKPOINT, plan.name)
    if saved is None:
        return state
    about = {"workload": plan.workload, "run": ctx.run}
    if job is not None and job.cancelled:
        return {
            **state,
            **ask_of_workload(ctx, "images.forget", checkpoint=saved["checkpoint"], **about),
        }
    ask_of_workload(ctx, "release", **about)
    return {**state, "kept": saved["checkpoint"]}


JobStep = Callable[[RunContext, JobPlan, int], dict[str, Any]]

JOB_VERBS: dict[Verb, JobStep] = {
    Verb.SIGNAL: signal_job,
    Verb.WAIT: wait_job,
    Verb.CHECKPOINT: checkpoint_job,
    Verb.REQUEUE: requeue_job,
    Verb.RESTORE: resume_job,
    Verb.RELEASE: release_job,
}
