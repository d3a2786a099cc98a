"""Emptying a node: which pods, in what way, and the evictions themselves. What a step calls.

The order for a step: `Kubernetes.drain` (cordon), `plan_pods`, save what is to be saved first,
`evict`, and `Kubernetes.look(...).drained` right before the first disruptive step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pitstop.fleet.kubernetes.api import Api
from pitstop.fleet.kubernetes.choice import Action, Consent, PodChoice, decide
from pitstop.fleet.kubernetes.errors import (
    BudgetBlocks,
    Conflict,
    CordonGone,
    NoDryRun,
    NotThere,
    refused_pods,
)
from pitstop.fleet.kubernetes.holding import NAMED, summary
from pitstop.fleet.kubernetes.records import KubeNode, Pod
from pitstop.fleet.kubernetes.scheduler import claim, reason
from pitstop.fleet.scheduler import MARK, Claim
from pitstop.model.errors import DeadlineExceeded, PitstopError, Refused, TemporaryError
from pitstop.model.kubernetes import KubernetesSpec

POLL = 2.0
"""Seconds between two looks at pods that are ending."""

RETRY = 5.0
"""Seconds until a refused eviction is tried again when the server does not say."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Evacuated:
    """How an evacuation went.

    Attributes:
        gone: pods that were on the node and are not any more.
        gone_before: pods of the plan that were gone, or had ended, before it began.
        seconds: how long it took.
        refusals: by pod, the last words of the API while its eviction was refused for a time.
    """

    gone: tuple[str, ...]
    gone_before: tuple[str, ...]
    seconds: float
    refusals: dict[str, str]


@dataclass(slots=True)
class _Pending:
    """The pods of an evacuation, and what the API said of them. All by uid.

    Attributes:
        errors: why an eviction was not allowed, or not known to be, when last asked.
        not_before: when to ask again, on the monotonic clock.
        untried: words of the API about those that it cannot try dry.
    """

    pods: dict[str, Pod]
    errors: dict[str, TemporaryError] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)
    untried: dict[str, str] = field(default_factory=dict)

    @property
    def refusals(self) -> dict[str, str]:
        """What the API last said of those that it refused."""
        return {uid: _words(self.pods.get(uid), error) for uid, error in self.errors.items()}


