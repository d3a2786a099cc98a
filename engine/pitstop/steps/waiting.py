"""Waiting without a run being open: what a trigger asks, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pitstop.fleet.node import RemoteNode
from pitstop.fleet.scheduler import JobScheduler
from pitstop.fleet.schedulers import open_slurm
from pitstop.model.errors import PermanentError, TemporaryError
from pitstop.model.plan import Plan
from pitstop.model.slurm import SlurmSpec
from pitstop.steps.leases import attention, lease_order

NODE_PAUSE = 1.0
JOB_PAUSE = 10.0
"""Seconds between questions to a scheduler: it serves a whole cluster."""


class Waiter:
    """Asks a run's node, or its scheduler, whether what is pending is over.

    Args:
        plan: of the run.
        run: its id.
        who: who asks, for the lease.
    """

    def __init__(self, plan: Plan, run: str, who: str) -> None:
        self._plan = plan
        self._others: dict[str, RemoteNode] = {}
        order = lease_order(plan, run, who)
        self.node = RemoteNode(plan.node, plan.node_spec, lease=order)
        self._attention = attention(plan, order)
        self._scheduler: JobScheduler | None = None

    def poll(self, wait: Mapping[str, Any], seconds: float) -> bool:
        """Ask, for up to so many seconds, whether it is over; see `RemoteNode.poll`.

        Raises:
            PitstopError: asking makes no sense.
        """
        if wait["for"] != "job":
            return self._node(str(wait.get("node", ""))).poll(wait, seconds)
        try:
            job = self._opened().job(int(wait["number"]))
        except TemporaryError:
            return False
        return job is None or job.over

    def pause(self, wait: Mapping[str, Any]) -> float:
        """Return the seconds until it is asked again."""
        return JOB_PAUSE if wait["for"] == "job" else NODE_PAUSE

    def close(self) -> None:
        """Give the connections back."""
        self.node.close()
        for other in self._others.values():
            other.close()
        if self._scheduler is not None:
            self._scheduler.close()

    def _node(self, name: str) -> RemoteNode:
        """The node that works: the run's own, or one that a workload moves to."""
        if name in ("", self._plan.node):
            return self.node
        self._attention.renew()
        if name not in self._others:
            self._others[name] = RemoteNode(name, self._plan.node_named(name))
        return self._others[name]

    def _opened(self) -> JobScheduler:
        spec = self._plan.scheduler.spec if self._plan.scheduler else None
        if not isinstance(spec, SlurmSpec):
            raise PermanentError(self._plan.node, "the site declares no scheduler of jobs")
        if self._scheduler is None:
            self._scheduler = open_slurm(spec)
        return self._scheduler
