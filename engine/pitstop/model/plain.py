"""Names and plain data, for what has no time to load the models: a node's requests."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def is_name(value: str) -> bool:
    """Whether a text is a name: see `model.base.Name`."""
    return _NAME.match(value) is not None


def canonical_json(data: Any) -> bytes:
    """Return the one byte form of plain data that digests are taken over."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(data: Any) -> str:
    """Return the SHA-256 of the canonical form, as `sha256:<hex>`."""
    return "sha256:" + hashlib.sha256(canonical_json(data)).hexdigest()
