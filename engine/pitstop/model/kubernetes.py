"""A Kubernetes cluster as a site's scheduler, in site.yaml."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pitstop.model.base import Model
from pitstop.model.workload import Seconds


class KubernetesSpec(Model):
    """How the cluster is reached, and what may be evicted without asking anybody.

    Attributes:
        kubeconfig: absolute path on the controller. Credentials are in it, or in files that
            it names; never in site.yaml.
        context: of that file; default its current one.
        in_cluster: use the service account of the pod that pitstop runs in.
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
