"""Planning for a scheduler's jobs: what is on the node now, and what is to become of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from pitstop.decide.gate import compare
from pitstop.decide.jobs import JobFacts, choose_for_job, notes_on
from pitstop.decide.shape import shape_of
from pitstop.fleet.node import RemoteNode
from pitstop.fleet.scheduler import Claim, Job, JobScheduler, Standing
from pitstop.fleet.schedulers import open_slurm
from pitstop.model.errors import PitstopError
from pitstop.model.fingerprint import Fingerprint
from pitstop.model.jobs import JobPlan, JobPolicy
from pitstop.model.plan import SchedulerPlan
from pitstop.model.site import Site
from pitstop.model.slurm import SlurmSpec
from pitstop.model.words import Shape, Strategy
from pitstop.steps.scheduler_planning import NO_RUN, blockers_of, inspect, peer_of, predicted_for
from pitstop.steps.specs import probes_of


def plan_slurm(
    site: Site, spec: SlurmSpec, node: RemoteNode, changes: Mapping[str, str]
) -> SchedulerPlan:
    """Look at a node through Slurm and choose a strategy for each of its jobs.

    Raises:
        PitstopError: it cannot be told; a node whose jobs are not known is not planned for.
    """
    name = spec.name_of(node.name)
    with closing(open_slurm(spec)) as scheduler:
        standing = scheduler.look(name, NO_RUN)
        jobs = scheduler.jobs(name)
        planner = _Planner(site, spec, node, changes, scheduler)
        planned = tuple(planner.plan(job) for job in jobs)
    return SchedulerPlan(
        spec=spec,
        node=name,
        claim=standing.claim.value,
        reason=standing.reason,
        state=standing.state,
        peer=peer_of(site, node.name, spec.shared_state),
        jobs=planned,
    )


def shape_of_job(nodes: Sequence[str], gpus: int | None) -> Shape:
    """Tell the shape of a job from the machines it sits on."""
    # How its GPUs are spread does not change the shape; one whose count is not known may
    # have several.
    share = 2 if gpus is None else gpus
    return shape_of({node: share if len(nodes) == 1 else 0 for node in nodes})


class _Planner:
    def __init__(
        self,
        site: Site,
        spec: SlurmSpec,
        node: RemoteNode,
        changes: Mapping[str, str],
        scheduler: JobScheduler,
    ) -> None:
        self._site = site
        self._spec = spec
        self._node = node
        self._changes = changes
        self._scheduler = scheduler
        self._launched = node.call("launched")["launched"]

    def plan(self, job: Job) -> JobPlan:
        policy = self._spec.policy(job.name, job.user)
        launched = self._launched_in(job)
        workload = launched[0] if len(launched) == 1 else ""
        inspected = inspect(self._node, workload, policy) if workload else {}
        predicted = predicted_for(self._site, inspected, self._changes)
        elsewhere = self._elsewhere(inspected, policy) if not predicted.valid else ""
        facts = JobFacts(
            shape=shape_of_job(job.nodes, job.gpus),
            launched=len(launched),
            requeue=job.requeue,
            seconds_left=None if job.ends is None else job.ends - time.time(),
            blockers=blockers_of(inspected),
            predicted=predicted,
            elsewhere=elsewhere,
        )
        choice = choose_for_job(facts, policy)
        return JobPlan(
            name=f"job-{job.number}",
            key=job.key,
            number=job.number,
            title=job.name,
            user=job.user,
            nodes=job.nodes,
            gpus=job.gpus,
            shape=facts.shape,
            strategy=choice.strategy,
            reason=choice.reason,
            policy=policy,
            workload=workload if choice.strategy is Strategy.RESTORE else "",
            avoid=bool(elsewhere),
            notes=notes_on(facts, choice),
            fingerprint=inspected.get("fingerprint", {}),
            predicted=predicted.to_json() if inspected else None,
        )

    def _launched_in(self, job: Job) -> list[str]:
        """Return the workloads that say they are part of a job, and are its owner's.

        A launcher knows its job from its environment, which is its user's to set.
        """
        return [
            str(found["workload"])
            for found in self._launched
            if found["job"] == str(job.number) and found["user"] in (job.user, "root")
        ]

    def _elsewhere(self, inspected: Mapping[str, Any], policy: JobPolicy) -> str:
        """Return another node that the job's checkpoint would be valid on.

        Whether there is room is the queue's business; that it takes jobs is asked here.
        """
        if not self._spec.shared_state or not inspected:
            return ""
        saved = Fingerprint.from_json(inspected["fingerprint"])
        for name, spec in self._site.nodes.items():
            if name == self._node.name:
                continue
            try:
                standing = self._scheduler.look(self._spec.name_of(name), NO_RUN)
                if _takes_jobs(standing) and self._fits(RemoteNode(name, spec), saved, policy):
                    return name
            except PitstopError:
                continue  # one that cannot be asked is not counted on
        return ""

    def _fits(self, other: RemoteNode, saved: Fingerprint, policy: JobPolicy) -> bool:
        with closing(other):
            found = other.call("fingerprint", probes=probes_of(policy))["fingerprint"]
        present = Fingerprint.from_json(found)
        return compare(saved, present, self._site.policy.tolerate).valid


def _takes_jobs(standing: Standing) -> bool:
    return standing.claim is Claim.NOBODY and standing.reachable
