"""Reading an event's free data: what is missing or of the wrong kind is absent, never a crash."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

TEXT_LIMIT = 4000
_ITEMS = 1000


def mapping(data: Any, key: str) -> Mapping[str, Any]:
    """Return a mapping, empty where there is none."""
    found = data.get(key) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def mappings(data: Any, key: str) -> list[Mapping[str, Any]]:
    """Return the mappings of a list, at most a thousand."""
    found = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return []
    return [item for item in found[:_ITEMS] if isinstance(item, Mapping)]


def text(data: Mapping[str, Any], key: str) -> str:
    """Return a text, empty where there is none; a number or a bool as text."""
    found = data.get(key)
    if isinstance(found, str):
        return found
    if isinstance(found, bool):
        return "yes" if found else "no"
    return str(found) if isinstance(found, int | float) else ""


def optional_text(data: Mapping[str, Any], key: str) -> str | None:
    """Return a text, None where there is none."""
    return text(data, key) or None


def number(data: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number."""
    found = data.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        value = float(found)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def whole(data: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number."""
    found = data.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def flag(data: Mapping[str, Any], key: str) -> bool:
    """Return whether the value is exactly true."""
    return data.get(key) is True


def words(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a command's arguments; a value that is no list is one argument."""
    found = data.get(key)
    if isinstance(found, str):
        return (found,)
    if not isinstance(found, Sequence) or isinstance(found, bytes):
        return ()
    return tuple(str(item) for item in found[:_ITEMS])
