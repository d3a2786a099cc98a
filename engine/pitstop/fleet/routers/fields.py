"""Plain data of an answer, taken apart strictly. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

from pitstop.fleet.routers.router import NotUnderstood

T = TypeVar("T")


def entry(data: Any, name: str, kind: type[T], asked: str) -> T:
    """Return a field of an object.

    Raises:
        NotUnderstood: it is not there, or not of that kind.
    """
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise NotUnderstood(asked, f"{name} is {value!r}, not a {kind.__name__}")
    return value


def objects(data: Any, what: str, asked: str) -> list[dict[str, Any]]:
    """Return a list of objects.

    Raises:
        NotUnderstood: it is none.
    """
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise NotUnderstood(asked, f"{what} is {str(data)[:200]!r}, no list of objects")
    return data