class Evacuation:
    """Plans and carries out the evictions from nodes of one cluster.

    Args:
        poll: seconds between two looks at pods that are ending.
        retry: seconds until a refused eviction is tried again when the server does not say.
    """

    def __init__(
        self, api: Api, spec: KubernetesSpec, poll: float = POLL, retry: float = RETRY
    ) -> None:
        self._api = api
        self._spec = spec
        self._consent = Consent(spec.allow_empty_dir, spec.allow_shared_memory)
        self._poll = poll
        self._retry = retry

    def plan_pods(self, node: str) -> tuple[PodChoice, ...]:
        """Choose for every pod of a node, as it is now; nothing is touched.

        Raises:
            PitstopError: it cannot be told.
        """
        pods = self._api.pods_on(node)
        spaces = {pod.namespace for pod in pods if pod.job and pod.holds_node}
        others = {space: self._api.pods_in(space) for space in sorted(spaces)}
        return tuple(decide(pod, others.get(pod.namespace, ()), self._consent) for pod in pods)

    def rehearse(self, choices: Iterable[PodChoice]) -> dict[str, str]:
        """Ask the API of each pod that is to be evicted whether it would be allowed now.

        Returns:
            The pods that a budget, or the API's own state, holds back, each with its words.
            Empty: all would go.

        Raises:
            NoDryRun: the cluster cannot try evictions dry, so that it cannot be told.
            PitstopError: the API refuses one for good, or it cannot be told.
        """
        pending = _Pending(_to_evict(choices))
        self._ask_all(pending, dry_run=True)
        if pending.untried:
            raise NoDryRun("evictions", _list(pending, pending.untried))
        for error in pending.errors.values():
            if not isinstance(error, BudgetBlocks):
                raise error
        return {pending.pods[uid].key: words for uid, words in pending.refusals.items()}

    def evict(
        self,
        node: str,
        run: str,
        choices: Sequence[PodChoice],
        deadline: float | None = None,
        progress: Progress = lambda _text: None,
        saved: Collection[str] = (),
    ) -> Evacuated:
        """Evict pods of a node that was cordoned, and wait until they are really gone.

        Choices are made anew first, and all evictions are tried dry: only when none is refused
        is the first pod touched. Nothing is ever deleted past a budget. Doing it again goes on
        where it stopped.

        Args:
            choices: of `plan_pods`. Pods that are to be left stay; others are not looked at.
            deadline: seconds for all of it; default the site's.
            saved: workloads that a verified checkpoint exists of.

        Raises:
            Refused: a pod may not be evicted, or a workload is not saved, or the node is not
                cordoned, or another run's. Nothing was touched.
            DeadlineExceeded: pods are still there. It names each with what holds it; its
                evidence has `gone` and `left`.
            CordonGone: somebody let new pods in meanwhile, or another run took the node.
            PitstopError: the API refuses for good.
        """
        begun = time.monotonic()
        end = begun + (self._spec.eviction_deadline if deadline is None else deadline)
        pending, before = self._confirm(node, run, choices, saved)
        wanted = dict(pending.pods)
        self._wait_allowed(node, pending, end, progress)
        self._carry_out(node, run, pending, end, progress)
        return Evacuated(
            gone=tuple(pod.key for pod in wanted.values()),
            gone_before=before,
            seconds=time.monotonic() - begun,
            refusals={
                wanted[uid].key: words for uid, words in pending.refusals.items() if uid in wanted
            },
        )

    def _confirm(
        self, node: str, run: str, choices: Sequence[PodChoice], saved: Collection[str]
    ) -> tuple[_Pending, tuple[str, ...]]:
        """Make the choices anew; return what is to go, and the pods that are gone already."""
        why_not = _why_not(self._api.node(node), run)
        if why_not:
            raise Refused(node, f"no pod was touched: {why_not}")
        now = {choice.pod.uid: choice for choice in self.plan_pods(node)}
        wanted: dict[str, Pod] = {}
        before: list[str] = []
        against: list[str] = []
        for planned in choices:
            fresh = now.get(planned.pod.uid)
            if planned.action is Action.LEAVE:
                continue
            if fresh is None or fresh.action is Action.LEAVE:
                before.append(planned.pod.key)
                continue
            missing = [name for name in fresh.workloads if name not in saved]
            if fresh.action is Action.REFUSE:
                against.append(f"{fresh.pod.key}: {fresh.reason}")
            elif missing:
                against.append(f"{fresh.pod.key}: {', '.join(missing)} is not saved yet")
            else:
                wanted[fresh.pod.uid] = fresh.pod
        if against:
            raise refused_pods(node, against)
        return _Pending(wanted), tuple(before)

    def _wait_allowed(self, node: str, pending: _Pending, end: float, progress: Progress) -> None:
        """Wait until every eviction would be allowed, before the first is made.

        Raises:
            DeadlineExceeded: one is not; nothing was touched.
        """
        rehearsal = _Pending({u: pod for u, pod in pending.pods.items() if pod.ending is None})
        while True:
            rehearsal.errors.clear()
            self._ask_all(rehearsal, dry_run=True)
            if rehearsal.untried:
                progress(f"{node}: cannot be tried dry: {_list(rehearsal, rehearsal.untried)}")
                rehearsal.pods = {
                    uid: pod for uid, pod in rehearsal.pods.items() if uid not in rehearsal.untried
                }
                rehearsal.untried.clear()
            if not rehearsal.errors:
                return
            words = _list(rehearsal, rehearsal.refusals)
            pending.errors.update(rehearsal.errors)
            progress(f"{node}: waits for evictions to be allowed: {words}")
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(
                    node,
                    f"evictions were not allowed in time, no pod was touched: {words}",
                    "add a replica elsewhere, change the budget, or ask its owner",
                )
            pause = max(rehearsal.not_before[uid] for uid in rehearsal.errors) - time.monotonic()
            # A budget gives no event that could be waited for without watching its pods.
            time.sleep(min(max(pause, self._poll), left))

    def _carry_out(
        self, node: str, run: str, pending: _Pending, end: float, progress: Progress
    ) -> None:
        """Evict, and look until all are gone. What is true is read anew each time."""
        wanted = dict(pending.pods)
        told = ""
        while True:
            try:
                seen = self._api.node(node)
                self._still_there(node, pending)
                if not pending.pods:
                    return
                why_not = _why_not(seen, run)
                if why_not:
                    raise _unfinished(CordonGone, node, wanted, pending, why_not)
                self._ask_due(pending)
                pods = list(pending.pods.values())
                words = summary(pods, seen, time.time(), pending.refusals)
            except TemporaryError as error:
                # The API is away: what was asked of it goes on, and nothing is known.
                words = f"{len(pending.pods)} that are not known to be gone: {error}"
            if words != told:
                progress(f"{node}: waits for {words}")
                told = words
            if time.monotonic() >= end:
                raise _unfinished(DeadlineExceeded, node, wanted, pending, words)
            time.sleep(max(0.0, min(self._poll, end - time.monotonic())))

    def _still_there(self, node: str, pending: _Pending) -> None:
        """Read what is left. A pod of the same name with another uid is another pod."""
        there = {pod.uid: pod for pod in self._api.pods_on(node) if pod.holds_node}
        pending.pods = {uid: there[uid] for uid in pending.pods if uid in there}

    def _ask_due(self, pending: _Pending) -> None:
        now = time.monotonic()
        due = _Pending(
            {
                uid: pod
                for uid, pod in pending.pods.items()
                if pod.ending is None and pending.not_before.get(uid, now) <= now
            }
        )
        self._ask_all(due, dry_run=False)
        pending.errors.update(due.errors)
        pending.not_before.update(due.not_before)

    def _ask_all(self, pending: _Pending, dry_run: bool) -> None:
        """Ask for each eviction once, and note what holds it back for now."""
        for uid, pod in pending.pods.items():
            try:
                self._api.evict(pod, self._spec.grace_period, dry_run)
            except (NotThere, Conflict):
                # Gone, and perhaps another of that name is there: the next look will tell.
                continue
            except NoDryRun as error:
                pending.untried[uid] = error.cause
            except TemporaryError as error:
                asked = getattr(error, "retry_after", None)
                pause = self._retry if asked is None else asked
                pending.not_before[uid] = time.monotonic() + pause
                pending.errors[uid] = error


