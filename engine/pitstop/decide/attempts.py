"""Where a step stands, read from the journal: the one truth that all front ends share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pitstop.model.event import Event
from pitstop.model.words import Verb

PATH_BACK = frozenset(
    {Verb.VALIDATE, Verb.GATE, Verb.RESTORE, Verb.COLD_START, Verb.RETURN_TO_SERVICE}
)
"""Verbs that a recovery tries anew. What lies before them has happened and stays."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A step as the journal knows it.

    Attributes:
        result: of the finished step, or None.
        failure: of the step that failed for good (`PitstopError.to_json`), or None.
        failures: failed attempts so far, over all recoveries.
        recent_failures: those since the last recovery.
    """

    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    failures: int = 0
    recent_failures: int = 0

    @property
    def attempt(self) -> int:
        """The number of the attempt that is under way or comes next."""
        return self.failures + 1


def standing(events: Sequence[Event], verb: Verb, subject: str) -> Standing:
    """Read where a step stands."""
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    failures = recent = 0
    for event in events:
        if event.kind == "run.resumed" and event.data.get("recover") and verb in PATH_BACK:
            failure, recent = None, 0
            if verb is Verb.VALIDATE or verb is Verb.GATE:
                result = None
        if (event.verb, event.subject) != (verb.value, subject):
            continue
        if event.kind == "step.finished":
            result, failure = dict(event.data["result"]), None
        elif event.kind == "step.failed":
            failures += 1
            recent += 1
            failure = dict(event.data["error"]) if event.data.get("final") else None
    return Standing(result, failure, failures, recent)


def is_final(retryable: bool, recent_failures: int, retries: int) -> bool:
    """Tell whether a failure ends the step.

    Args:
        retryable: what the error's class says.
        recent_failures: failures of this step including this one.
        retries: allowed by policy.
    """
    return not retryable or recent_failures > retries
