"""How a run ended: what every front end returns and the report shows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pitstop.model.base import Model, Name
from pitstop.model.words import Outcome

SCHEMA = "pitstop/run-result/v1"


class WorkloadResult(Model):
    """How one workload ended.

    Attributes:
        outcome: None while it has not ended: the run waits for a person, and the workload
            is kept as the checkpoint or the launch that `cause` names.
        cause: why this outcome and not the planned one; empty when it is as planned.
        verdict: the gate's last answer, as `Verdict.to_json`; None where no gate was asked.
        frozen_seconds: from the start of the dump until the workload was ready again.
        restore_seconds: from the start of the restore to ready to serve.
        cold_start_seconds: from the start of the cold start to ready to serve.
        node: where it was brought up, when that is another node than the run's.
        transfer_bytes: that were brought to that node; 0 where both see the same storage.
        transfer_seconds: that this took.
        earlier_cold_start_seconds: the last cold start of this workload seen on the node,
            for comparison beside a restore.
    """

    name: Name
    outcome: Outcome | None
    cause: str = ""
    verdict: dict[str, Any] | None = None
    checkpoint: str | None = None
    image_bytes: int | None = None
    node: Name | None = None
    transfer_bytes: int | None = None
    transfer_seconds: float | None = None
    frozen_seconds: float | None = None
    restore_seconds: float | None = None
    cold_start_seconds: float | None = None
    earlier_cold_start_seconds: float | None = None


class RunResult(Model):
    """How a run ended.

    Attributes:
        state: `done`; `refused` (nothing was touched); `partial` (a person is needed);
            `failed`.
        node_state: `drained`: its scheduler gives it no new work, by whoever's word.
        ended: whether it has come to its end; one that has not is `partial` so far.
    """

    schema_: Literal["pitstop/run-result/v1"] = Field(
        alias="schema", default="pitstop/run-result/v1"
    )
    run: Name
    node: Name
    plan_digest: str
    state: Literal["done", "refused", "partial", "failed"]
    node_state: Literal["in-service", "drained", "quarantined"]
    ended: bool = True
    cause: str = ""
    workloads: tuple[WorkloadResult, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the command that made it (DESIGN, section 6)."""
        return {"done": 0, "failed": 1, "refused": 3, "partial": 4}[self.state]
