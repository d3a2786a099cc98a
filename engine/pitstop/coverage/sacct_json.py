"""`sacct --json`, of any version: one record a job, its steps inside of it.

Fields as in Slurm's sources, `slurmdb` jobs of data_parser v0.0.38 to v0.0.42: a state is a word
or a list of them, a number may be wrapped in `{set, infinite, number}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from pitstop.coverage.frame import COLUMNS, Source, table
from pitstop.fleet.slurm.states import job_state
from pitstop.fleet.slurm.values import number
from pitstop.model.errors import BadInput

Job = Mapping[str, Any]


def is_sacct(jobs: Any) -> bool:
    """Tell an answer of sacct from one of squeue: its jobs have their times in an object."""
    return isinstance(jobs, list) and any(
        isinstance(job, dict) and isinstance(job.get("time"), dict) for job in jobs
    )


def read_sacct_json(path: Path) -> Source:
    """Read an answer of `sacct --json`.

    Raises:
        BadInput: it is none. A job in it that is not understood is counted as such.
    """
    try:
        answer = json.loads(path.read_text(encoding="utf-8", errors="backslashreplace"))
    except ValueError as error:
        raise BadInput(str(path), f"is no JSON: {error}") from error
    jobs = answer.get("jobs") if isinstance(answer, dict) else None
    if not isinstance(jobs, list):
        raise BadInput(str(path), "has no list `jobs`", "sacct --json > jobs.json")
    if answer.get("errors"):
        raise BadInput(str(path), f"sacct reports errors: {str(answer['errors'])[:300]}")
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for position, job in enumerate(jobs):
        row = _row(job, position)
        # The parts of a heterogeneous job began at once. One that was requeued is there once
        # for each time that it ran, and those were not at once.
        groups.setdefault((row["job"], row.pop("began")), []).append(row)
    rows = [parts[0] if len(parts) == 1 else _joined(parts) for parts in groups.values()]
    return Source("sacct", table(pl.LazyFrame(rows, schema=COLUMNS)))


def _row(job: Any, position: int) -> dict[str, Any]:
    try:
        return _understood(job)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"jobs[{position}]: {type(error).__name__}: {error}"
        unknown = dict.fromkeys(COLUMNS)
        name = f"jobs[{position}]"
        return {**unknown, "line": said, "job": name, "understood": False, "began": None}


def _understood(job: Job) -> dict[str, Any]:
    start = _count(job["time"]["start"])
    state = job_state(job["state"]["current"])
    elapsed = _count(job["time"]["elapsed"])
    nodes = _count(job["allocation_nodes"])
    started = bool(start) and bool(nodes) and state.base != "PENDING"
    name = _name(job)
    return {
        "line": name,
        "understood": True,
        "started": started,
        "job": name,
        "user": _text(job.get("user")),
        "nodes": nodes,
        "gpus": _gpus(job),
        "seconds": float(elapsed or 0),
        "month": datetime.fromtimestamp(start, UTC).strftime("%Y-%m") if start else None,
        "began": start,
    }


def _name(job: Job) -> str:
    """Name a job, or the whole that a part of a heterogeneous job belongs to."""
    own = int(job["job_id"])
    whole = _optional(job.get("het") or {}, "job_id")
    if whole:
        return str(whole)
    array = job.get("array") or {}
    task, parent = _optional(array, "task_id"), _optional(array, "job_id")
    return f"{parent}_{task}" if parent and task is not None else str(own)


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the parts of a heterogeneous job together: they run at once."""
    first = parts[0]

    def total(name: str) -> Any:
        values = [part[name] for part in parts]
        return None if None in values else sum(values)

    return {
        **first,
        "understood": all(part["understood"] for part in parts),
        "started": any(part["started"] for part in parts),
        "nodes": total("nodes"),
        "gpus": total("gpus"),
        "seconds": max((part["seconds"] or 0.0 for part in parts), default=0.0),
    }


def _gpus(job: Job) -> float | None:
    """Count the GPUs that it got: `gpu` names all of them, `gpu:h100` those of one type."""
    given = job["tres"].get("allocated")
    if not given:
        return None
    every = [_count(t["count"]) for t in given if (t["type"], t["name"]) == ("gres", "gpu")]
    typed = [
        _count(t["count"])
        for t in given
        if t["type"] == "gres" and str(t["name"]).startswith("gpu:")
    ]
    counts = every or typed
    return None if None in counts else float(sum(count or 0 for count in counts))


def _count(value: Any) -> int | None:
    found = number(value)
    return found if isinstance(found, int) else None


def _optional(data: Job, name: str) -> int | None:
    value = data.get(name)
    return None if value is None else _count(value)


def _text(value: Any) -> str:
    return str(value or "").encode(errors="replace").decode()
