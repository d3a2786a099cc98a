"""A Kubernetes cluster as a site's scheduler, in site.yaml."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pitstop.model.base import Model, Name
from pitstop.model.workload import Seconds


class KubernetesSpec(Model):
    """How the cluster is reached, and what may be evicted without asking anybody.

    Attributes:
        kubeconfig: absolute path on the controller. Credentials are in it, or in files that
            it names; never in site.yaml.
        context: of that file; default its current one.
        in_cluster: use the service account of the pod that pitstop runs in.
        names: what the cluster calls a node, where that is not what this site calls it.
        shared_state: whether the nodes' `workloads` and `images` lie on storage that all of
            them see. Without it a saved pod must be pinned to its node.
        start_deadline: seconds that an evicted pod's workload is watched until it runs again.
        eviction_deadline: seconds for all pods of a node to be gone.
        grace_period: seconds that a pod has to end, instead of those that it asks for itself.
        allow_empty_dir: evict pods although the data of their emptyDir and generic ephemeral
            volumes is deleted with them.
        allow_shared_memory: the same for emptyDir volumes in memory alone that are mounted
            nowhere but at /dev/shm.
    """

    kind: Literal["kubernetes"]
    kubeconfig: Annotated[str, Field(pattern=r"^/")] | None = None
    context: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    in_cluster: bool = False
    names: dict[Name, Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default_factory=dict
    )
    shared_state: bool = False
    start_deadline: Seconds = 300
    eviction_deadline: Seconds = 1800
    # 0 would mean "delete now, and do not wait for its processes to end".
    grace_period: Annotated[int, Field(ge=1, le=7 * 86400)] | None = None
    allow_empty_dir: bool = False
    allow_shared_memory: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.kubeconfig is not None) == self.in_cluster:
            raise ValueError("give exactly one of kubeconfig and in_cluster")
        if self.context is not None and self.kubeconfig is None:
            raise ValueError("context is one of a kubeconfig")
        return self

    @property
    def drain_deadline(self) -> float:
        """Seconds until nothing may be left on a node whose pods were dealt with."""
        return self.eviction_deadline

    def name_of(self, node: str) -> str:
        """Return what the cluster calls a node of the site."""
        return self.names.get(node, node)
