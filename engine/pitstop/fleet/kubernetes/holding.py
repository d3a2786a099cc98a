"""What keeps a pod from being gone, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pitstop.fleet.kubernetes.records import KubeNode, Pod

SLACK = 30
"""Seconds past its grace after which a pod counts as stuck: the kubelet needs some."""

NAMED = 10
"""Pods that a message names one by one."""


def held_by(pod: Pod, node: KubeNode, now: float, refusal: str = "") -> str:
    """Say why a pod is still there.

    Args:
        now: seconds since 1970.
        refusal: what the API last said to its eviction; empty if nothing.
    """
    if pod.ending is None:
        return refusal or "its eviction was not tried yet"
    # A moment and no count of seconds: the words stay the same while nothing happens.
    until = datetime.fromtimestamp(pod.ending, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now <= pod.ending + SLACK:
        return f"it is ending, and has until {until}"
    stuck = f"stuck in Terminating, its time was over at {until}"
    if pod.finalizers:
        return f"{stuck}: held by finalizers {', '.join(pod.finalizers)}"
    if node.ready is None:
        return f"{stuck}: the kubelet of {node.name} does not report, so nobody has seen it end"
    return f"{stuck}: its containers have not ended"


def summary(pods: Sequence[Pod], node: KubeNode, now: float, refusals: Mapping[str, str]) -> str:
    """Say of all pods why they are still there; `refusals` is by uid."""
    words = [f"{pod.key}: {held_by(pod, node, now, refusals.get(pod.uid, ''))}" for pod in pods]
    more = f"; and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return "; ".join(words[:NAMED]) + more
