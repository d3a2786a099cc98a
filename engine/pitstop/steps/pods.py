"""What a run does with the pods of its node, and with what runs in them under the launcher.

Such a workload is saved on the node, its launcher waits in its pod, and the eviction ends
both. The pod that its controller makes in its place runs the launcher again, which restores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pitstop.decide.attempts import standing
from pitstop.model.errors import (
    CheckpointFailed,
    NotDrained,
    PermanentError,
    Refused,
    WorkloadGone,
)
from pitstop.model.jobs import JobPlan
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.parked import (
    ask_of_workload,
    bring_back_parked,
    came_back,
    checkpoint_parked,
)

if TYPE_CHECKING:
    from pitstop.fleet.kubernetes.choice import PodChoice

INTERVAL = 1.0
"""Seconds between looks at a workload that is to come back."""


def refuse_late_pods(ctx: RunContext) -> None:
    """See that no pod has come that the plan knows nothing of; the node is cordoned by now.

    Raises:
        NotDrained: one has.
    """
    assert ctx.plan.scheduler is not None  # noqa: S101  # asked only with one
    planned = {pod.uid for pod in ctx.plan.scheduler.pods}
    with _evacuation(ctx) as evacuation:
        choices = evacuation.plan_pods(ctx.scheduler_node)
    late = [
        choice.pod.key
        for choice in choices
        if choice.action.value != "leave" and choice.pod.uid not in planned
    ]
    if late:
        raise NotDrained(
            ctx.plan.node,
            f"pods have come since it was planned: {', '.join(late)}",
            "make a new plan",
        )


def evict_node(ctx: RunContext) -> dict[str, Any]:
    """Evict what was planned, and wait until it is gone.

    Raises:
        Refused: a pod may not be evicted, or one of its workloads is not saved.
        DeadlineExceeded: pods are still there; the evidence says which are gone.
        PitstopError: the API refuses, or cannot be asked.
    """
    assert ctx.plan.scheduler is not None  # noqa: S101  # asked only with one
    planned = {pod.uid for pod in ctx.plan.scheduler.pods}
    node = ctx.scheduler_node
    with _evacuation(ctx) as evacuation:
        now = evacuation.plan_pods(node)
        choices = [choice for choice in now if choice.pod.uid in planned]
        _refuse_changed(ctx, choices)
        found = evacuation.evict(
            node, ctx.run, choices, progress=ctx.progress, saved=_dealt_with(ctx)
        )
    return {
        "gone": list(found.gone),
        "gone_before": list(found.gone_before),
        "seconds": round(found.seconds, 3),
        "refusals": dict(found.refusals),
    }


def _refuse_changed(ctx: RunContext, choices: Sequence[PodChoice]) -> None:
    """What was to be left must not be evicted because it looks different by now.

    Raises:
        Refused: one does.
    """
    assert ctx.plan.scheduler is not None  # noqa: S101  # asked only with one
    left = {pod.uid for pod in ctx.plan.scheduler.pods if pod.action == "leave"}
    changed = [c.pod.key for c in choices if c.pod.uid in left and c.action.value != "leave"]
    if changed:
        raise Refused(ctx.plan.node, f"planned to be left, and different now: {changed[0]}")


def checkpoint_pod(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Save what runs in a pod; its launcher waits there.

    Raises:
        WorkloadGone: it has ended, as its own record says.
        PitstopError: it was not saved, and runs on.
    """
    try:
        return checkpoint_parked(ctx, plan, attempt)
    except WorkloadGone as error:
        if ctx.node.call("workload", workload=plan.workload)["running"]:
            raise CheckpointFailed(plan.name, error.cause) from error
        raise


def release_pod(ctx: RunContext, plan: JobPlan, attempt: int) -> dict[str, Any]:
    """Let a workload come back, and see how it has: in its old pod, or in a new one.

    Returns:
        As `pitstop.steps.jobs.release_job`. Where a new pod runs, its node is known only as
        this one or another.
    """
    found = ask_of_workload(ctx, "workload", workload=plan.workload)
    if found["parked"]:
        try:
            return {**bring_back_parked(ctx, plan, attempt), "node": ctx.scheduler_node}
        except WorkloadGone:
            ctx.progress(f"{plan.name}: its pod was ended; a new one brings it back")
    ask_of_workload(ctx, "release", workload=plan.workload, run=ctx.run)
    end = time.monotonic() + ctx.scheduler_spec.start_deadline
    while True:
        back = came_back(ctx, plan)
        if back is not None:
            here = back.pop("boot_id") == ctx.node.ping()["boot_id"]
            return {**back, "node": ctx.scheduler_node if here else "another node"}
        if time.monotonic() > end:
            return {"how": "requeued", "state": "no pod has brought it back yet"}
        time.sleep(INTERVAL)


def _dealt_with(ctx: RunContext) -> list[str]:
    """Workloads of which a sealed checkpoint exists, or that have ended by themselves."""
    events = ctx.events()
    found = []
    for job in ctx.plan.jobs:
        step = standing(events, Verb.CHECKPOINT, job.name)
        gone = step.failure is not None and step.failure["code"] == WorkloadGone.code
        if step.result is not None or gone:
            found.append(job.workload)
    return found


@contextmanager
def _evacuation(ctx: RunContext) -> Iterator[Any]:
    from pitstop.fleet.kubernetes.api import Api
    from pitstop.fleet.kubernetes.connection import connect
    from pitstop.fleet.kubernetes.evacuation import Evacuation

    spec = ctx.scheduler_spec
    if not isinstance(spec, KubernetesSpec):
        raise PermanentError(ctx.plan.node, f"{spec.kind} has no pods")
    api = Api(connect(spec))
    try:
        yield Evacuation(api, spec)
    finally:
        api.close()


PodStep = Callable[[RunContext, JobPlan, int], dict[str, Any]]

POD_VERBS: dict[Verb, PodStep] = {Verb.CHECKPOINT: checkpoint_pod, Verb.RELEASE: release_pod}
