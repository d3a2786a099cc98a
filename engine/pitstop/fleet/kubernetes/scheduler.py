"""Kubernetes as a scheduler of nodes: look, cordon, give back. Only what is ours is undone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pitstop.fleet.kubernetes.api import Api, moment
from pitstop.fleet.kubernetes.errors import Conflict
from pitstop.fleet.kubernetes.records import (
    CONDITION,
    CORDON,
    MANAGER,
    UNSCHEDULABLE_BEFORE,
    KubeNode,
)
from pitstop.fleet.scheduler import Claim, Scheduler, Standing, claim_of, mark
from pitstop.model.errors import PitstopError

log = logging.getLogger(__name__)

Decide = Callable[[KubeNode, str], Mapping[str, Any] | None]
"""From a node as it is and a run to the patch; None when nothing is to be changed."""

CONFLICTS = 10
"""Times a change is decided anew because the node changed meanwhile: kubelets write often."""


class Kubernetes(Scheduler):
    """One cluster.

    A cordon of ours is `spec.unschedulable` and an annotation with the run's id, set at once
    and only on the node as it was read. Somebody who runs `kubectl cordon` on a node that is
    cordoned already leaves no trace: who wants it to stay so removes the annotation
    `pitstop.dev/cordon`.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    def look(self, node: str, run: str) -> Standing:
        """Say how a node stands; see `Scheduler.look`."""
        return self._standing(self._api.node(node), run)

    def drain(self, node: str, run: str) -> Standing:
        """Cordon a node with our mark; see `Scheduler.drain`. Its pods stay where they are."""
        before, after = self._change(node, run, _cordon)
        found = after or before
        if claim(found, run) is Claim.OURS and found.condition != mark(run):
            self._api.change_condition(node, _condition(run))
        if after is not None:
            self._tell(after, "PitstopCordoned", f"{mark(run)} took the node out of service")
        return self.look(node, run)

    def give_back(self, node: str, run: str) -> bool:
        """Uncordon a node if the cordon is ours; see `Scheduler.give_back`.

        What else is ours there (annotations, the condition) goes in any case.
        """
        # First, because the annotation is what a second try knows the node by.
        if self._api.node(node).condition == mark(run):
            self._api.change_condition(node, {"type": CONDITION, "$patch": "delete"})
        before, after = self._change(node, run, _uncordon)
        if after is None or claim(before, run) is not Claim.OURS:
            return False
        self._tell(after, "PitstopUncordoned", f"{mark(run)} gave the node back")
        return True

    def close(self) -> None:
        """Give the connection back."""
        self._api.close()

    def _change(self, node: str, run: str, decide: Decide) -> tuple[KubeNode, KubeNode | None]:
        """Change a node as decided on what it is now.

        Returns:
            The node before, and after; None after where nothing had to be changed.

        Raises:
            Conflict: it changed again and again between reading and writing.
        """
        for _ in range(CONFLICTS):
            before = self._api.node(node)
            patch = decide(before, run)
            if patch is None:
                return before, None
            try:
                return before, self._api.change_node(before, patch)
            except Conflict as error:
                conflict = error
        raise conflict

    def _standing(self, found: KubeNode, run: str) -> Standing:
        left = [pod.key for pod in self._api.pods_on(found.name) if pod.holds_node]
        # Of a node whose kubelet does not report, nobody has seen a process end: pods that
        # were deleted by force are gone from the API alone.
        reachable = found.ready is not None
        return Standing(
            claim=claim(found, run),
            reason=reason(found),
            drained=found.unschedulable and reachable and not left,
            reachable=reachable,
            state=found.state,
            jobs=tuple(left),
        )

    def _tell(self, node: KubeNode, reason: str, message: str) -> None:
        """Write an event: a note for people. That it is missing changes nothing for the node."""
        try:
            self._api.tell(node, reason, message)
        except PitstopError as error:
            log.warning("%s: no event %s was written: %s", node.name, reason, error)


def reason(node: KubeNode) -> str:
    """Return who cordoned a node, as far as it is written there."""
    others = node.cordoned_by - {MANAGER}
    if node.unschedulable and node.cordoned_by and MANAGER not in node.cordoned_by:
        # An annotation of ours is older: somebody has uncordoned and cordoned it since.
        return f"cordoned through {', '.join(sorted(others))}"
    return node.cordon if node.unschedulable else ""


def claim(node: KubeNode, run: str) -> Claim:
    """Tell whose cordon it is."""
    return claim_of(node.unschedulable, reason(node), run)


def _cordon(node: KubeNode, run: str) -> Mapping[str, Any] | None:
    if claim(node, run) is not Claim.NOBODY:
        return None
    annotations = {CORDON: mark(run), UNSCHEDULABLE_BEFORE: "false"}
    return {"metadata": {"annotations": annotations}, "spec": {"unschedulable": True}}


def _uncordon(node: KubeNode, run: str) -> Mapping[str, Any] | None:
    if node.cordon != mark(run):
        return None
    patch: dict[str, Any] = {
        "metadata": {"annotations": {CORDON: None, UNSCHEDULABLE_BEFORE: None}}
    }
    if claim(node, run) is Claim.OURS:
        patch["spec"] = {"unschedulable": None}
    return patch


def _condition(run: str) -> dict[str, Any]:
    now = moment()
    return {
        "type": CONDITION,
        "status": "True",
        "reason": "Maintenance",
        "message": mark(run),
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
