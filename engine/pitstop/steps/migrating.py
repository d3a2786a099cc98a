"""Moving a workload to another node: which one, whether it still fits, and its images."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pitstop.decide.homes import Candidate, Home, Room, home_on, homes, judge
from pitstop.fleet.node import RemoteNode
from pitstop.fleet.streaming import carry
from pitstop.fleet.transport import Completed
from pitstop.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    NodeUnreachable,
    PermanentError,
    PitstopError,
    Refused,
    TargetLost,
    TransferFailed,
)
from pitstop.model.fingerprint import Fingerprint
from pitstop.model.plan import Target, WorkloadPlan
from pitstop.model.site import Node
from pitstop.model.words import Strategy
from pitstop.model.workload import Workload
from pitstop.node.frame import unwrap
from pitstop.steps.context import RunContext
from pitstop.steps.specs import plain, probes_of

ASK_TIMEOUT = 90.0
"""Seconds for a node's answer: it reads versions, which takes a probe's time."""

NO_CONTACT = (NodeUnreachable, ConnectionLost, DeadlineExceeded)


@dataclass
class Spares:
    """The other nodes of a site, as workloads of one node would find them.

    A workload that is promised a place there takes its room from those that come after it.

    Args:
        nodes: how each is reached.
        source: how the node that the workloads are on is reached.
        tolerate: host fields whose difference the site allows.
        run: that asks; empty while planning.
    """

    nodes: Mapping[str, Node]
    source: Node
    tolerate: tuple[str, ...]
    run: str = ""
    _taken: dict[str, Room] = field(default_factory=dict)
    _gpus: dict[str, set[str]] = field(default_factory=dict)

    def candidates(
        self, name: str, spec: Workload, found: Mapping[str, Any], places: Iterable[Home]
    ) -> tuple[Candidate, ...]:
        """Ask some nodes about a workload, up to the first that it fits on.

        Args:
            name: of the workload.
            spec: as it is declared.
            found: what the node that it is on says of it.
            places: the nodes, the best first.
        """
        asked = []
        for home in places:
            asked.append(self._ask(home, name, spec, found))
            if asked[-1].fits:
                break
        return tuple(asked)

    def _ask(self, home: Home, name: str, spec: Workload, found: Mapping[str, Any]) -> Candidate:
        node = RemoteNode(home.node, self.nodes[home.node])
        question = {
            "run": self.run,
            "probes": probes_of(spec),
            "pid_file": spec.pid_file,
            "launch": plain(spec.launch),
            "signer": found.get("signer"),
            "output": f"{self.source.state_dir}/workloads/{name}",
            "gpu_state": found["gpu_state"],
            "gpus_reserved": sorted(self._gpus.get(home.node, ())),
        }
        try:
            said = node.call("candidate", ASK_TIMEOUT, workloads={name: question})
        except PitstopError as error:
            return Candidate(home.node, (f"cannot be asked: {error.cause}",))
        finally:
            node.close()
        answer = said["workloads"][name]
        # GPU state is in host memory on its way, and in the images.
        held = int(found["memory_bytes"]) + int(found["gpu_bytes"])
        need = Room(held, held)
        left = Room(int(answer["memory_available"]), int(answer["disk_free"]))
        taken = self._taken.get(home.node, Room(0, 0))
        saved = Fingerprint.from_json(found["fingerprint"])
        candidate = judge(home, answer, saved, self.tolerate, need, left.without(taken))
        if candidate.fits:
            self._taken[home.node] = Room(taken.memory + need.memory, taken.disk + need.disk)
            self._gpus.setdefault(home.node, set()).update(map(str, answer["gpus"]))
        return candidate


def other_homes(spec: Workload, node: str) -> tuple[Home, ...]:
    """Return where a workload may be, but for one node."""
    return tuple(home for home in homes(spec) if home.node != node)


def target_of(
    spec: Workload, chosen: str, asked: Iterable[Candidate], nodes: Mapping[str, Node]
) -> Target | None:
    """Return the plan's target for the node that was chosen; None when none was."""
    for candidate in asked:
        if candidate.node == chosen and candidate.verdict is not None:
            home = home_on(spec, chosen)
            return Target(
                node=chosen,
                node_spec=nodes[chosen],
                predicted=candidate.verdict.to_json(),
                router=home.router if home else None,
            )
    return None


