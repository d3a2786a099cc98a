"""Which pods are one job. Pure; also for lists of pods that somebody has saved."""

from __future__ import annotations

from collections.abc import Mapping

# Labels by which pods on several nodes are one job, with the value that tells jobs apart.
# Kubeflow training operators, JobSet, LeaderWorkerSet (one group is one replica), KubeRay,
# Volcano, MPI operator: from their documentation.
_JOB_LABELS = (
    ("jobset.sigs.k8s.io/jobset-name",),
    ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"),
    ("training.kubeflow.org/job-name",),
    ("ray.io/cluster",),
    ("volcano.sh/job-name",),
    ("batch.kubernetes.io/job-name",),
    ("job-name",),
)

REPLICAS = frozenset({"ReplicaSet", "ReplicationController"})
"""Controllers whose pods do not need each other."""

OF_A_NODE = frozenset({"DaemonSet", "Node"})
"""Owners of pods that belong to a node and are nobody's work."""


def job_by_labels(namespace: str, labels: Mapping[str, str]) -> str:
    """Return the job that a pod's labels name, with its namespace; empty without one."""
    for names in _JOB_LABELS:
        if all(name in labels for name in names):
            return "/".join((namespace, *(str(labels[name]) for name in names)))
    return ""


def job_by_owner(namespace: str, kind: str, name: str) -> str:
    """Return what to call the job of a controller that no label names."""
    return f"{namespace}/{kind}/{name}"
