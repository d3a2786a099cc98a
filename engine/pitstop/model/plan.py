"""A plan: what will be done to which node and workload, and what is expected of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pitstop.model.base import Model, Name
from pitstop.model.jobs import JobPlan, PodPlan
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.plain import digest_of
from pitstop.model.router import RouterSpec
from pitstop.model.runbook import RunbookStep
from pitstop.model.site import Node, SitePolicy
from pitstop.model.slurm import SlurmSpec
from pitstop.model.words import Shape, Strategy
from pitstop.model.workload import AtRouter, Workload

SCHEMA = "pitstop/plan/v1"


class RunbookRef(Model):
    """Which runbook, with its digest and the values it was rendered with."""

    name: str
    title: str
    digest: str
    source: str
    risk: str
    variables: dict[str, Any]
    changes: dict[str, str]
    steps: tuple[RunbookStep, ...]


class Target(Model):
    """The node that a workload is moved to.

    Attributes:
        predicted: what the gate is expected to say there, as `Verdict.to_json`.
        router: which replica the workload is there; None behind no router.
    """

    node: Name
    node_spec: Node
    predicted: dict[str, Any]
    router: AtRouter | None = None


class WorkloadPlan(Model):
    """What is intended for one workload.

    Attributes:
        spec: as it holds on the plan's node, whichever node the site places it on.
        fingerprint: at planning, as `Fingerprint.to_json`.
        predicted: what the gate is expected to say, as `Verdict.to_json`.
        blockers: what would make a dump fail, found without touching the workload.
        target: where it is moved to; only with the strategy for that.
    """

    name: Name
    spec: Workload
    shape: Shape
    strategy: Strategy
    reason: str
    running: bool
    fingerprint: dict[str, dict[str, str]]
    predicted: dict[str, Any]
    blockers: tuple[dict[str, Any], ...] = ()
    target: Target | None = None


class SchedulerPlan(Model):
    """The node as its scheduler saw it at planning, and what is on it.

    Attributes:
        node: what the scheduler calls it.
        claim: who kept new work away from it: `nobody`, `ours` or `foreign`.
        reason: as it was written there.
        state: in the scheduler's words.
        peer: another node, by its name, that sees the same workloads where those are shared;
            it is asked when this one does not come back.
    """

    spec: Annotated[SlurmSpec | KubernetesSpec, Field(discriminator="kind")]
    node: str
    claim: str
    reason: str
    state: str
    jobs: tuple[JobPlan, ...] = ()
    pods: tuple[PodPlan, ...] = ()
    peer: dict[Name, Node] = Field(default_factory=dict)


class Plan(Model):
    """A rendered runbook for one node, with one strategy per workload.

    Attributes:
        scheduler: None where the site declares none.
        go: whether the run may start; `no_go` says why not.
        boot_id: of the node at planning.
        routers: those that the workloads are behind.
    """

    schema_: Literal["pitstop/plan/v1"] = Field(alias="schema", default="pitstop/plan/v1")
    site: Name
    policy: SitePolicy
    title: str
    reason: str
    node: Name
    node_spec: Node
    boot_id: str
    runbook: RunbookRef
    workloads: tuple[WorkloadPlan, ...]
    scheduler: SchedulerPlan | None = None
    routers: dict[Name, RouterSpec] = Field(default_factory=dict)
    go: bool
    no_go: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The digest that approvals and runs bind to."""
        return digest_of(self.model_dump(mode="json", by_alias=True))

    @property
    def jobs(self) -> tuple[JobPlan, ...]:
        """The scheduler's jobs on the node."""
        return self.scheduler.jobs if self.scheduler else ()

    @property
    def all_workloads(self) -> tuple[WorkloadPlan | JobPlan, ...]:
        """What the site declares, and then the scheduler's jobs."""
        return (*self.workloads, *self.jobs)

    def node_named(self, name: str) -> Node:
        """Return how a node of the plan is reached: its own, or one that something moves to.

        Raises:
            KeyError: the plan has no such node.
        """
        if name == self.node:
            return self.node_spec
        for workload in self.workloads:
            if workload.target is not None and workload.target.node == name:
                return workload.target.node_spec
        raise KeyError(name)

    def job(self, name: str) -> JobPlan | None:
        """Return one job's plan; None when the name is of no job."""
        return next((job for job in self.jobs if job.name == name), None)

    def workload(self, name: str) -> WorkloadPlan:
        """Return one workload's plan.

        Raises:
            KeyError: the plan has no such workload.
        """
        for workload in self.workloads:
            if workload.name == name:
                return workload
        raise KeyError(name)
