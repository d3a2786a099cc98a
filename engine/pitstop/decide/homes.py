"""Where a workload may be, and which of these nodes it fits on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pitstop.decide.gate import compare
from pitstop.model.fingerprint import Fingerprint
from pitstop.model.verdict import Verdict
from pitstop.model.workload import AtRouter, Spare, Workload


@dataclass(frozen=True, slots=True)
class Home:
    """A node that a workload may be on.

    Attributes:
        router: which replica it is there.
        unrouted: it is behind a router, and has no replica there.
    """

    node: str
    router: AtRouter | None = None
    unrouted: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of memory and of disk: what a node has left, or what a workload needs."""

    memory: int
    disk: int

    def without(self, need: Room) -> Room:
        """Return what is left once somebody has taken his part."""
        return Room(self.memory - need.memory, self.disk - need.disk)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that was asked whether a workload could move there.

    Attributes:
        reasons: why it could not; without any it can.
        verdict: what the gate would say there; None when that is not known.
    """

    node: str
    reasons: tuple[str, ...] = ()
    verdict: Verdict | None = None

    @property
    def fits(self) -> bool:
        """Whether it can move there."""
        return not self.reasons

    def __str__(self) -> str:
        return f"{self.node}: {', '.join(self.reasons) or 'matches and has room'}"


def homes(spec: Workload) -> tuple[Home, ...]:
    """Return all nodes that a workload may be on, its placement first, then in its order.

    A workload that lies on several nodes at once has no other home.
    """
    router = spec.drain.router
    placed = tuple(Home(node, router) for node in spec.placement)
    return placed + tuple(_spare(spare, router) for spare in spec.spares)


def _spare(spare: Spare, router: AtRouter | None) -> Home:
    if router is None:
        return Home(spare.node)
    if spare.replica is None:
        return Home(spare.node, unrouted=True)
    return Home(spare.node, AtRouter(name=router.name, replica=spare.replica))


def home_on(spec: Workload, node: str) -> Home | None:
    """Return the home that a workload has on a node; None where it has none."""
    return next((home for home in homes(spec) if home.node == node), None)


def only_spare(spec: Workload, node: str) -> bool:
    """Tell whether a workload is declared on a node for the case alone that it moves there."""
    return node not in spec.placement


def spec_on(spec: Workload, node: str) -> Workload:
    """Return a workload as it is on one of its homes."""
    home = home_on(spec, node)
    if home is None or not only_spare(spec, node):
        return spec
    [gpus] = spec.placement.values()
    drain = spec.drain.model_copy(update={"router": home.router})
    return spec.model_copy(update={"placement": {node: gpus}, "drain": drain})


def judge(
    home: Home,
    answer: Mapping[str, Any],
    saved: Fingerprint,
    tolerate: Collection[str],
    need: Room,
    left: Room,
) -> Candidate:
    """Say whether a workload could move to a node.

    Args:
        home: the node, as the workload is declared there.
        answer: what the node says of itself, see `pitstop.node.candidate`.
        saved: the fingerprint that the checkpoint will have.
        tolerate: host fields whose difference the site allows.
        need: what the workload holds where it is.
        left: what the node has left, beside what else moves there.
    """
    reasons = [str(reason) for reason in answer["reasons"]]
    if home.unrouted:
        reasons.append("no replica is declared for it at the router it is behind")
    verdict = compare(saved, Fingerprint.from_json(answer["fingerprint"]), tolerate)
    reasons += [f"differs in {difference}" for difference in verdict.invalid]
    for what, wanted, there in (
        ("memory", need.memory, left.memory),
        ("disk", need.disk, left.disk),
    ):
        if wanted > there:
            reasons.append(f"too little {what}: {_mib(wanted)} are needed, {_mib(there)} are left")
    return Candidate(home.node, tuple(reasons), verdict)


def _mib(size: int) -> str:
    return f"{max(size, 0) / (1 << 20):.0f} MiB"
