"""maintenance.yaml: what is to be done where."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pitstop.model.base import Model, Name

SCHEMA = "pitstop/maintenance/v1"


class Maintenance(Model):
    """One intended maintenance.

    Attributes:
        runbook: name of a built-in runbook, or the path of a file ending in .md.j2.
        nodes: taken one after the other.
        variables: values for the runbook's template.
        changes: fingerprint fields this maintenance changes, with their new value, added to
            what the runbook itself declares.
    """

    schema_: Literal["pitstop/maintenance/v1"] = Field(alias="schema")
    title: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=5000)] = ""
    runbook: Annotated[str, Field(min_length=1)]
    nodes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1)]
    variables: dict[str, Any] = Field(default_factory=dict)
    changes: dict[str, str] = Field(default_factory=dict)
