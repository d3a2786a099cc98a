"""The lease that a run has on its node: see `pitstop.node.lease`."""

from __future__ import annotations

from typing import Any

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
