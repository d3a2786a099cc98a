"""What is true of a node after a disaster, and the safe way on.

Facts come from three places that may disagree: the node (what lives, who holds what), this
controller's journal (which runs are not over), and the leases (whose controller was heard of).
Nothing is done here. What another living controller may be at is left to it; what a run of
this journal left is gone on with; what a run left that nobody here knows is never touched
without a person's word, since its maintenance may be half done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

HAND = "hand-"
"""What the ids of holds begin with that belong to no run."""


class Act(StrEnum):
    """What can be done about a finding."""

    WAIT = "wait"
    PERSON = "person"
    RESUME = "resume"
    END_LEASE = "end lease"
    RELEASE = "release"
    BRING_BACK = "bring back"


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """A workload as the node sees it.

    Attributes:
        why_not: why it does not run.
        away: its place is another node: it was moved there, or is a spare here.
    """

    name: str
    running: bool
    why_not: str = ""
    holder: str = ""
    sealed: str | None = None
    away: bool = False


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A run's lease on the node, with the workloads that were drained under it."""

    controller: str
    time: str
    seconds_left: float
    lapsed: bool
    drained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run on this node as the journal here knows it.

    Attributes:
        state: how it ended; empty while it has not.
        last: the step it stands at, in words.
        needs_repair: it waits until a person has mended the node.
        driven: a living process of this machine is at it.
        chain_faults: what is wrong with its record.
    """

    state: str
    last: str = ""
    cause: str = ""
    needs_repair: bool = False
    driven: bool = False
    chain_faults: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.state not in ("", "partial")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as it is.

    Attributes:
        quarantined_by: the run that set the quarantine; empty without one.
        working: ids of the operations that work there now.
    """

    node: str
    workloads: tuple[WorkloadFacts, ...] = ()
    leases: Mapping[str, LeaseFacts] | None = None
    quarantined_by: str = ""
    quarantine_cause: str = ""
    working: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not in order, or not at rest.

    Attributes:
        subject: a run, a workload or the node.
        fact: what is true.
        way: what to do, in words or as a command.
        act: what can be done about it.
        safe: it may be done without a person's word for this very run.
        run: on whose behalf it is done.
    """

    subject: str
    fact: str
    way: str
    act: Act
    safe: bool = False
    run: str = ""


def findings(node: NodeFacts, runs: Mapping[str, RunFacts]) -> list[Finding]:
    """Return what is to be said of a node, runs first.

    Args:
        node: what the node says.
        runs: this journal's runs on the node, by id.
    """
    found: list[Finding] = []
    for run in _concerned(node, runs):
        known = runs.get(run)
        found += _broken_record(run, known)
        found += _of_run(node, run, known)
    found += [f for w in node.workloads for f in _by_itself(w)]
    return found


def _concerned(node: NodeFacts, runs: Mapping[str, RunFacts]) -> list[str]:
    """Runs that are not over, or that have left something on the node."""
    names = {run for run, facts in runs.items() if not facts.over or facts.chain_faults}
    names |= {w.holder for w in node.workloads if w.holder and not w.holder.startswith(HAND)}
    names |= set(node.leases or {})
    if node.quarantined_by:
        names.add(node.quarantined_by)
    return sorted(names)


def _broken_record(run: str, known: RunFacts | None) -> Iterator[Finding]:
    for fault in known.chain_faults if known else ():
        yield Finding(
            run, f"its record is not as it was written: {fault}", "keep the journal", Act.PERSON
        )


def _of_run(node: NodeFacts, run: str, known: RunFacts | None) -> Iterator[Finding]:
    lease = (node.leases or {}).get(run)
    working = [name for name in node.working if name.startswith(f"{run}.")]
    if known is not None and known.driven:
        yield Finding(run, f"a living process is at it: {known.last}", "wait for it", Act.WAIT)
    elif lease is not None and not lease.lapsed:
        yield Finding(
            run,
            f"{lease.controller} was heard of at {lease.time}",
            f"wait; without another word it counts as abandoned in {lease.seconds_left:.0f} s",
            Act.WAIT,
        )
    elif known is not None and not known.over:
        yield _cut_off(run, known)
    elif working:
        yield Finding(run, f"its work goes on: {', '.join(working)}", "wait for it", Act.WAIT)
    else:
        yield from _left_behind(node, run, known, lease)


def _cut_off(run: str, known: RunFacts) -> Finding:
    if known.needs_repair:
        return Finding(
            run,
            f"the node is quarantined: {known.cause}",
            f"mend the node, then: pitstop resume {run}",
            Act.PERSON,
        )
    said = f"waits: {known.cause}" if known.state else f"it was cut off; {known.last}"
    return Finding(run, said, f"pitstop resume {run}", Act.RESUME, safe=True, run=run)


def _left_behind(
    node: NodeFacts, run: str, known: RunFacts | None, lease: LeaseFacts | None
) -> Iterator[Finding]:
    """Of a run that is over here, or that nobody here knows."""
    who = f"run {run}, which has ended ({known.state})," if known else f"run {run}, unknown here,"
    held = [w for w in node.workloads if w.holder == run]
    drained = [
        w
        for w in node.workloads
        if lease is not None and w.name in lease.drained and w.running and not w.holder
    ]
    for workload in held:
        # To end the hold of what has moved away starts nothing: its launcher here refuses.
        over = workload.running or workload.away
        act, state = (
            (Act.RELEASE, "it runs" if workload.running else workload.why_not)
            if over
            else (Act.BRING_BACK, workload.why_not)
        )
        safe = known is not None and act is Act.RELEASE
        yield Finding(
            workload.name,
            f"held by {who} and {state}",
            "pitstop reconcile --apply" if safe else f"look, then: --apply --take-over {run}",
            act,
            safe=safe,
            run=run,
        )
    for workload in drained:
        # It held nothing, so it was never further than the drain: no maintenance has begun.
        safe = not held
        yield Finding(
            workload.name,
            f"{who} drained it, and it runs",
            "pitstop reconcile --apply" if safe else f"look, then: --apply --take-over {run}",
            Act.RELEASE,
            safe=safe,
            run=run,
        )
    if node.quarantined_by == run:
        yield Finding(
            node.node,
            f"quarantined by {who} for: {node.quarantine_cause}",
            f"pitstop resume {run}, where its journal is",
            Act.PERSON,
        )
    elif lease is not None and not held and not drained:
        yield Finding(
            run,
            f"{who} still has a lease, and holds nothing",
            "pitstop reconcile --apply",
            Act.END_LEASE,
            safe=True,
            run=run,
        )


def _by_itself(workload: WorkloadFacts) -> Iterator[Finding]:
    """Of what no run has to do with."""
    name = workload.name
    back = f"pitstop restore {name}" if workload.sealed else f"pitstop start {name}"
    if workload.holder.startswith(HAND) and not workload.running:
        yield Finding(name, f"saved by hand as {workload.sealed}", back, Act.PERSON)
    elif not workload.holder and not workload.running and not workload.away:
        yield Finding(name, f"it does not run: {workload.why_not}", back, Act.PERSON)
