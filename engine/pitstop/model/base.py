"""The base of all models that are written to or read from a file."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


class Model(BaseModel):
    """Frozen, and strict about unknown keys: a misspelt option must never be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def is_name(value: str) -> bool:
    """Whether a text is a name: see `Name`."""
    return _NAME.match(value) is not None


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


def canonical_json(data: Any) -> bytes:
    """Return the one byte form of plain data that digests are taken over."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(data: Any) -> str:
    """Return the SHA-256 of the canonical form, as `sha256:<hex>`."""
    return "sha256:" + hashlib.sha256(canonical_json(data)).hexdigest()
