"""Where a step stands, read from the journal: the one truth that all front ends share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitstop.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Interrupted,
    NodeUnreachable,
)
from pitstop.model.event import Event
from pitstop.model.words import Verb

PATH_BACK = frozenset(
    {
        Verb.VALIDATE,
        Verb.GATE,
        Verb.RESTORE,
        Verb.COLD_START,
        Verb.RETURN_TO_SERVICE,
        Verb.QUARANTINE,
    }
)
"""Verbs that a recovery tries anew. What lies before them has happened and stays, but for
what failed for lack of contact: that is asked for again whenever a run is taken up."""

WITHOUT_CONTACT = frozenset({ConnectionLost.code, NodeUnreachable.code})
"""Codes of errors that say nothing about the work on the node: it may run on, or be done."""


EFFECT_UNKNOWN = WITHOUT_CONTACT | {DeadlineExceeded.code, Interrupted.code}
"""Codes of failures after which the work on the node may have been done all the same."""


def effect_unknown(failure: Mapping[str, Any] | None) -> bool:
    """Tell whether a step that failed for good may have done its work all the same."""
    return failure is not None and failure["code"] in EFFECT_UNKNOWN


@dataclass(frozen=True, slots=True)
class Standing:
    """A step as the journal knows it.

    Attributes:
        result: of the finished step, or None.
        failure: of the step that failed for good (`PitstopError.to_json`), or None.
        failures: how often it failed so far, over all recoveries.
        recent_failures: those since the last recovery.
        attempt: the number of the attempt that is under way or comes next. The node knows
            the work by it, so an attempt that failed for lack of contact is not over: asked
            again under the same number, the node says what became of it.
    """

    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    failures: int = 0
    recent_failures: int = 0
    attempt: int = 1


def standing(events: Sequence[Event], verb: Verb, subject: str) -> Standing:
    """Read where a step stands."""
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    failures = recent = 0
    attempt = 1
    for event in events:
        if event.kind == "run.resumed" and event.data.get("recover") and verb in PATH_BACK:
            failure, recent = None, 0
            if verb is Verb.VALIDATE or verb is Verb.GATE:
                result = None
        elif event.kind == "run.resumed" and failure and failure["code"] in WITHOUT_CONTACT:
            failure, recent = None, 0
        if (event.verb, event.subject) != (verb.value, subject):
            continue
        if event.kind == "step.finished":
            result, failure = dict(event.data["result"]), None
        elif event.kind == "step.failed":
            failures += 1
            recent += 1
            attempt += event.data["error"]["code"] not in WITHOUT_CONTACT
            failure = dict(event.data["error"]) if event.data.get("final") else None
    return Standing(result, failure, failures, recent, attempt)


def cause_of(events: Sequence[Event], subject: str, choice: str) -> str:
    """Return the cause of the last decision of that kind; empty without one."""
    for event in reversed(events):
        about = event.kind == "decision" and event.subject == subject
        if about and event.data.get("choice") == choice:
            return str(event.data.get("cause", ""))
    return ""


def is_final(retryable: bool, recent_failures: int, retries: int) -> bool:
    """Tell whether a failure ends the step.

    Args:
        retryable: what the error's class says.
        recent_failures: failures of this step including this one.
        retries: allowed by policy.
    """
    return not retryable or recent_failures > retries
