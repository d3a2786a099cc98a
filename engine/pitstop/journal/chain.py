"""The hash chain over a run's events. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pitstop.model.event import Event
from pitstop.model.plain import canonical_json

START = "0" * 64


def hash_of(fields: dict[str, Any]) -> str:
    """Return the hash of an event's fields (all but `hash` itself)."""
    return hashlib.sha256(
        canonical_json({k: v for k, v in fields.items() if k != "hash"})
    ).hexdigest()


def link(fields: dict[str, Any], before: Event | None) -> Event:
    """Make the next event of a chain from its own fields."""
    complete = {
        "schema": "pitstop/event/v1",
        **fields,
        "seq": before.seq + 1 if before else 1,
        "prev": before.hash if before else START,
    }
    return Event.model_validate({**complete, "hash": hash_of(complete)})


def faults(events: Sequence[Event]) -> list[str]:
    """Return what is wrong with a chain, in order; empty when nothing is.

    A chain can be cut at its end without a trace in itself, so its length and head belong
    into whatever is kept apart from it.
    """
    found = []
    before: Event | None = None
    for event in events:
        expected_seq = before.seq + 1 if before else 1
        if event.seq != expected_seq:
            found.append(f"event {expected_seq} is missing, {event.seq} follows")
        if event.prev != (before.hash if before else START):
            found.append(f"event {event.seq} does not follow on the one before it")
        if event.hash != hash_of(event.model_dump(mode="json", by_alias=True)):
            found.append(f"event {event.seq} was changed")
        if before is not None and event.run != before.run:
            found.append(f"event {event.seq} is of run {event.run}")
        before = event
    return found