def refuse_if_target_changed(ctx: RunContext, found: Mapping[str, Any]) -> dict[str, Any]:
    """Look at every target again, before anything is touched.

    Args:
        ctx: the run.
        found: what the node says of its workloads now.

    Returns:
        The targets by workload.

    Raises:
        Refused: a workload would not fit there any more.
    """
    moving = [w for w in ctx.plan.workloads if w.strategy is Strategy.MIGRATE]
    nodes = {w.target.node: w.target.node_spec for w in moving if w.target is not None}
    spares = Spares(nodes, ctx.plan.node_spec, ctx.plan.policy.tolerate, ctx.run)
    for workload in moving:
        target = target_on(workload)
        home = Home(target.node, target.router)
        now = found["workloads"][workload.name]
        [candidate] = spares.candidates(workload.name, workload.spec, now, [home])
        if not candidate.fits:
            raise Refused(workload.name, f"it cannot move any more: {candidate}", "make a new plan")
    return {w.name: target_on(w).node for w in moving}


def target_on(workload: WorkloadPlan) -> Target:
    """Return the target of a workload that is planned to move.

    Raises:
        Refused: the plan names none.
    """
    if workload.target is None:
        raise Refused(workload.name, "the plan names no node to move it to", "make a new plan")
    return workload.target


def transfer(ctx: RunContext, subject: str, checkpoint: str) -> dict[str, Any]:
    """Bring a checkpoint to the workload's target and hand the workload over; see `handover`.

    Returns:
        `to`, `bytes` that were brought and `seconds` that took, `shared` where both nodes see
        the same storage and nothing had to be brought.

    Raises:
        TargetLost: the target cannot be asked, and the checkpoint is still the run's node's;
            or a person has given the target up.
        TransferFailed: it did not come, though the target answers.
        PitstopError: what a node says, or how far it came is not known.
    """
    target = target_on(ctx.workload(subject))
    order: dict[str, Any] = {"workload": subject, "checkpoint": checkpoint, "run": ctx.run}
    offered = ctx.node.call("handover.offer", **order, to=target.node)
    if offered["state"] == "handed-over" and not moved_on_record(ctx, subject):
        raise TargetLost(subject, f"{target.node} was given up, by a person")
    there = ctx.at(target.node)
    # What was marked as handed over has come whole, and on no shared storage.
    shared = offered["state"] == "sealed" and _bring(ctx, there, subject, checkpoint, offered)
    pid_file = ctx.workload(subject).spec.pid_file
    given = ctx.node.call(
        "handover.give", **order, to=target.node, shared=shared, pid_file=pid_file
    )
    came = there.call("handover.accept", **order, **given, pid_file=pid_file)
    return {"to": target.node, "shared": shared, **came}


def _bring(
    ctx: RunContext,
    there: RemoteNode,
    subject: str,
    checkpoint: str,
    offered: Mapping[str, Any],
) -> bool:
    """See that the target has every byte; return whether it had them, being on shared storage."""
    with _lost_without(there, subject):
        arrived = there.call("handover.arrival", workload=subject, checkpoint=checkpoint)
    same = arrived["digest"] == offered["digest"]
    mark = arrived["offered"] or {}
    if same and mark.get("run") == ctx.run and mark.get("to") == there.name:
        return True
    if not (same and arrived["state"] == "received"):
        _stream(ctx, there, subject, checkpoint, arrived["have"], int(offered["bytes"]))
    return False


def _stream(
    ctx: RunContext,
    there: RemoteNode,
    subject: str,
    checkpoint: str,
    have: list[str],
    size: int,
) -> None:
    nonce = secrets.token_hex(8)
    source = ctx.node.stream("images", "send", "--nonce", nonce)
    request = {"workload": subject, "checkpoint": checkpoint, "have": have}
    source.write(json.dumps(request).encode())
    source.end_input()
    try:
        with _lost_without(there, subject):
            target = there.stream("images", "receive", subject, checkpoint, "--nonce", nonce)
    except PitstopError:
        source.close()
        raise
    seconds = ctx.workload(subject).spec.policy.transfer_deadline
    tell = _teller(ctx, subject, there.name, size)
    try:
        carried = carry(source, target, seconds, subject, tell)
    except DeadlineExceeded as error:
        raise PermanentError(
            subject, f"its images were {error.cause}", "policy.transfer_deadline in site.yaml"
        ) from error
    except ConnectionLost as error:
        if error.subject == ctx.node.name:
            raise
        raise TargetLost(subject, f"{there.name} does not answer: {error.cause}") from error
    if carried.source is not None:
        _check(ctx.node.name, nonce, carried.source, carried.source.stderr)
    _check(there.name, nonce, carried.target, carried.target.stdout)


