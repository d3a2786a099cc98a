"""A Slurm cluster as a site declares it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pitstop.model.base import Model, Name
from pitstop.model.jobs import JobPolicy, JobRule
from pitstop.model.ssh import Ssh
from pitstop.model.workload import Seconds


class SlurmSpec(Model):
    """How a cluster is asked, and what may be done with its jobs.

    Attributes:
        ssh: the machine that has Slurm's commands; absent for the one pitstop runs on.
        conf: its slurm.conf, if it is not where Slurm looks.
        path: directory of its commands, if they are in none of the usual ones.
        names: what Slurm calls a node, where that is not what this site calls it.
        drain_deadline: seconds until nothing may be left on a node whose jobs were dealt with.
        start_deadline: seconds that a released job is watched until it runs again. After
            that it counts as requeued: it waits in the queue, and comes back by itself.
        shared_state: whether `workloads` and `images` of the nodes' state directories lie on
            storage that all of them see. Without it a saved job can only start again on the
            node that holds its checkpoint.
        reboot: who reboots nodes: the node's own command, or Slurm, which then takes no such
            node for one that fell over. Slurm is not asked for a node that somebody else has
            drained, as it writes to their reason.
        jobs: policies; the first that matches counts.
        others: the policy of all other jobs.
    """

    kind: Literal["slurm"]
    ssh: Ssh | None = None
    conf: Annotated[str, Field(pattern=r"^(/[^\x00]*)?$", max_length=4000)] = ""
    path: Annotated[str, Field(pattern=r"^(/[^\x00:]*)?$", max_length=4000)] = ""
    names: dict[Name, Name] = Field(default_factory=dict)
    drain_deadline: Seconds = 600
    start_deadline: Seconds = 300
    shared_state: bool = False
    reboot: Literal["node", "slurm"] = "node"
    jobs: tuple[JobRule, ...] = ()
    others: JobPolicy = Field(default_factory=JobPolicy)

    def policy(self, name: str, user: str) -> JobPolicy:
        """Return the policy of a job."""
        for rule in self.jobs:
            if rule.matches(name, user):
                known = rule.model_dump(exclude={"match_name", "match_user"})
                return JobPolicy.model_validate(known)
        return self.others

    def name_of(self, node: str) -> str:
        """Return what Slurm calls a node of the site."""
        return self.names.get(node, node)
