"""site.yaml: one installation."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pitstop.model.base import Model, Name
from pitstop.model.fingerprint import HOST_PREFIX
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.router import RouterSpec, counts
from pitstop.model.slurm import SlurmSpec
from pitstop.model.ssh import Ssh
from pitstop.model.words import Verb
from pitstop.model.workload import Action, Command, Seconds, Workload

SCHEMA = "pitstop/site/v1"


class Node(Model):
    """One machine with GPUs.

    Attributes:
        ssh: absent for the machine that pitstop itself runs on.
        engine: argument list that starts `pitstop-node` there.
        state_dir: where the engine keeps operations, workload states and images.
        reboot: argument list of the reboot command, run on the node.
        reboot_deadline: seconds until a changed boot id must be seen.
    """

    ssh: Ssh | None = None
    engine: Command = ("pitstop-node",)
    state_dir: Annotated[str, Field(pattern=r"^/")] = "/var/lib/pitstop"
    reboot: Command = ("systemctl", "reboot")
    reboot_deadline: Seconds = 1800


class Retry(Model):
    """How often a step is tried again, and how long is waited in between.

    What is worth a retry is not declared here: the error's class says it.
    """

    count: Annotated[int, Field(ge=0, le=20)] = 0
    delay: Annotated[float, Field(ge=0, le=3600)] = 2
    factor: Annotated[float, Field(ge=1, le=10)] = 2

    def delays(self) -> list[float]:
        """Return the seconds to wait before each retry."""
        return [self.delay * self.factor**n for n in range(self.count)]


DEFAULT_RETRIES: dict[Verb, Retry] = {
    Verb.PRECHECK: Retry(count=2),
    Verb.DRAIN: Retry(count=1),
    Verb.SIGNAL: Retry(count=2),
    Verb.CHECKPOINT: Retry(count=1),
    # What came over before stays, so trying again is cheap.
    Verb.TRANSFER: Retry(count=2),
    # A controller of a scheduler that restarts is away for a minute.
    Verb.REQUEUE: Retry(count=5),
    Verb.EVICT: Retry(count=2),
    Verb.RELEASE: Retry(count=5),
    Verb.STOP: Retry(count=1),
    Verb.MAINTAIN: Retry(count=1),
    Verb.VALIDATE: Retry(count=2),
    Verb.GATE: Retry(count=2),
    # A port may stay taken for a while after its last connection.
    Verb.RESTORE: Retry(count=3),
    Verb.COLD_START: Retry(count=2),
    Verb.RETURN_TO_SERVICE: Retry(count=3),
    Verb.QUARANTINE: Retry(count=3),
}


class LeasePolicy(Model):
    """When a run counts as abandoned, and who is told.

    Attributes:
        seconds: without a word from a run's controller until its node raises the alarm.
        alarm: run on the node. A command finds what it is about in PITSTOP_ALARM, as JSON;
            an HTTP call that is no GET and has no body of its own sends the same.
    """

    seconds: Annotated[float, Field(ge=1, le=7 * 86400)] = 900
    alarm: Action | None = None


class SitePolicy(Model):
    """What holds for all workloads of the site.

    Attributes:
        lease: how long a run's controller may be silent.
        tolerate: host fields of the fingerprint whose change does not invalidate.
        retries: per verb, over the defaults.
    """

    tolerate: tuple[str, ...] = ()
    retries: dict[Verb, Retry] = Field(default_factory=dict)
    lease: LeasePolicy = Field(default_factory=LeasePolicy)

    @model_validator(mode="after")
    def _host_only(self) -> Self:
        for name in self.tolerate:
            if not name.startswith(HOST_PREFIX):
                raise ValueError(
                    f"{name!r} cannot be tolerated: only fields under {HOST_PREFIX!r} can"
                )
        return self

    def retry(self, verb: Verb) -> Retry:
        """Return the retry rule of a verb."""
        return self.retries.get(verb, DEFAULT_RETRIES.get(verb, Retry()))


class Site(Model):
    """One installation: its nodes, scheduler, workloads, routers and policy.

    Attributes:
        scheduler: what starts jobs on the nodes. Without one, only what is declared is known.
        routers: what workloads are behind.
    """

    schema_: Literal["pitstop/site/v1"] = Field(alias="schema")
    name: Name
    nodes: Annotated[dict[Name, Node], Field(min_length=1)]
    scheduler: Annotated[SlurmSpec | KubernetesSpec, Field(discriminator="kind")] | None = None
    workloads: dict[Name, Workload] = Field(default_factory=dict)
    routers: dict[Name, RouterSpec] = Field(default_factory=dict)
    policy: SitePolicy = Field(default_factory=SitePolicy)

    @model_validator(mode="after")
    def _placements_exist(self) -> Self:
        for name, workload in self.workloads.items():
            for node in workload.placement:
                if node not in self.nodes:
                    raise ValueError(
                        f"workload {name!r} lies on node {node!r}, which is not declared"
                    )
        return self

    @model_validator(mode="after")
    def _spares_fit(self) -> Self:
        for name, workload in self.workloads.items():
            if workload.spares and len(workload.placement) > 1:
                raise ValueError(
                    f"workload {name!r} lies on several nodes: it has no spares, as no part of "
                    "it is moved alone"
                )
            seen = set(workload.placement)
            for spare in workload.spares:
                if spare.node not in self.nodes:
                    raise ValueError(
                        f"workload {name!r} has the spare {spare.node!r}, which is not declared"
                    )
                if spare.node in seen:
                    raise ValueError(f"workload {name!r} names node {spare.node!r} twice")
                if spare.replica is not None and workload.drain.router is None:
                    raise ValueError(
                        f"workload {name!r} has a replica on {spare.node!r}, but drain.router "
                        "names no router"
                    )
                seen.add(spare.node)
        return self

    @model_validator(mode="after")
    def _scheduled_nodes_exist(self) -> Self:
        for node in self.scheduler.names if self.scheduler else ():
            if node not in self.nodes:
                raise ValueError(f"scheduler names node {node!r}, which is not declared")
        return self

    @model_validator(mode="after")
    def _routers_exist(self) -> Self:
        for name, workload in self.workloads.items():
            at = workload.drain.router
            if at is None:
                continue
            if at.name not in self.routers:
                raise ValueError(
                    f"workload {name!r} is behind router {at.name!r}, which is not declared"
                )
            if workload.drain.in_flight is None and not counts(self.routers[at.name]):
                raise ValueError(
                    f"workload {name!r} needs drain.in_flight: router {at.name!r} "
                    f"({self.routers[at.name].kind}) cannot count its requests in flight"
                )
        return self
