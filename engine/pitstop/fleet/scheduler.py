"""What pitstop asks of a site's scheduler, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

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
