"""Where a run stands and how to go on: for alarms, and for whoever only looks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pitstop.fleet.node import RemoteNode
from pitstop.journal.store import Journal
from pitstop.model.errors import PitstopError
from pitstop.model.event import Event
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.steps.agenda import Due, peek

ANSWER = 20.0
"""Seconds for the node's answer: who raises an alarm does not wait for a node that is gone."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is true of a run, from its journal and its node. Nothing is changed by looking.

    Attributes:
        state: as in `RunResult`; empty while it has not ended.
        cause: why it ended so.
        verb: of the step that is due, or empty.
        since: when that step was begun; empty if it was not.
        holds: what holds the node, in words; empty if nothing does.
        unknown: why the node does not say what holds it.
    """

    run: str
    title: str
    node: str
    state: str
    cause: str = ""
    verb: str = ""
    subject: str = ""
    since: str = ""
    holds: tuple[str, ...] = ()
    unknown: str = ""

    def sentences(self) -> list[str]:
        """Say it in words."""
        return [f"run {self.run} ({self.title}) {self._standing()}", self._holding()]

    def way_on(self, home: Path, site_file: Path) -> list[str]:
        """Return the commands that look at the node and go on with the run; none when done."""
        if self.state == "done":
            return []
        place = ["--home", str(home)]
        look = ["pitstop", "reconcile", self.node, "--site", str(site_file), *place]
        commands = [look]
        if self.state in ("", "partial"):
            commands.append(["pitstop", "resume", self.run, *place])
        return [shlex.join(command) for command in commands]

    def _standing(self) -> str:
        if self.state:
            return f"has ended: {self.state}" + (f": {self.cause}" if self.cause else "")
        if not self.verb:
            return "has come to its end, but that is not recorded"
        step = f"{self.verb} of {self.subject}"
        return f"stands in {step}, begun {self.since}" if self.since else f"stands before {step}"

    def _holding(self) -> str:
        if self.unknown:
            return f"node {self.node} does not say what holds it: {self.unknown}"
        return f"node {self.node}: " + ("; ".join(self.holds) or "nothing holds it")


def outlook(home: Path, run: str) -> Outlook:
    """Look at a run.

    Raises:
        BadInput: there is no such run.
    """
    journal = Journal(home / "journal.db")
    try:
        plan, events = journal.plan(run), journal.events(run)
    finally:
        journal.close()
    found = peek(home, run)
    holds, unknown = _ask(plan)
    due = found if isinstance(found, Due) else None
    return Outlook(
        run=run,
        title=plan.title,
        node=plan.node,
        state=found.state if isinstance(found, RunResult) else "",
        cause=found.cause if isinstance(found, RunResult) else "",
        verb=due.verb.value if due else "",
        subject=due.subject if due else "",
        since=_begun(events, due) if due else "",
        holds=holds,
        unknown=unknown,
    )


def _begun(events: Sequence[Event], due: Due) -> str:
    """Return when the step's attempt that is under way was begun."""
    since = ""
    for event in events:
        if (event.verb, event.subject) == (due.verb.value, due.subject):
            since = event.time if event.kind == "step.started" else ""
    return since


def _ask(plan: Plan) -> tuple[tuple[str, ...], str]:
    # Without the run's lease: looking at a run is not looking after it.
    node = RemoteNode(plan.node, plan.node_spec)
    try:
        quarantine = node.call("inspect", ANSWER, workloads={})["quarantine"]
        holders = {w.name: node.call("workload", ANSWER, workload=w.name) for w in plan.workloads}
    except PitstopError as error:
        return (), str(error)
    finally:
        node.close()
    holds = [f"{n} is held by run {h['holder']}" for n, h in holders.items() if h["holder"]]
    holds += [
        f"{n} has moved to {h['moved']['to']} (run {h['moved']['run']})"
        for n, h in holders.items()
        if h.get("moved")
    ]
    if quarantine:
        holds.append(f"quarantined by run {quarantine['run']}: {quarantine['cause']}")
    return tuple(holds), ""
