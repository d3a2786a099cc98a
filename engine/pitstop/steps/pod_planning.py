"""Planning for the pods of a node: what is left, evicted, or saved first."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import closing

from pitstop.decide.shape import shape_of
from pitstop.decide.strategy import invalid_here
from pitstop.fleet.kubernetes.api import Api
from pitstop.fleet.kubernetes.choice import Action, PodChoice
from pitstop.fleet.kubernetes.connection import connect
from pitstop.fleet.kubernetes.errors import NoDryRun
from pitstop.fleet.kubernetes.evacuation import Evacuation
from pitstop.fleet.kubernetes.scheduler import Kubernetes
from pitstop.fleet.node import RemoteNode
from pitstop.model.jobs import JobPlan, JobPolicy, PodPlan
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.plain import is_name
from pitstop.model.plan import SchedulerPlan
from pitstop.model.site import Site
from pitstop.model.words import Strategy
from pitstop.steps.scheduler_planning import NO_RUN, blockers_of, inspect, peer_of, predicted_for


def plan_kubernetes(
    site: Site, spec: KubernetesSpec, node: RemoteNode, changes: Mapping[str, str]
) -> SchedulerPlan:
    """Choose for every pod of a node, and try the evictions dry; nothing is touched.

    Raises:
        PitstopError: it cannot be told.
    """
    name = spec.name_of(node.name)
    with closing(Api(connect(spec))) as api:
        standing = Kubernetes(api).look(name, NO_RUN)
        evacuation = Evacuation(api, spec)
        choices = evacuation.plan_pods(name)
        try:
            blocked = evacuation.rehearse(choices)
        except NoDryRun:
            blocked = {}  # what would be refused is known only when it is asked for
    named = Counter(workload for choice in choices for workload in choice.workloads)
    jobs = [
        _plan_workload(site, spec, node, changes, choice, workload, named[workload] > 1)
        for choice in choices
        for workload in choice.workloads
    ]
    refused = {job.workload: job.reason for job in jobs if job.strategy is Strategy.REFUSE}
    return SchedulerPlan(
        spec=spec,
        node=name,
        claim=standing.claim.value,
        reason=standing.reason,
        state=standing.state,
        peer=peer_of(site, node.name, spec.shared_state),
        jobs=tuple(jobs),
        pods=tuple(_plan_pod(choice, refused, blocked) for choice in choices),
    )


def policy_of(site: Site, workload: str) -> JobPolicy:
    """Return how a pod's workload is saved: as site.yaml declares it, if it does."""
    declared = site.workloads.get(workload)
    if declared is None:
        return JobPolicy()
    return JobPolicy(
        connections=declared.policy.connections, engine=declared.engine, model=declared.model
    )


def _plan_workload(
    site: Site,
    spec: KubernetesSpec,
    node: RemoteNode,
    changes: Mapping[str, str],
    choice: PodChoice,
    workload: str,
    twice: bool,
) -> JobPlan:
    policy = policy_of(site, workload)
    inspected = inspect(node, workload, policy)
    verdict = predicted_for(site, inspected, changes)
    why_not = "; ".join(blockers_of(inspected)) or invalid_here(verdict)
    if twice:
        why_not = "two pods say that they are it"
    elif workload in site.workloads and node.name in site.workloads[workload].placement:
        why_not = "site.yaml places it on this node as well: give it no placement there"
    elif not spec.shared_state and not choice.pod.pinned:
        why_not = (
            "its checkpoint would lie on this node alone, and a new pod may start elsewhere, "
            "cold: pin it by nodeSelector kubernetes.io/hostname, or share the state directory"
        )
    elif not inspected["running"]:
        why_not = f"it does not run under the launcher here: {inspected['why_not']}"
    return JobPlan(
        kind="pod",
        name=_name(workload),
        key=choice.pod.key,
        title=workload,
        user=choice.pod.namespace,
        nodes=tuple(sorted(choice.placement)) or (choice.pod.node,),
        gpus=sum(choice.placement.values()),
        shape=choice.shape or shape_of({choice.pod.node: 2}),
        strategy=Strategy.REFUSE if why_not else Strategy.RESTORE,
        reason=f"it cannot be saved: {why_not}" if why_not else choice.reason,
        policy=policy,
        workload=workload,
        fingerprint=inspected["fingerprint"],
        predicted=verdict.to_json(),
    )


def _name(workload: str) -> str:
    name = f"pod-{workload}"
    if is_name(name):
        return name
    return f"pod-{workload[:40]}-{hashlib.sha256(workload.encode()).hexdigest()[:16]}"


def _plan_pod(choice: PodChoice, refused: Mapping[str, str], blocked: Mapping[str, str]) -> PodPlan:
    unsaved = [f"{name}: {refused[name]}" for name in choice.workloads if name in refused]
    held = blocked.get(choice.pod.key)
    reason = choice.reason if held is None else f"{choice.reason}; now held back: {held}"
    return PodPlan(
        uid=choice.pod.uid,
        key=choice.pod.key,
        action=Action.REFUSE.value if unsaved else choice.action.value,
        reason="; ".join(unsaved) or reason,
        workloads=choice.workloads,
    )