@contextmanager
def _lost_without(there: RemoteNode, subject: str) -> Iterator[None]:
    """Tell that it is the target that does not answer, which has nothing of the workload yet."""
    try:
        yield
    except NO_CONTACT as error:
        raise TargetLost(subject, f"{there.name} does not answer: {error.cause}") from error


def _check(node: str, nonce: str, completed: Completed, said: bytes) -> None:
    """Raise what the command at one end has said.

    Raises:
        TransferFailed: it has said nothing.
        PitstopError: its own error.
    """
    answer = unwrap(nonce, said)
    if answer is None:
        tail = completed.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise TransferFailed(
            node,
            f"the transfer ended without a word (exit status {completed.exit_status}): "
            + (" / ".join(tail)[:500] or "nothing on stderr"),
        )
    if "error" in answer:
        raise PitstopError.from_json(answer["error"])


def _teller(ctx: RunContext, subject: str, node: str, size: int) -> Callable[[int], None]:
    def tell(passed: int) -> None:
        ctx.attention.renew()
        ctx.progress(f"{subject}: {passed >> 20} of {size >> 20} MiB on their way to {node}")

    return tell


def give_the_launch(ctx: RunContext, subject: str) -> None:
    """Hand a workload over that starts cold on its target; its past here is over with that.

    Doing it again does no harm.

    Raises:
        PitstopError: it was not done, or is not known to be.
    """
    target = target_on(ctx.workload(subject))
    order: dict[str, Any] = {"workload": subject, "checkpoint": None, "run": ctx.run}
    pid_file = ctx.workload(subject).spec.pid_file
    given = ctx.node.call("handover.give", **order, to=target.node, pid_file=pid_file)
    ctx.at(target.node).call("handover.accept", **order, **given, pid_file=pid_file)


def take_back(ctx: RunContext, subject: str) -> None:
    """Make sure that a workload which was to move may start on the run's node again.

    Raises:
        Refused: it runs on the target, or that cannot be told and it may.
    """
    planned = ctx.workload(subject)
    if planned.strategy is not Strategy.MIGRATE:
        return
    target = target_on(planned)
    if not moved_on_record(ctx, subject):
        return  # never handed over, or a person has said that the target is gone
    try:
        _give_back(ctx, subject, ctx.at(target.node))
    except NO_CONTACT as error:
        raise Refused(
            subject,
            f"whether it runs on {target.node} cannot be told: {error.cause}",
            "there must never be two copies",
        ) from error
    ctx.node.call("handover.take-back", workload=subject, run=ctx.run)


def _give_back(ctx: RunContext, subject: str, there: RemoteNode) -> None:
    """See that a target does not run a workload, and that nothing there starts it any more.

    Raises:
        Refused: it runs there.
        PitstopError: it was not done, or is not known to be.
    """
    if there.call("workload", workload=subject)["moved"] is None:
        there.call(
            "handover.give",
            workload=subject,
            checkpoint=None,
            run=ctx.run,
            to=ctx.node.name,
            pid_file=ctx.workload(subject).spec.pid_file,
        )
    there.call("release", workload=subject, run=ctx.run)


def moved_on_record(ctx: RunContext, subject: str) -> bool:
    """Ask the run's node whether it still notes that a workload has moved away."""
    return ctx.node.call("workload", workload=subject)["moved"] is not None


def lost_for_good(ctx: RunContext, subject: str, error: PitstopError) -> None:
    """Tell a target that does not answer from one that a person has given up.

    The word for that is on the run's node: `pitstop-node moved NAME --clear`.

    Raises:
        TargetLost: it was given up.
    """
    if not moved_on_record(ctx, subject):
        raise TargetLost(
            subject, f"{target_on(ctx.workload(subject)).node} was given up: {error.cause}"
        ) from error
