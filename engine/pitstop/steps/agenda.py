"""What is due next in a run: for front ends whose graph is fixed beforehand.

The sequence is replayed over the journal: finished steps give their recorded result, steps
that failed for good raise their recorded error, and the first step that is neither is the
one that is due. So a task of a fixed graph can ask whether its step's turn has come, and a
task that was started too early, twice or out of order finds that it has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitstop.decide.outcome import result_of
from pitstop.fleet.node import RemoteNode
from pitstop.journal.store import Journal
from pitstop.model.event import Event
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

    def __init__(self, due: Due | None) -> None:
        super().__init__(due)
        self.due = due


def next_step(ctx: RunContext) -> Due | RunResult:
    """Return the step that is due, or the result of a run that has come to its end.

    Decisions on the way are recorded, as they are when the sequence is driven.
    """
    events = ctx.events()
    if ended_as(events):
        return result_of(ctx.plan, ctx.run, events)
    try:
        result = _replay(ctx)
    except _Reached as reached:
        assert reached.due is not None  # noqa: S101  # this context takes what is recorded
        return reached.due
    write_report(ctx)
    return result


def peek(home: Path, run: str) -> Due | RunResult | None:
    """Return what `next_step` would, without a trace in journal or node.

    None: the sequence has come to its end, but nobody has recorded that.

    Raises:
        BadInput: there is no such run.
    """
    ctx = _Looking(home, run)
    try:
        events = ctx.events()
        return result_of(ctx.plan, run, events) if ended_as(events) else _replay(ctx)
    except _Reached as reached:
        return reached.due
    finally:
        ctx.close()


def _replay(ctx: RunContext) -> RunResult:
    def replay(verb: Verb, subject: str) -> dict[str, Any]:
        result = recorded(ctx.standing(verb, subject))
        if result is None:
            raise _Reached(Due(verb, subject))
        return result

    return go_through(ctx, replay)


class _Looking(RunContext):
    """A run that is only looked at: a replay over it stops before it would leave a trace."""

    def __init__(self, home: Path, run: str) -> None:
        super().__init__(home, run, node=_Unasked)
        self.journal.close()
        self.journal = _Sealed(home / "journal.db")

    def decide(self, subject: str, topic: str, choice: str, cause: str, **data: Any) -> None:
        """Record nothing: no branch hangs on whether a decision is written down."""


class _Sealed(Journal):
    def append(self, *_: Any, **__: Any) -> Event:
        raise _Reached(None)


class _Unasked(RemoteNode):
    def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise _Reached(None)
