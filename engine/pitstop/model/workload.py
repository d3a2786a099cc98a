"""A workload as a person declares it: how it starts, when it is ready, how it is drained."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pitstop.model.base import Argument, Model, Name
from pitstop.model.words import Connections, OnCheckpointFailure

Seconds = Annotated[float, Field(gt=0, le=7 * 86400)]
Command = Annotated[tuple[Argument, ...], Field(min_length=1)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=2000)]


class Launch(Model):
    """How a workload cold-starts.

    Attributes:
        command: program and arguments; never a shell line.
        cwd: working directory on the node.
        env: variables added to the engine's own small environment. Not for secrets: they
            would stand in plans and reports. Those go into `env_file`.
        env_file: a file on the node with NAME=value lines, read when the workload starts.
        io_uring: `deny` keeps io_uring away by seccomp, because CRIU cannot dump it
            (criu#2131); libraries then fall back to epoll.
    """

    command: Command
    cwd: str = "/"
    env: dict[str, Argument] = Field(default_factory=dict)
    env_file: str | None = None
    io_uring: Literal["allow", "deny"] = "allow"


class HttpProbe(Model):
    """An HTTP request made on the node, and what counts as a good answer."""

    url: HttpUrl
    method: Literal["GET", "POST", "PUT"] = "GET"
    body: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    status: int = Field(default=200, ge=100, le=599)
    timeout: Seconds = 10


class Ready(Model):
    """What "ready to serve" means. Restore and cold start are both measured to it."""

    http: HttpProbe | None = None
    command: Command | None = None
    deadline: Seconds = 600
    interval: Annotated[float, Field(ge=0.005, le=60)] = 0.05

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.http is None) == (self.command is None):
            raise ValueError("give exactly one of http and command")
        return self


class Proof(Model):
    """A request whose answer must be the same before a checkpoint and after its restore.

    Attributes:
        http: the request.
        field: dotted path into a JSON answer; empty compares the whole body.
    """

    http: HttpProbe
    field: str = ""


class Gauge(Model):
    """An observed number of requests in flight.

    Attributes:
        url: read on the node by GET.
        json_field: dotted path into a JSON answer.
        metric: name of a Prometheus metric; all its series are added up.
    """

    url: HttpUrl
    json_field: str | None = None
    metric: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.json_field is None) == (self.metric is None):
            raise ValueError("give exactly one of json_field and metric")
        return self


class Action(Model):
    """A command or an HTTP call on the node."""

    command: Command | None = None
    http: HttpProbe | None = None
    timeout: Seconds = 60

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.http is None) == (self.command is None):
            raise ValueError("give exactly one of http and command")
        return self


Replica = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f]+$", max_length=500)]
"""A router's own name for what it gives requests to."""


class AtRouter(Model):
    """Which replica a workload is at a router.

    Attributes:
        name: of the router in the site.
        replica: the router's own name for the workload; see docs/routers.md.
    """

    name: Name
    replica: Replica


class Spare(Model):
    """Another node that a workload may be moved to.

    Attributes:
        replica: its name there, at the router it is behind. Without one a workload behind a
            router is not moved there: nobody would give it requests.
    """

    node: Name
    replica: Replica | None = None


class Drain(Model):
    """How new work is kept away, and how the work in flight is watched to its end.

    Attributes:
        router: closed first, before `begin`, and opened last, after `end`.
    """

    router: AtRouter | None = None
    begin: Action | None = None
    end: Action | None = None
    in_flight: Gauge | None = None
    deadline: Seconds = 300
    interval: Annotated[float, Field(ge=0.01, le=60)] = 0.2


class Probe(Model):
    """Where a version is read. Exactly one source.

    Attributes:
        value: given by hand.
        command: first line of its output.
        file: BLAKE3 digest of the file's content.
        package: `python:name`, the version of a package as that interpreter sees it.
        container: `runtime:name`, the image digest of a running container.
    """

    value: str | None = None
    command: Command | None = None
    file: str | None = None
    package: Annotated[str, Field(pattern=r"^[^:]+:[A-Za-z0-9._-]+$")] | None = None
    container: (
        Annotated[str, Field(pattern=r"^(docker|podman|nerdctl):[A-Za-z0-9._/-]+$")] | None
    ) = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [
            name
            for name in ("value", "command", "file", "package", "container")
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError("give exactly one of value, command, file, package, container")
        return self


class Stop(Model):
    """How a workload is ended when it is not checkpointed."""

    signal: Literal["TERM", "INT", "QUIT", "USR1", "USR2"] = "TERM"
    grace: Seconds = 30


class GpuLimits(Model):
    """How long calls of the CUDA driver may take for each process, in seconds.

    Attributes:
        lock: until all GPU work that was submitted has come to a stop.
        call: for what moves no memory.
        move: for moving all memory of a GPU to the host, or back.
    """

    lock: Seconds = 60
    call: Seconds = 30
    move: Seconds = 600


class Policy(Model):
    """What may be decided for this workload without asking a person.

    Attributes:
        transfer_deadline: seconds until its images must have come to another node.
    """

    gpu_limits: GpuLimits = Field(default_factory=GpuLimits)
    on_checkpoint_failure: OnCheckpointFailure = OnCheckpointFailure.ABORT
    connections: Connections = Connections.CLOSE
    wait_deadline: Seconds = 3600
    transfer_deadline: Seconds = 3600


class Workload(Model):
    """One thing to keep alive.

    Attributes:
        placement: machine to number of GPUs held there. Its length decides the shape.
        spares: nodes that it may be moved to, the best first, when a maintenance makes its
            checkpoint invalid where it is. None without consent.
        pid_file: for a workload not started by pitstop: a file with the PID of its root
            process. After its first restore it runs under the launcher.
    """

    placement: Annotated[dict[Name, Annotated[int, Field(ge=0, le=1024)]], Field(min_length=1)]
    spares: tuple[Spare, ...] = ()
    launch: Launch
    ready: Ready
    proof: Proof | None = None
    drain: Drain = Field(default_factory=Drain)
    engine: Probe | None = None
    model: Probe | None = None
    stop: Stop = Field(default_factory=Stop)
    policy: Policy = Field(default_factory=Policy)
    pid_file: str | None = None
    description: Annotated[str, Field(max_length=1000)] = ""
