"""What may be done with a scheduler's jobs, as a site declares it."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from string import Formatter
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pitstop.model.base import Model, Name
from pitstop.model.words import Connections, Shape, Strategy
from pitstop.model.workload import GpuLimits, Probe, Seconds

FIELDS = frozenset({"job", "user", "name"})
"""What the path of an application's checkpoint may hold in braces."""


class OnJob(StrEnum):
    """What becomes of a job that cannot be saved as processes."""

    SIGNAL = "signal"
    WAIT = "wait"
    REQUEUE = "requeue"
    REFUSE = "refuse"


def _path(value: str) -> str:
    try:
        parts = [part for part in Formatter().parse(value) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"{value!r}: {error}") from None
    if any(name not in FIELDS or form or conversion for _, name, form, conversion in parts):
        raise ValueError(f"{value!r} may hold {{job}}, {{user}} and {{name}}, and no other")
    if not value.startswith("/") or "\0" in value:
        raise ValueError(f"{value!r} is no absolute path")
    return value


class Signal(Model):
    """How a job is told to save itself, and how that is seen to be done.

    Attributes:
        to: `steps` are the job's programs, `batch` is its script alone.
        file: the application's checkpoint, as the node sees it; `{job}`, `{user}` and
            `{name}` are put in. It is complete when it was written after the signal, is not
            empty, and has not changed for `quiet` seconds. An application that writes
            elsewhere and renames at the end is safe with any `quiet`.
        deadline: seconds until it must be complete. After it the job runs on.
    """

    signal: Literal["TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "CONT"] = "USR1"
    to: Literal["steps", "batch"] = "steps"
    file: Annotated[str, Field(max_length=4000), AfterValidator(_path)]
    quiet: Annotated[float, Field(ge=0, le=3600)] = 2
    deadline: Seconds = 600


class JobPolicy(Model):
    """What may be decided for a job without asking a person.

    Attributes:
        not_launched: for a job of one node whose command does not run under the launcher,
            or whose checkpoint would be worthless or fails. `requeue` starts it over.
        multi_node: for a job whose GPUs sit in several machines at once.
        signal: how it saves itself; needed where `signal` is chosen.
        wait_deadline: seconds that its own end may be waited for.
        engine: where the engine's version is read, for the fingerprint; `model` likewise.
    """

    not_launched: OnJob = OnJob.REFUSE
    multi_node: Literal[OnJob.SIGNAL, OnJob.WAIT, OnJob.REFUSE] = OnJob.REFUSE
    signal: Signal | None = None
    wait_deadline: Seconds = 3600
    connections: Connections = Connections.CLOSE
    gpu_limits: GpuLimits = Field(default_factory=GpuLimits)
    engine: Probe | None = None
    model: Probe | None = None

    @model_validator(mode="after")
    def _signal_known(self) -> Self:
        if OnJob.SIGNAL in (self.not_launched, self.multi_node) and self.signal is None:
            raise ValueError("`signal` is chosen, and no signal is declared")
        return self


class JobRule(JobPolicy):
    """A policy for the jobs that it matches.

    Attributes:
        match_name: pattern with `*` and `?`; case counts.
        match_user: likewise.
    """

    match_name: Annotated[str, Field(min_length=1, max_length=1000)] = "*"
    match_user: Annotated[str, Field(min_length=1, max_length=1000)] = "*"

    def matches(self, name: str, user: str) -> bool:
        """Tell whether it is for a job."""
        return fnmatchcase(name, self.match_name) and fnmatchcase(user, self.match_user)


class PodPlan(Model):
    """What is intended for one pod.

    Attributes:
        uid: what tells it from another of the same name.
        key: its namespace and name.
        action: `leave`, `wait`, `evict`, `checkpoint` or `refuse`.
        workloads: what runs in it under the launcher, and is saved first.
    """

    uid: str
    key: str
    action: str
    reason: str
    workloads: tuple[Name, ...] = ()


class JobPlan(Model):
    """What is intended for one job, or for what runs under the launcher in a pod.

    Attributes:
        kind: which of the two.
        name: what it is called in steps and reports: `job-` and the scheduler's number, or
            `pod-` and the launcher's name of it.
        key: what the scheduler calls it; `number` is what its commands take.
        title: the name its owner gave it.
        nodes: the machines it sits on, as the scheduler calls them.
        workload: the launcher's name of it; empty without one.
        avoid: it must not start again on the node that is maintained.
        notes: what a person should know, such as a time limit that comes too soon.
        fingerprint: at planning, as `Fingerprint.to_json`; empty without a launcher.
        predicted: what the gate would say on this node afterwards, as `Verdict.to_json`.
    """

    kind: Literal["job", "pod"] = "job"
    name: Name
    key: str
    number: int = 0
    title: str
    user: str
    nodes: tuple[str, ...]
    gpus: int | None
    shape: Shape
    strategy: Strategy
    reason: str
    policy: JobPolicy
    workload: str = ""
    avoid: bool = False
    notes: tuple[str, ...] = ()
    fingerprint: dict[str, dict[str, str]] = Field(default_factory=dict)
    predicted: dict[str, object] | None = None
