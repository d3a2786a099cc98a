"""What is due next in a run: for front ends whose graph is fixed beforehand.

The sequence is replayed over the journal: finished steps give their recorded result, steps
that failed for good raise their recorded error, and the first step that is neither is the
one that is due. So a task of a fixed graph can ask whether its step's turn has come, and a
task that was started too early, twice or out of order finds that it has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pitstop.decide.outcome import result_of
from pitstop.model.result import RunResult
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.execute import recorded
from pitstop.steps.runs import ended_as, go_through, write_report


@dataclass(frozen=True, slots=True)
class Due:
    """The step whose turn it is."""

    verb: Verb
    subject: str


class _Reached(BaseException):
    """Ends a replay. Not an `Exception`: the sequence must not take it for a failed step."""

    def __init__(self, due: Due) -> None:
        super().__init__(due)
        self.due = due


def next_step(ctx: RunContext) -> Due | RunResult:
    """Return the step that is due, or the result of a run that has come to its end.

    Decisions on the way are recorded, as they are when the sequence is driven.
    """

    events = ctx.events()
    if ended_as(events):
        return result_of(ctx.plan, ctx.run, events)

    def replay(verb: Verb, subject: str) -> dict[str, Any]:
        result = recorded(ctx.standing(verb, subject))
        if result is None:
            raise _Reached(Due(verb, subject))
        return result

    try:
        result = go_through(ctx, replay)
    except _Reached as reached:
        return reached.due
    write_report(ctx)
    return result
