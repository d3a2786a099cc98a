"""Reconcile: look at node, journal and leases, and go the safe way on (`decide.reconcile`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitstop.decide.homes import home_on, only_spare, spec_on
from pitstop.decide.reconcile import (
    Act,
    Finding,
    LeaseFacts,
    NodeFacts,
    RunFacts,
    WorkloadFacts,
    findings,
)
from pitstop.fleet.node import RemoteNode
from pitstop.journal.chain import faults
from pitstop.journal.store import Journal
from pitstop.model.errors import BadInput
from pitstop.model.event import Event
from pitstop.model.site import Site
from pitstop.model.workload import Workload
from pitstop.node.locks import is_held
from pitstop.steps.by_hand import bring_back, give_back, refuse_if_elsewhere
from pitstop.steps.context import Progress
from pitstop.steps.runs import ended_as, needs_repair
from pitstop.steps.specs import inspect_argument

Resume = Callable[[Path, str], object]


@dataclass
class Reconciler:
    """One node of a site, with the journal in `home`.

    Raises:
        BadInput: the site has no such node.
    """

    site: Site
    name: str
    home: Path
    progress: Progress = lambda _text: None

    def __post_init__(self) -> None:
        if self.name not in self.site.nodes:
            raise BadInput(self.name, "no such node in the site", ", ".join(self.site.nodes))

    @property
    def workloads(self) -> dict[str, Workload]:
        """The workloads that are, or may be moved to be, on this node with all their GPUs."""
        return {
            name: spec_on(spec, self.name)
            for name, spec in self.site.workloads.items()
            if len(spec.placement) == 1 and home_on(spec, self.name) is not None
        }

    def look(self) -> list[Finding]:
        """Return what is true, changing nothing.

        Raises:
            PitstopError: the node cannot be asked.
        """
        node = self._node()
        try:
            facts = self._node_facts(node)
        finally:
            node.close()
        return findings(facts, self._runs())

    def apply(self, resume: Resume, take_over: frozenset[str] = frozenset()) -> list[Finding]:
        """Do what is safe, and what a run left that a person said may be taken over.

        Args:
            resume: goes on with a run of this journal to its end.
            take_over: ids of runs whose leavings may be brought back.

        Returns:
            What was done. Look again for what remains.

        Raises:
            PitstopError: something could not be done; what was done before it stays.
        """
        done = []
        while todo := [f for f in self.look() if (f.safe or f.run in take_over) and f not in done]:
            finding = todo[0]
            self.progress(f"{finding.subject}: {finding.act.value}")
            if finding.act is Act.RESUME:
                resume(self.home, finding.run)
            else:
                self._on_node(finding)
            done.append(finding)
        return done

    def _on_node(self, finding: Finding) -> None:
        node = self._node()
        try:
            if finding.act is Act.END_LEASE:
                node.call("lease.end", run=finding.run)
                return
            spec = self.workloads[finding.subject]
            if finding.act is Act.BRING_BACK:
                refuse_if_elsewhere(self.site, finding.subject, self.name)
                bring_back(node, spec, finding.subject, finding.run, self.progress)
            give_back(node, spec, finding.subject, finding.run, self.progress)
        finally:
            node.close()

    def _node(self) -> RemoteNode:
        return RemoteNode(self.name, self.site.nodes[self.name])

    def _node_facts(self, node: RemoteNode) -> NodeFacts:
        asked = {name: inspect_argument(spec) for name, spec in self.workloads.items()}
        found = node.call("inspect", workloads=asked)
        quarantine = found["quarantine"] or {}
        return NodeFacts(
            node=self.name,
            workloads=tuple(
                WorkloadFacts(
                    name,
                    w["running"],
                    w["why_not"],
                    w["holder"],
                    w["sealed_checkpoint"],
                    away=bool(w["moved"]) or self._only_spare(name, w),
                )
                for name, w in found["workloads"].items()
            ),
            leases={
                lease["run"]: LeaseFacts(
                    lease["controller"],
                    lease["time"],
                    lease["seconds_left"],
                    lease["lapsed"],
                    tuple(lease["drained"]),
                )
                for lease in node.call("leases")["leases"]
            },
            quarantined_by=str(quarantine.get("run", "")),
            quarantine_cause=str(quarantine.get("cause", "")),
            working=tuple(o["id"] for o in node.call("operations")["running"]),
        )

    def _only_spare(self, name: str, found: Mapping[str, Any]) -> bool:
        """Whether nothing of a workload is here, and its place is another node."""
        waits = found["running"] or found["sealed_checkpoint"] or found["holder"]
        return only_spare(self.site.workloads[name], self.name) and not waits

    def _runs(self) -> dict[str, RunFacts]:
        journal = Journal(self.home / "journal.db")
        try:
            ids = [run for run, _ in journal.runs() if journal.plan(run).node == self.name]
            return {run: self._run_facts(run, journal.events(run)) for run in ids}
        finally:
            journal.close()

    def _run_facts(self, run: str, events: list[Event]) -> RunFacts:
        locks = (self.home / "runs" / run).glob("*.lock")
        ended = [e for e in events if e.kind == "run.ended"]
        return RunFacts(
            state=ended_as(events),
            last=_last(events),
            cause=str(ended[-1].data.get("cause", "")) if ended else "",
            needs_repair=needs_repair(events),
            driven=any(is_held(lock) for lock in locks),
            chain_faults=tuple(faults(events)),
        )


def _last(events: list[Event]) -> str:
    """Say in words where a run stands."""
    words = {"step.started": "in", "step.finished": "after", "step.failed": "at failed"}
    for event in reversed(events):
        if event.kind in words:
            return f"it stands {words[event.kind]} {event.verb} of {event.subject}"
    return "it stands before its first step"
