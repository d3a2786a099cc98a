"""The lease that a run has on its node: see `pitstop.node.lease`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import PitstopError
from pitstop.model.plan import Plan


def lease_order(plan: Plan, run: str, controller: str) -> dict[str, Any]:
    """Return what a node is told of a run with every contact, so that it notices silence."""
    policy = plan.policy.lease
    return {
        "run": run,
        "node": plan.node,
        "controller": controller,
        **policy.model_dump(mode="json", by_alias=True),
    }


class Attention:
    """Keeps a run's lease on its node while the run works on another one.

    Args:
        reach: makes a way to the run's node, with the lease.
        seconds: of the lease.
    """

    def __init__(self, reach: Callable[[], RemoteNode], seconds: float) -> None:
        self._reach = reach
        self._pause = seconds / 3
        self._last = time.monotonic()

    def renew(self) -> None:
        """Renew the lease if it is time. Where that fails it lapses, and the node says so."""
        if time.monotonic() - self._last < self._pause:
            return
        self._last = time.monotonic()
        node = self._reach()
        try:
            node.ping()
        except PitstopError:
            return
        finally:
            node.close()


def attention(plan: Plan, order: dict[str, Any]) -> Attention:
    """Return what keeps the lease of a run on the plan's node."""
    return Attention(
        lambda: RemoteNode(plan.node, plan.node_spec, lease=order), plan.policy.lease.seconds
    )