def _words(pod: Pod | None, error: TemporaryError) -> str:
    """Say why an eviction was refused; the pod is named where this is used."""
    if not isinstance(error, BudgetBlocks):
        return str(error)
    if pod is not None and pod.ready is False:
        # A pod that serves nobody can block for ever (KEP-3017).
        way = "unhealthyPodEvictionPolicy: AlwaysAllow in the budget would let it go"
        return f"{error.cause.rstrip('.')}; it is not ready itself: {way}"
    return error.cause


def _unfinished(
    kind: type[PitstopError], node: str, wanted: Mapping[str, Pod], pending: _Pending, words: str
) -> PitstopError:
    """Return an error that says how far it went: some pods are gone, others are not."""
    gone = [pod.key for uid, pod in wanted.items() if uid not in pending.pods]
    left = [pod.key for pod in pending.pods.values()]
    still = "" if kind is DeadlineExceeded else f"; still there: {', '.join(left[:NAMED])}"
    error = kind(node, f"{len(gone)} of {len(wanted)} pods are gone; {words}{still}")
    error.evidence = {"gone": gone, "left": left}
    return error


def _to_evict(choices: Iterable[PodChoice]) -> dict[str, Pod]:
    actions = (Action.EVICT, Action.CHECKPOINT)
    return {choice.pod.uid: choice.pod for choice in choices if choice.action in actions}


def _list(pending: _Pending, words: Mapping[str, str]) -> str:
    """Name pods with what is said of each."""
    said = [f"{pending.pods[uid].key}: {text}" for uid, text in words.items()]
    more = f"; and {len(said) - NAMED} more" if len(said) > NAMED else ""
    return "; ".join(said[:NAMED]) + more


def _why_not(node: KubeNode, run: str) -> str:
    """Say why a node must not be emptied now; empty if it may be.

    One that somebody else has cordoned may be: the plan has asked whether to work on it.
    """
    found = claim(node, run)
    if found is Claim.NOBODY:
        return "it is not cordoned: new pods would come while others go"
    if found is Claim.FOREIGN and reason(node).startswith(MARK):
        return f"it is drained by another run: {reason(node)}"
    return ""
