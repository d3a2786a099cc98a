"""One workload outside of a run: what the CLI's single verbs do."""

from __future__ import annotations

from typing import Any

from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import Refused
from pitstop.model.site import Site
from pitstop.model.words import Verb
from pitstop.model.workload import Workload
from pitstop.steps.context import Progress
from pitstop.steps.runs import new_run_id
from pitstop.steps.specs import bring_up_arguments, checkpoint_arguments
from pitstop.steps.verbs import CHECKPOINT_DEADLINE, SLACK

HAND = "hand-"
"""What the ids of holds begin with that belong to no run."""


def start_by_hand(
    _site: Site, node: RemoteNode, spec: Workload, name: str, progress: Progress
) -> dict[str, Any]:
    """Cold-start a workload and wait until it is ready."""
    run = _hand_run(node, name)
    return node.operate(
        f"{new_run_id()}.{name}.{Verb.COLD_START.value}",
        "cold-start",
        bring_up_arguments(name, spec, run, None),
        spec.ready.deadline + SLACK,
        progress,
    )


def checkpoint_by_hand(
    site: Site, node: RemoteNode, spec: Workload, name: str, progress: Progress
) -> dict[str, Any]:
    """Save a workload and end it."""
    run = HAND + new_run_id()
    return node.operate(
        f"{run}.{name}.{Verb.CHECKPOINT.value}",
        "checkpoint",
        checkpoint_arguments(name, spec, run, f"{name}.{run}", node.name, site.policy.tolerate),
        CHECKPOINT_DEADLINE + SLACK,
        progress,
    )


def restore_by_hand(
    _site: Site, node: RemoteNode, spec: Workload, name: str, progress: Progress
) -> dict[str, Any]:
    """Restore a workload from its newest sealed checkpoint.

    Raises:
        Refused: there is none, or the gate says no.
    """
    checkpoint = node.call("images.newest", workload=name)["checkpoint"]
    if checkpoint is None:
        raise Refused(name, "there is no checkpoint that could be restored")
    run = _hand_run(node, name)
    return node.operate(
        f"{new_run_id()}.{name}.{Verb.RESTORE.value}",
        "restore",
        bring_up_arguments(name, spec, run, str(checkpoint)),
        spec.ready.deadline + SLACK,
        progress,
    )


def _hand_run(node: RemoteNode, name: str) -> str:
    """Return the id to act under: that of the hold which a checkpoint by hand has set.

    Raises:
        Refused: a run holds the workload, and its maintenance may be half done.
    """
    holder = str(node.call("holder", workload=name)["holder"])
    if holder and not holder.startswith(HAND):
        raise Refused(name, f"held by run {holder}", f"pitstop resume {holder}")
    return holder or HAND + new_run_id()
