"""One entry of the journal."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pitstop.model.base import Model, Name

Kind = Literal[
    "run.started",
    "run.resumed",
    "run.ended",
    "step.started",
    "step.finished",
    "step.failed",
    "decision",
    "note",
]


class Event(Model):
    """An entry, chained to the one before by its hash.

    Attributes:
        seq: counts from 1 within the run, without a gap.
        time: RFC 3339, UTC.
        actor: who or what wrote it.
        subject: node or workload.
        data: the kind's own fields.
        prev: hash of the entry before; for the first, 64 zeros.
        hash: SHA-256 over the canonical form of all other fields, in hex.
    """

    schema_: Literal["pitstop/event/v1"] = Field(alias="schema", default="pitstop/event/v1")
    run: Name
    seq: int = Field(ge=1)
    time: str
    kind: Kind
    actor: str
    subject: str
    verb: str = ""
    attempt: int = Field(default=0, ge=0)
    data: dict[str, Any] = Field(default_factory=dict)
    prev: str
    hash: str
