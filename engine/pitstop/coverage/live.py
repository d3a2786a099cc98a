"""What runs now: `squeue --json`, and the pods of a Kubernetes cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from pitstop.coverage.frame import COLUMNS, Options, Source, table
from pitstop.fleet.kubernetes.groups import OF_A_NODE, REPLICAS, job_by_labels, job_by_owner
from pitstop.fleet.kubernetes.resources import WHOLE_GPUS, is_gpu
from pitstop.fleet.slurm.records import SlurmJob, read_queue
from pitstop.model.errors import BadInput


def read_squeue(path: Path, now: datetime) -> Source:
    """Read an answer of `squeue --json`; hours are those that the jobs have had so far.

    Raises:
        NotUnderstood: it is none.
    """
    text = path.read_text(encoding="utf-8", errors="backslashreplace")
    jobs, asked = read_queue(str(path), text)
    until = datetime.fromtimestamp(asked, UTC) if asked else now
    groups: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        if job.state.holds_node or not job.nodes:
            # The parts of a heterogeneous job run at once.
            groups.setdefault(job.key.partition("+")[0], []).append(job)
    rows = [_row_of_jobs(key, parts, until) for key, parts in groups.items()]
    return Source("squeue", _frame(rows), (f"jobs count with their time until {until:%c} UTC",))


def read_pods(path: Path, options: Options, now: datetime) -> Source:
    """Read `kubectl get pods --all-namespaces --output json`.

    A pod is no job: those that belong together are one, and its nodes are counted.

    Raises:
        BadInput: it is no list of pods.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        items = found["items"]
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for pod in items:
            if _has_gpu(pod) and not _helper(pod) and not _over(pod):
                groups.setdefault(_group(pod), []).append(pod)
        rows = [_row_of_pods(name, pods, now, options) for name, pods in sorted(groups.items())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"no list of pods: {type(error).__name__}: {error}"
        raise BadInput(str(path), cause, "kubectl get pods --all-namespaces -o json") from error
    return Source(
        "pods",
        _frame(rows),
        (
            "pods of one job (by the labels of its operator, or its owner) are one workload",
            "pods without a GPU, of DaemonSets and of nodes are left out",
            "pods that have ended are left out; what ended before is not known",
            f"workloads count with their time until {now:%c} UTC",
            "a slice of a GPU counts as none in the GPU-hours",
        ),
    )


def _frame(rows: Iterable[Mapping[str, Any]]) -> pl.LazyFrame:
    return table(pl.LazyFrame([dict(row) for row in rows], schema=COLUMNS))


def _row_of_jobs(key: str, parts: list[SlurmJob], until: datetime) -> dict[str, Any]:
    nodes = {node for part in parts for node in part.nodes}
    begun = [part.start for part in parts if part.nodes and part.start is not None]
    since = min(begun, default=None)
    gpus = [part.gpus for part in parts]
    return {
        "line": key,
        "understood": True,
        "started": bool(nodes) and since is not None,
        "job": key,
        "user": parts[0].user.encode(errors="replace").decode(),
        "nodes": len(nodes),
        "gpus": None if None in gpus else sum(count or 0 for count in gpus),
        "seconds": max(0.0, until.timestamp() - since) if since else None,
        "month": _month(since) if since else None,
    }


def _row_of_pods(
    name: str, pods: list[Mapping[str, Any]], now: datetime, options: Options
) -> dict[str, Any]:
    placed = [pod for pod in pods if pod["spec"].get("nodeName")]
    begun = [
        datetime.fromisoformat(str(pod["status"]["startTime"]))
        for pod in placed
        if pod.get("status", {}).get("startTime")
    ]
    gpus = sum(_gpus(pod) for pod in pods)
    nodes = len({pod["spec"]["nodeName"] for pod in placed})
    since = min(begun, default=None)
    return {
        "line": name,
        "understood": True,
        "started": bool(placed) and since is not None,
        "job": name,
        "user": str(pods[0]["metadata"].get("namespace", "")).encode(errors="replace").decode(),
        "nodes": nodes or math.ceil(gpus / options.gpus_per_node),
        "gpus": float(gpus),
        "seconds": max(0.0, (now - since).total_seconds()) if since else None,
        "month": _month(since.timestamp()) if since else None,
    }


def _group(pod: Mapping[str, Any]) -> str:
    metadata = pod["metadata"]
    space, labels = metadata.get("namespace", ""), metadata.get("labels") or {}
    named = job_by_labels(str(space), labels)
    if named:
        return named
    for owner in metadata.get("ownerReferences") or ():
        # Replicas of a StatefulSet do not need each other either; any other owner's pods may.
        if owner.get("controller") and owner["kind"] not in REPLICAS | {"StatefulSet"}:
            return job_by_owner(str(space), owner["kind"], owner["name"])
    return f"{space}/{metadata['name']}"


def _helper(pod: Mapping[str, Any]) -> bool:
    """Whether it belongs to a node and not to anybody's work."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] in OF_A_NODE for owner in owners)


def _over(pod: Mapping[str, Any]) -> bool:
    """Whether it has ended; a pod that was tried again elsewhere is not on both nodes."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _limits(pod: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for container in pod["spec"]["containers"]:
        yield from ((container.get("resources") or {}).get("limits") or {}).items()


def _has_gpu(pod: Mapping[str, Any]) -> bool:
    return any(is_gpu(name) and int(amount) > 0 for name, amount in _limits(pod))


def _gpus(pod: Mapping[str, Any]) -> int:
    return sum(int(amount) for name, amount in _limits(pod) if name in WHOLE_GPUS)


def _month(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m")
