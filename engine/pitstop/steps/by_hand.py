"""One workload outside of a run: what the CLI's single verbs do."""

from __future__ import annotations

from typing import Any

from pitstop.decide.homes import home_on, homes, spec_on
from pitstop.decide.reconcile import HAND
from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import BadInput, PermanentError, PitstopError, Refused
from pitstop.model.site import Site
from pitstop.model.words import Verb
from pitstop.model.workload import Workload
from pitstop.steps.context import Progress
from pitstop.steps.runs import new_run_id
from pitstop.steps.saving import CHECKPOINT_DEADLINE, SLACK, checkpoint_id, worst_case
from pitstop.steps.specs import bring_up_arguments, checkpoint_arguments, plain

ANSWER = 20.0
"""Seconds for the answer of a node that a workload may be on."""


def start_by_hand(
    _site: Site, node: RemoteNode, spec: Workload, name: str, progress: Progress
) -> dict[str, Any]:
    """Cold-start a workload and wait until it is ready."""
    return _bring_up(node, spec, name, _hand_run(node, name), None, progress)


def checkpoint_by_hand(
    site: Site, node: RemoteNode, spec: Workload, name: str, progress: Progress
) -> dict[str, Any]:
    """Save a workload and end it."""
    run = HAND + new_run_id()
    return node.operate(
        f"{run}.{name}.{Verb.CHECKPOINT.value}",
        "checkpoint",
        checkpoint_arguments(
            name, spec, run, checkpoint_id(name, run, 1), node.name, site.policy.tolerate
        ),
        CHECKPOINT_DEADLINE + worst_case(spec.policy.gpu_limits) + SLACK,
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
    return _bring_up(node, spec, name, _hand_run(node, name), str(checkpoint), progress)


def suspend_by_hand(
    _site: Site, node: RemoteNode, spec: Workload, name: str, progress: Progress
) -> dict[str, Any]:
    """Park a workload's GPU state in the host memory of its node.

    Raises:
        Refused: it has none, or there is no room; nothing was touched.
    """
    return _of_gpus(node, spec, name, "suspend", progress)


def unsuspend_by_hand(
    _site: Site, node: RemoteNode, spec: Workload, name: str, progress: Progress
) -> dict[str, Any]:
    """Bring a suspended workload back onto its GPUs, and wait until it is ready.

    Raises:
        Refused: it is not suspended, or its GPUs are in use; it stays as it is.
    """
    return _of_gpus(node, spec, name, "resume", progress)


def _of_gpus(
    node: RemoteNode, spec: Workload, name: str, kind: str, progress: Progress
) -> dict[str, Any]:
    limits = spec.policy.gpu_limits
    return node.operate(
        f"{new_run_id()}.{name}.{kind}",
        kind,
        {
            "workload": name,
            "pid_file": spec.pid_file,
            "ready": plain(spec.ready),
            "gpu_limits": plain(limits),
        },
        worst_case(limits) + spec.ready.deadline + SLACK,
        progress,
    )


def bring_back(
    node: RemoteNode, spec: Workload, name: str, run: str, progress: Progress
) -> dict[str, Any]:
    """Restore what a run left, or cold-start it where that cannot be done.

    Args:
        node: where it is.
        spec: the workload.
        name: its name.
        run: the run that holds it.
        progress: told what happens.
    """
    checkpoint = node.call("images.newest", workload=name)["checkpoint"]
    if checkpoint is not None:
        try:
            return _bring_up(node, spec, name, run, str(checkpoint), progress)
        except (Refused, PermanentError) as error:
            progress(f"{name}: not restored, so started cold: {error}")
    return _bring_up(node, spec, name, run, None, progress)


def find_home(site: Site, name: str) -> tuple[str, Workload]:
    """Return the node that a workload is on, and what it is there.

    The node that it is placed on says so, or the one that it has moved to from there.

    Raises:
        BadInput: the site has no such workload.
        Refused: it lies on several nodes, or a node that must know cannot be asked.
    """
    spec = site.workloads.get(name)
    if spec is None:
        raise BadInput(name, "no such workload in the site", ", ".join(site.workloads))
    if len(spec.placement) > 1:
        raise Refused(name, "its GPUs sit in several machines; no part of it is touched alone")
    place, *_ = spec.placement
    if not spec.spares:
        return place, spec
    seen: list[str] = []
    run = ""
    while place not in seen:
        seen.append(place)
        moved = _moved_from(site, name, place)
        if moved is None:
            return place, spec_on(spec, place)
        if home_on(spec, moved["to"]) is None:
            raise Refused(name, f"{place} says that it moved to {moved['to']}, no home of it")
        place, run = str(moved["to"]), str(moved["run"])
    raise Refused(
        name,
        f"its hand-over between {' and '.join(seen)} was cut off",
        f"pitstop resume {run}",
    )


def _moved_from(site: Site, name: str, place: str) -> dict[str, Any] | None:
    """Ask a node where a workload has moved to from there; None if its place is there.

    Raises:
        Refused: it cannot be asked, so it is not known where the workload runs.
    """
    node = RemoteNode(place, site.nodes[place])
    try:
        found = node.call("workload", ANSWER, workload=name)
    except PitstopError as error:
        cause = f"whether it is on {place} cannot be told: {error.cause}"
        raise Refused(name, cause, "there must never be two copies") from error
    finally:
        node.close()
    moved: dict[str, Any] | None = found["moved"]
    return None if found["running"] else moved


def refuse_if_elsewhere(site: Site, name: str, node: str) -> None:
    """See that a workload runs on none of its other homes, before it is started on a node.

    Raises:
        Refused: it runs there, or that cannot be told.
    """
    for home in homes(site.workloads[name]):
        if home.node == node:
            continue
        other = RemoteNode(home.node, site.nodes[home.node])
        try:
            found = other.call("workload", ANSWER, workload=name)
        except PitstopError as error:
            cause = f"whether it runs on {home.node} cannot be told: {error.cause}"
            raise Refused(name, cause, "there must never be two copies") from error
        finally:
            other.close()
        if found["running"]:
            raise Refused(name, f"it runs on {home.node}", "there must never be two copies")


def give_back(node: RemoteNode, spec: Workload, name: str, run: str, progress: Progress) -> None:
    """Let work in again, and end the hold of a run."""
    end = spec.drain.end
    away = node.call("workload", workload=name)["moved"]
    if end is not None and not away:
        node.operate(
            f"{new_run_id()}.{name}.{Verb.RETURN_TO_SERVICE.value}",
            "action",
            {"action": plain(end)},
            end.timeout + SLACK,
            progress,
        )
    node.call("release", workload=name, run=run)


def _bring_up(
    node: RemoteNode,
    spec: Workload,
    name: str,
    run: str,
    checkpoint: str | None,
    progress: Progress,
) -> dict[str, Any]:
    verb, kind = (
        (Verb.COLD_START, "cold-start") if checkpoint is None else (Verb.RESTORE, "restore")
    )
    return node.operate(
        f"{new_run_id()}.{name}.{verb.value}",
        kind,
        bring_up_arguments(name, spec, run, checkpoint),
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
