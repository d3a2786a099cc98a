"""The report as data: what `report.json` holds and what the HTML shows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pitstop.model.base import Model

SCHEMA = "pitstop/report/v1"


class FieldDifference(Model):
    """One field of a verdict."""

    field: str
    saved: str
    present: str
    judgement: str
    reason: str


class GateReport(Model):
    """One answer of the gate.

    Attributes:
        node: where it was asked, or predicted for.
        when: `predicted` by the plan, `found` by the gate step, `decided` with a decision.
        valid: None where the record does not say.
    """

    workload: str
    node: str
    when: Literal["predicted", "found", "decided"]
    time: str
    valid: bool | None
    differences: tuple[FieldDifference, ...] = ()


class GpuBoundary(Model):
    """At which boundary the GPU state of a workload was taken.

    Attributes:
        one_boundary: nothing was taken before every process was locked.
        margin_seconds: from the last lock to the first process being taken.
    """

    processes: int
    gpus: int
    bytes: int
    one_boundary: bool
    margin_seconds: float | None


class WorkloadReport(Model):
    """One workload: what was planned, what happened.

    Attributes:
        outcome: None while it waits for a person; then `cause` says as what it is kept.
        frozen_seconds: from the start of the dump until it was ready again.
        ratio: earlier cold start over restore; both were measured on this node.
        node: where it was brought up, when that is another node than the run's.
        transfer_bytes: brought to that node; 0 where both see the same storage.
        gpu_state: None where its checkpoint holds none.
    """

    name: str
    shape: str
    strategy: str
    strategy_reason: str
    outcome: str | None
    cause: str
    checkpoint: str | None = None
    image_bytes: int | None = None
    frozen_seconds: float | None = None
    restore_seconds: float | None = None
    cold_start_seconds: float | None = None
    earlier_cold_start_seconds: float | None = None
    ratio: float | None = None
    proof: str | None = None
    in_flight: str | None = None
    node: str | None = None
    transfer_bytes: int | None = None
    transfer_seconds: float | None = None
    gpu_state: GpuBoundary | None = None


class Failure(Model):
    """A step that failed, or a part of one."""

    time: str
    subject: str
    verb: str
    attempt: int
    final: bool
    code: str
    cause: str
    hint: str


class Decision(Model):
    """A branch that was taken."""

    time: str
    actor: str
    subject: str
    topic: str
    choice: str
    cause: str


class Evidence(Model):
    """What one execution of a runbook step left behind.

    Attributes:
        verb: the step of the run that executed it.
        output_tail: the end of its output, bounded; total size and digest are of the whole.
        undoes: for a rollback: the step that it undid.
        failure: the cause, where it failed.
    """

    time: str
    verb: str
    attempt: int
    step: str
    kind: str
    command: tuple[str, ...] = ()
    exit_status: int | None = None
    seconds: float | None = None
    attempts: int | None = None
    output_tail: str = ""
    output_bytes: int | None = None
    output_digest: str | None = None
    boot_id_before: str | None = None
    boot_id_after: str | None = None
    undoes: str | None = None
    failure: str | None = None


class EventLine(Model):
    """One event of the journal, its data as bounded JSON text."""

    seq: int
    time: str
    kind: str
    actor: str
    subject: str
    verb: str
    attempt: int
    data: str
    hash: str


class Chain(Model):
    """What the journal's check said.

    Attributes:
        notes: what does not fit together, in words; empty when all does.
    """

    valid: bool
    head: str
    count: int
    notes: tuple[str, ...] = ()


class Report(Model):
    """The record of one run.

    Attributes:
        runbook_variables: values as JSON text.
        notes: which lists are not complete here.
    """

    schema_: Literal["pitstop/report/v1"] = Field(alias="schema", default="pitstop/report/v1")
    run: str
    site: str
    node: str
    title: str
    reason: str
    headline: str
    state: str
    node_state: str
    cause: str
    started: str
    ended: str | None
    seconds: float | None
    actors: tuple[str, ...]
    front_end: str
    plan_digest: str
    runbook: str
    runbook_title: str
    runbook_digest: str
    runbook_variables: dict[str, str]
    changes: dict[str, str]
    workloads: tuple[WorkloadReport, ...]
    gates: tuple[GateReport, ...]
    evidence: tuple[Evidence, ...]
    decisions: tuple[Decision, ...]
    failures: tuple[Failure, ...]
    chain: Chain
    events: tuple[EventLine, ...]
    events_left_out: int = 0
    notes: tuple[str, ...] = ()
