"""What is done with each pod of a node that is to be emptied, and why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pitstop.decide.shape import shape_of
from pitstop.fleet.kubernetes.records import EVICT, WORKLOAD, Pod
from pitstop.model.words import Shape


class Action(StrEnum):
    """What is done with a pod."""

    LEAVE = "leave"
    WAIT = "wait"
    EVICT = "evict"
    CHECKPOINT = "checkpoint"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Consent:
    """What may be lost without asking; see `KubernetesSpec`."""

    empty_dir: bool = False
    shared_memory: bool = False


@dataclass(frozen=True, slots=True)
class PodChoice:
    """A pod, what is done with it, and the reason in words.

    Attributes:
        workloads: of site.yaml, that have to be saved before the pod is evicted.
        shape: of the workload it belongs to; None when its GPUs cannot be counted.
        placement: machine to whole GPUs of that workload.
    """

    pod: Pod
    action: Action
    reason: str
    shape: Shape | None
    placement: Mapping[str, int]
    workloads: tuple[str, ...] = ()


def decide(pod: Pod, others: Iterable[Pod], consent: Consent) -> PodChoice:
    """Choose for one pod.

    Args:
        others: all pods of its namespace; those that are not of its job do not count.
    """
    members = _members(pod, others)
    placement = _placement(members)
    action, reason = _choose(pod, placement, consent)
    return PodChoice(
        pod=pod,
        action=action,
        reason=reason,
        shape=_shape(members, placement),
        placement=placement,
        workloads=pod.workloads if action is Action.CHECKPOINT else (),
    )


def _choose(pod: Pod, placement: Mapping[str, int], consent: Consent) -> tuple[Action, str]:
    if pod.finished:
        return Action.LEAVE, f"it has ended ({pod.phase})"
    if pod.of_the_node:
        return _of_the_node(pod)
    if pod.ending is not None:
        return Action.WAIT, "somebody has deleted or evicted it already; it is ending"
    if pod.consent == "refuse":
        return Action.REFUSE, f"its annotation {EVICT}: refuse forbids it"
    lost = _would_lose(pod, placement, consent)
    if lost and pod.consent != "allow":
        return Action.REFUSE, f"{lost}; the annotation {EVICT}: allow on the pod consents"
    if pod.launcher and len(placement) == 1:
        return _under_the_launcher(pod)
    if lost:
        return Action.EVICT, f"its annotation {EVICT}: allow consents, although {lost}"
    maker = "nobody" if pod.owner is None else f"{pod.owner.kind} {pod.owner.name}"
    return Action.EVICT, f"{maker} makes it again elsewhere{_allowed_loss(pod)}"


def _of_the_node(pod: Pod) -> tuple[Action, str]:
    if pod.mirror or pod.owner is None or pod.owner.kind == "Node":
        if pod.gpus.any:
            return Action.REFUSE, (
                f"it is a static pod that holds {pod.gpus}: the API cannot end it; "
                "take its manifest out of the kubelet's directory"
            )
        return Action.LEAVE, "it is a static pod: the kubelet runs it whatever the API says"
    held = f"; it holds {pod.gpus}, and with that the driver" if pod.gpus.any else ""
    return Action.LEAVE, f"DaemonSet {pod.owner.name} would put it back at once{held}"


def _would_lose(pod: Pod, placement: Mapping[str, int], consent: Consent) -> str:
    """Return what an eviction would lose beyond the pod itself, or an empty text."""
    if len(placement) > 1:
        where = ", ".join(sorted(placement))
        return f"it is part of {pod.job}, which runs on {len(placement)} nodes at once ({where})"
    if pod.owner is None:
        return "no controller makes it again once it is gone"
    lost = [str(volume) for volume in pod.local if not _may_be_lost(volume.shared_memory, consent)]
    return f"the data of {', '.join(lost)} is deleted with it" if lost else ""


def _allowed_loss(pod: Pod) -> str:
    """Say what is lost although nobody has to be asked for it."""
    names = ", ".join(str(volume) for volume in pod.local)
    return f"; the data of {names} is deleted with it, by consent" if names else ""


def _may_be_lost(shared_memory: bool, consent: Consent) -> bool:
    return consent.empty_dir or (shared_memory and consent.shared_memory)


def _under_the_launcher(pod: Pod) -> tuple[Action, str]:
    if not pod.workloads:
        return Action.REFUSE, (
            "it runs pitstop's launcher, but of which workload cannot be read from its command; "
            f"say it with the annotation {WORKLOAD}"
        )
    names = ", ".join(pod.workloads)
    return Action.CHECKPOINT, f"it runs {names} under pitstop's launcher{_allowed_loss(pod)}"


def _members(pod: Pod, others: Iterable[Pod]) -> list[Pod]:
    """Return the pods that are one workload with a pod, itself included.

    Where a label names the job, all its pods are. A common controller alone (a StatefulSet,
    some operator's object) says less: replicas of a database are no job, the ranks of a
    training are. There the pods count that hold GPUs: a wrong "one job" costs a question, a
    wrong "independent" costs somebody's training.
    """
    if not pod.job or not (pod.job_is_named or pod.gpus.any):
        return [pod]
    members = [
        other
        for other in others
        if other.uid != pod.uid
        and other.job == pod.job
        and other.node
        and not other.finished
        and (pod.job_is_named or other.gpus.any)
    ]
    return [pod, *members]


def _placement(members: Iterable[Pod]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for member in members:
        found[member.node] += member.gpus.whole
    return dict(found)


def _shape(members: Iterable[Pod], placement: Mapping[str, int]) -> Shape | None:
    counted = all(not member.gpus.parts and not member.gpus.claims for member in members)
    return shape_of(placement) if counted or len(placement) > 1 else None
