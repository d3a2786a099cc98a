"""What a step needs: the plan, the journal, the node, and who asks."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pitstop.decide.attempts import Standing, standing
from pitstop.decide.moves import is_there
from pitstop.fleet.node import DeferringNode, RemoteNode
from pitstop.fleet.scheduler import JobScheduler, Scheduler
from pitstop.fleet.schedulers import open_scheduler
from pitstop.journal.store import Journal
from pitstop.model.errors import PermanentError
from pitstop.model.event import Event
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.plan import Plan, WorkloadPlan
from pitstop.model.site import Retry
from pitstop.model.slurm import SlurmSpec
from pitstop.model.words import Verb
from pitstop.steps.leases import attention, lease_order

Progress = Callable[[str], None]


class RunContext:
    """One run as one process sees it.

    It holds no state of its own: what has happened stands in the journal, what is true is
    asked of the node. So any number of processes can make one for the same run. Events that
    were read are kept, as none ever changes; each look asks for those that came since.
    """

    def __init__(
        self,
        home: Path,
        run: str,
        actor: str | None = None,
        progress: Progress = lambda _t: None,
        node: type[RemoteNode] = RemoteNode,
    ) -> None:
        self.home = home
        self.run = run
        self.actor = actor or default_actor()
        self.progress = progress
        self.journal = Journal(home / "journal.db")
        self.plan: Plan = self.journal.plan(run)
        self._events: tuple[Event, ...] = ()
        order = lease_order(self.plan, run, self.actor)
        self.node = node(self.plan.node, self.plan.node_spec, lease=order)
        self.attention = attention(self.plan, order)
        self._others: dict[str, RemoteNode] = {}
        self._scheduler: Scheduler | None = None
        self._peer: RemoteNode | None = None

    def close(self) -> None:
        """Give connections and database back."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._peer is not None:
            self._peer.close()
        for other in self._others.values():
            other.close()
        self.node.close()
        self.journal.close()

    def at(self, name: str) -> RemoteNode:
        """A node of the plan: the run's own, or one that a workload moves to.

        Such a one gets no lease of the run: the run's own node raises the alarm, and is told
        that the run is looked after also while it works on another.

        Raises:
            KeyError: the plan has no such node.
        """
        if name == self.plan.node:
            return self.node
        if name not in self._others:
            self._others[name] = type(self.node)(name, self.plan.node_named(name))
            self._others[name].meanwhile = self.attention.renew
        found = self._others[name]
        if isinstance(found, DeferringNode) and isinstance(self.node, DeferringNode):
            found.out_of_time = self.node.out_of_time
        return found

    def is_there(self, subject: str) -> bool:
        """Whether a workload is brought up on the target it moves to; see `decide.moves`."""
        found = [w for w in self.plan.workloads if w.name == subject]
        return bool(found) and is_there(found[0], self.events())

    def where(self, subject: str) -> RemoteNode:
        """The node on which a workload is brought up."""
        target = self.workload(subject).target
        there = target is not None and self.is_there(subject)
        return self.at(target.node) if target is not None and there else self.node

    @property
    def scheduler_spec(self) -> SlurmSpec | KubernetesSpec:
        """The site's scheduler, as it was planned with.

        Raises:
            PermanentError: the plan knows of none.
        """
        if self.plan.scheduler is None:
            raise PermanentError(self.plan.node, "the site declares no scheduler")
        return self.plan.scheduler.spec

    @property
    def scheduler_node(self) -> str:
        """What the scheduler calls this run's node."""
        return self.scheduler_spec.name_of(self.plan.node)

    @property
    def scheduler(self) -> Scheduler:
        """The site's scheduler, connected to when it is first asked."""
        if self._scheduler is None:
            self._scheduler = open_scheduler(self.scheduler_spec)
        return self._scheduler

    @property
    def peer(self) -> RemoteNode | None:
        """Another node that sees the same workloads; None where there is none."""
        known = self.plan.scheduler.peer if self.plan.scheduler else {}
        if self._peer is None and known:
            [(name, spec)] = known.items()
            self._peer = RemoteNode(name, spec)
        return self._peer

    @property
    def slurm(self) -> tuple[JobScheduler, SlurmSpec]:
        """The site's scheduler, where that is one of jobs.

        Raises:
            PermanentError: it is another.
        """
        scheduler, spec = self.scheduler, self.scheduler_spec
        if not isinstance(scheduler, JobScheduler) or not isinstance(spec, SlurmSpec):
            raise PermanentError(self.plan.node, f"{spec.kind} is no scheduler of jobs")
        return scheduler, spec

    @property
    def directory(self) -> Path:
        """Where this run's report and locks lie."""
        path = self.home / "runs" / self.run
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def events(self) -> list[Event]:
        """All events so far, whoever appended them."""
        known = self._events
        after = known[-1].seq if known else 0
        self._events = (*known, *self.journal.events(self.run, after))
        return list(self._events)

    def standing(self, verb: Verb, subject: str) -> Standing:
        """Where a step stands."""
        return standing(self.events(), verb, subject)

    def result(self, verb: Verb, subject: str) -> dict[str, Any] | None:
        """The result of a finished step."""
        return self.standing(verb, subject).result

    def retry(self, verb: Verb) -> Retry:
        """The retry rule of a verb."""
        return self.plan.policy.retry(verb)

    def workload(self, name: str) -> WorkloadPlan:
        """The plan of a workload."""
        return self.plan.workload(name)

    def operation_id(self, verb: Verb, subject: str, attempt: int, part: str = "") -> str:
        """The id under which a node knows a step's work: the same whoever asks."""
        return ".".join(filter(None, (self.run, subject, verb.value, part, str(attempt))))

    def decide(self, subject: str, topic: str, choice: str, cause: str, **data: Any) -> None:
        """Record which branch is taken and why; once, however often it is replayed."""
        for event in self.events():
            if (
                event.kind == "decision"
                and event.subject == subject
                and (event.data.get("topic"), event.data.get("choice")) == (topic, choice)
            ):
                return
        self.journal.append(
            self.run,
            "decision",
            self.actor,
            subject,
            data={"topic": topic, "choice": choice, "cause": cause, **data},
        )

    def note(self, subject: str, topic: str, verb: Verb, attempt: int = 0, **data: Any) -> None:
        """Record what must be known after a crash, before it is acted on."""
        self.journal.append(
            self.run,
            "note",
            self.actor,
            subject,
            verb.value,
            attempt,
            {"topic": topic, **data},
        )

    def noted(self, subject: str, topic: str, attempt: int = 0) -> dict[str, Any] | None:
        """Return what was recorded under a topic; None when nothing was."""
        for event in self.events():
            about = (event.kind, event.subject, event.attempt) == ("note", subject, attempt)
            if about and event.data.get("topic") == topic:
                return dict(event.data)
        return None


def default_actor() -> str:
    """Say who acts: the user as the machine knows it, which is self-asserted."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
