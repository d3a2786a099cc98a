"""The base of all models that are written to or read from a file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from pitstop.model.plain import is_name


class Model(BaseModel):
    """Frozen, and strict about unknown keys: a misspelt option must never be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(
            "a name is up to 63 of letters, digits, '.', '_', '-', the first a letter or digit"
        )
    return value


def _argument(value: str) -> str:
    if "\0" in value:
        raise ValueError("an argument cannot hold a NUL character")
    return value


Name = Annotated[str, AfterValidator(_name)]
"""The name of a node, workload, step or run: safe as a file name and in an operation id."""

Argument = Annotated[str, AfterValidator(_argument)]
"""One argument of a command: passed as it is, never through a shell."""

Text = Annotated[str, StringConstraints(max_length=100_000)]
"""Free text for people."""
