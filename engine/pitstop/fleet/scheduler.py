"""What pitstop asks of a site's scheduler, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pitstop.model.errors import PermanentError

MARK = "pitstop:"
"""What a reason or note of ours begins with; the run's id follows."""


class Claim(StrEnum):
    """Who keeps new work away from a node."""

    NOBODY = "nobody"
    OURS = "ours"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Standing:
    """A node as its scheduler sees it, for one run.

    Attributes:
        claim: who keeps new work away from it.
        reason: as it is written there; empty without one.
        drained: nothing new starts and nothing is left. The flag alone does not say so.
        reachable: the scheduler has contact with it.
        state: in the scheduler's own words, for people.
        jobs: what is on it, or may be, by the scheduler's names for them.
    """

    claim: Claim
    reason: str
    drained: bool
    reachable: bool
    state: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its scheduler sees it.

    Attributes:
        number: what it is asked for by; for all parts of it, where it has several.
        key: what commands and people call it by, so that no sibling of it is meant.
        nodes: all machines that any part of it sits on; none while it waits.
        gpus: all that it holds; None when the scheduler does not say.
        active: processes of it may be on its nodes.
        running: all of it runs, and nobody is ending it.
        waiting: all of it is in the queue, and nothing of it on a node.
        held: somebody keeps it from starting.
        over: it has ended, whichever way, and does not start again. One that is none of
            these is on its way from one to another.
        cancelled: it is over because somebody wanted that.
        ends: when its time is up, in seconds since 1970; None without a limit, or when it
            is not known.
        requeue: it may be put back into the queue; None when the scheduler does not say.
        excluded: machines that it must not start on.
        state: in the scheduler's words, with why it waits.
    """

    number: int
    key: str
    name: str
    user: str
    nodes: tuple[str, ...]
    gpus: int | None
    active: bool
    running: bool
    waiting: bool
    held: bool
    over: bool
    cancelled: bool
    ends: int | None
    requeue: bool | None
    excluded: tuple[str, ...]
    state: str


class Scheduler(ABC):
    """A scheduler, for the nodes of one site."""

    @abstractmethod
    def look(self, node: str, run: str) -> Standing:
        """Say how a node stands.

        Raises:
            PitstopError: it cannot be told. That is never "idle" or "no jobs".
        """

    @abstractmethod
    def drain(self, node: str, run: str) -> Standing:
        """Keep new work away from a node. What somebody else has drained is left as it is.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """

    @abstractmethod
    def give_back(self, node: str, run: str) -> bool:
        """Let new work in again if the node is ours, read anew just before; say whether it was.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """

    def reboot(self, node: str, run: str) -> None:
        """Have the scheduler reboot a node that is ours and empty, and keep it closed.

        Raises:
            Refused: it is not ours, or not empty.
            PitstopError: it was not done, or this scheduler cannot.
        """
        raise PermanentError(node, f"its scheduler reboots no nodes (asked by {run})")

    @abstractmethod
    def close(self) -> None:
        """Give the connection back."""


class JobScheduler(Scheduler):
    """A scheduler whose jobs can be asked for and moved one by one."""

    @abstractmethod
    def jobs(self, node: str) -> tuple[Job, ...]:
        """Return the jobs that hold a node, or may, each with all its machines.

        Raises:
            PitstopError: it cannot be told.
        """

    @abstractmethod
    def job(self, number: int) -> Job | None:
        """Return a job; None when the scheduler does not know it (any more).

        Raises:
            PitstopError: it cannot be told.
        """

    @abstractmethod
    def signal(self, key: str, signal: str, batch: bool) -> None:
        """Signal a job: its steps, or its batch script alone.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """

    @abstractmethod
    def requeue(self, key: str) -> None:
        """Put a job back into the queue, all of it, held.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """

    @abstractmethod
    def hold(self, key: str) -> None:
        """Keep a job that waits from starting.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """

    @abstractmethod
    def release(self, key: str, excluded: Sequence[str] = (), only: str = "") -> None:
        """Let a held job start: on one node only, or anywhere but on some.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """


def mark(run: str) -> str:
    """Return the reason that a run gives."""
    return MARK + run


def claim_of(closed: bool, reason: str, run: str) -> Claim:
    """Tell whose a node is from its reason; another run's is as foreign as a person's.

    Args:
        closed: whether anything keeps new work away, with a reason or without.
    """
    if not closed:
        return Claim.NOBODY
    return Claim.OURS if reason == mark(run) else Claim.FOREIGN
