"""site.yaml: one installation."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pitstop.model.base import Argument, Model, Name
from pitstop.model.fingerprint import HOST_PREFIX
from pitstop.model.words import Verb
from pitstop.model.workload import Action, Command, Seconds, Workload

SCHEMA = "pitstop/site/v1"


class Ssh(Model):
    """How a node is reached by SSH.

    Attributes:
        host_keys: public host keys, `type base64`. Where given, only these are accepted.
        known_hosts: a known_hosts file to check against otherwise; default the user's own.
        identity_file: private key. Without it the agent and default keys are asked.
        proxy_command: argument list that connects its stdin and stdout to the node's SSH
            port; `%h` and `%p` alone in an argument become address and port.
        keepalive: seconds between keepalive messages; three unanswered end the connection.
    """

    address: Annotated[str, Field(min_length=1, max_length=255)]
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    user: Annotated[str, Field(min_length=1, max_length=64)] = "root"
    host_keys: tuple[Annotated[str, Field(pattern=r"^[a-z0-9@.-]+ [A-Za-z0-9+/=]+")], ...] = ()
    known_hosts: str | None = None
    identity_file: str | None = None
    proxy_command: tuple[Argument, ...] = ()
    connect_timeout: Seconds = 15
    keepalive: Annotated[float, Field(gt=0, le=3600)] = 5


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
    Verb.CHECKPOINT: Retry(count=1),
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
    """One installation: its nodes, workloads and policy."""

    schema_: Literal["pitstop/site/v1"] = Field(alias="schema")
    name: Name
    nodes: Annotated[dict[Name, Node], Field(min_length=1)]
    workloads: dict[Name, Workload] = Field(default_factory=dict)
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
