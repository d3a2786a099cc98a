"""Planning for what a scheduler has on a node, whichever scheduler it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pitstop.decide.gate import predict
from pitstop.fleet.node import RemoteNode
from pitstop.fleet.scheduler import MARK, Claim
from pitstop.model.fingerprint import Fingerprint
from pitstop.model.jobs import JobPolicy
from pitstop.model.plan import SchedulerPlan
from pitstop.model.site import Node, Site
from pitstop.model.slurm import SlurmSpec
from pitstop.model.verdict import Verdict
from pitstop.model.words import Strategy
from pitstop.steps.specs import inspect_argument

NO_RUN = ""
"""No run has an empty id, so whatever is drained at planning is somebody else's."""


def plan_scheduler(
    site: Site, node: RemoteNode, changes: Mapping[str, str]
) -> SchedulerPlan | None:
    """Look at a node through its scheduler and choose for all that is on it.

    Returns:
        None where the site declares no scheduler.

    Raises:
        PitstopError: it cannot be told; a node of which that is not known is not planned for.
    """
    spec = site.scheduler
    if spec is None:
        return None
    if isinstance(spec, SlurmSpec):
        from pitstop.steps.job_planning import plan_slurm

        return plan_slurm(site, spec, node, changes)
    from pitstop.steps.pod_planning import plan_kubernetes

    return plan_kubernetes(site, spec, node, changes)


def no_go(plan: SchedulerPlan | None, declared: Collection[str]) -> list[str]:
    """Return what forbids the run; `declared` are the site's own workloads on the node."""
    if plan is None:
        return []
    clashes = sorted({job.name for job in plan.jobs} & set(declared))
    if clashes:
        return [f"{clashes[0]} is a workload of site.yaml and a job's name here: rename it"]
    reasons = [
        f"{job.name} ({job.title}): {job.reason}"
        for job in plan.jobs
        if job.strategy is Strategy.REFUSE
    ]
    reasons += [f"pod {pod.key}: {pod.reason}" for pod in plan.pods if pod.action == "refuse"]
    if plan.claim == Claim.FOREIGN.value and plan.reason.startswith(MARK):
        reasons.append(f"drained by run {plan.reason.removeprefix(MARK)}")
    return reasons


def inspect(node: RemoteNode, workload: str, policy: JobPolicy) -> dict[str, Any]:
    """Look at what runs under the launcher, without touching it."""
    asked = {workload: inspect_argument(policy)}
    found: dict[str, Any] = node.call("inspect", workloads=asked)["workloads"][workload]
    return found


def blockers_of(inspected: Mapping[str, Any]) -> list[str]:
    """Return what would make a dump fail, in words."""
    return [f"{b['what']} at {b['where']}: {b['why']}" for b in inspected.get("blockers", ())]


def predicted_for(site: Site, inspected: Mapping[str, Any], changes: Mapping[str, str]) -> Verdict:
    """Return what the gate will say on this node; that all is well where nothing is saved."""
    if not inspected:
        return Verdict()
    saved = Fingerprint.from_json(inspected["fingerprint"])
    return predict(saved, changes, site.policy.tolerate)


def peer_of(site: Site, node: str, shared: bool) -> dict[str, Node]:
    """Return another node that sees the same workloads; empty where there is none."""
    others = {name: spec for name, spec in site.nodes.items() if name != node}
    return dict(list(others.items())[:1]) if shared else {}
