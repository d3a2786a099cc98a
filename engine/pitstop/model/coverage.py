"""What share of a queue fits on one node."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pitstop.model.base import Model


class Share(Model):
    """One measure of what is covered: that whose GPUs lie in one machine at any time.

    Attributes:
        measure: `jobs`, `node_hours`, `gpu_hours`, `users` (those of whose jobs each fits).
        share: covered by total; None without any.
    """

    measure: Literal["jobs", "node_hours", "gpu_hours", "users"]
    covered: float
    total: float
    share: Annotated[float, Field(ge=0, le=1)] | None


class Period(Model):
    """The shares of the jobs that began in one month.

    Attributes:
        month: such as `2026-11`.
    """

    month: str
    jobs: int
    jobs_share: float
    node_hours: float
    node_hours_share: float | None


class QueuedJob(Model):
    """A job that is named, because it is among those that cost most.

    Attributes:
        nodes: machines at the same time.
        gpus: None where the source does not say.
    """

    job: str
    user: str
    nodes: int
    gpus: float | None
    hours: float
    node_hours: float


class Reason(Model):
    """Why some jobs are not covered."""

    reason: str
    jobs: int
    node_hours: float


class Coverage(Model):
    """The answer of `pitstop coverage`.

    Attributes:
        assumptions: what the source does not say and was taken to be so.
        not_started: jobs that never ran; they are in no share.
        not_understood: records that cannot be read; they are in no share, and said.
        examples: the first few of those, cut short.
        gain: the covered jobs with most node-hours.
        not_covered: the others with most node-hours.
    """

    schema_: Literal["pitstop/coverage/v1"] = Field(alias="schema", default="pitstop/coverage/v1")
    source: str
    kind: str
    assumptions: tuple[str, ...]
    not_started: int
    not_understood: int
    examples: tuple[str, ...]
    shares: tuple[Share, ...]
    over_time: tuple[Period, ...]
    reasons: tuple[Reason, ...]
    gain: tuple[QueuedJob, ...]
    not_covered: tuple[QueuedJob, ...]

    def share(self, measure: str) -> Share | None:
        """The share by one measure, where the source allows it."""
        return next((found for found in self.shares if found.measure == measure), None)
