"""The parts of a runbook that are data: front matter and step blocks."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pitstop.model.base import Model, Name
from pitstop.model.workload import Command, Seconds


class FrontMatter(Model):
    """What a runbook says of itself.

    Attributes:
        changes: fingerprint fields it changes; values may be templates.
        variables: default values; a variable without a default is required.
    """

    schema_: Literal["pitstop/runbook/v1"] = Field(alias="schema")
    title: Annotated[str, Field(min_length=1, max_length=200)]
    risk: Literal["low", "medium", "high"] = "medium"
    changes: dict[str, str] = Field(default_factory=dict)
    variables: dict[str, object] = Field(default_factory=dict)
    required: tuple[str, ...] = ()


class RunbookStep(Model):
    """One executable block.

    Attributes:
        kind: `command` changes something, `check` only looks, `reboot` restarts the node.
        expect: text that a check's or command's output must contain.
        retries: tries after the first, for a command that may be run twice.
        rollback: command that undoes this step, run in reverse order when a later step or
            the validation fails.
    """

    step: Name
    kind: Literal["command", "check", "reboot"]
    command: Command | None = None
    timeout: Seconds
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    expect: str | None = None
    rollback: Command | None = None
    phase: Literal["maintain", "validate"] = "maintain"

    @model_validator(mode="after")
    def _command_needed(self) -> Self:
        if (self.kind == "reboot") == (self.command is not None):
            raise ValueError("a command or check has a command, a reboot has none")
        if self.kind == "reboot" and (self.expect is not None or self.rollback is not None):
            raise ValueError("a reboot has neither expect nor rollback")
        if self.kind == "check" and self.rollback is not None:
            raise ValueError("a check changes nothing and has no rollback")
        if self.phase == "validate" and self.kind != "check":
            raise ValueError("only checks belong to the validate phase")
        return self
