"""Parts of a plan as the plain data that a node is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitstop.decide.shape import shape_of
from pitstop.model.base import Model
from pitstop.model.jobs import JobPolicy
from pitstop.model.plain import digest_of
from pitstop.model.plan import Plan
from pitstop.model.workload import Workload


def plain(model: Model) -> dict[str, Any]:
    """Return a model as JSON data."""
    return model.model_dump(mode="json", by_alias=True)


def probes_of(spec: Workload | JobPolicy) -> dict[str, Any]:
    """Return where engine and model version of a workload or a scheduler's job are read."""
    return {
        name: plain(probe)
        for name, probe in (("engine", spec.engine), ("model", spec.model))
        if probe is not None
    }


def inspect_arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments to inspect all workloads of a plan with."""
    return {w.name: inspect_argument(w.spec) for w in plan.workloads}


def inspect_argument(spec: Workload | JobPolicy) -> dict[str, Any]:
    """Return the arguments to inspect one workload with; a job's is under the launcher."""
    pid_file = spec.pid_file if isinstance(spec, Workload) else None
    signer = isinstance(spec, Workload) and bool(spec.spares)
    return {"probes": probes_of(spec), "pid_file": pid_file, "signer": signer}


def checkpoint_arguments(
    name: str, spec: Workload, run: str, checkpoint: str, node: str, tolerate: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments of a checkpoint operation."""
    return {
        "workload": name,
        "checkpoint": checkpoint,
        "run": run,
        "node": node,
        "shape": shape_of(spec.placement).value,
        "connections": spec.policy.connections.value,
        "probes": probes_of(spec),
        "tolerate": list(tolerate),
        "proof": plain(spec.proof) if spec.proof else None,
        "pid_file": spec.pid_file,
        "launch_digest": digest_of(plain(spec.launch)),
        "gpu_limits": plain(spec.policy.gpu_limits),
    }


def bring_up_arguments(
    name: str, spec: Workload, run: str, checkpoint: str | None
) -> dict[str, Any]:
    """Return the arguments of a restore or, without a checkpoint, a cold start."""
    return {
        "workload": name,
        "run": run,
        "launch": plain(spec.launch),
        "ready": plain(spec.ready),
        "proof": plain(spec.proof) if spec.proof else None,
        "pid_file": spec.pid_file,
        "checkpoint": checkpoint,
    }
