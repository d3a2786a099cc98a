"""What a person sees of a run in Prefect: plan, verdicts, timings, and where the report is.

The journal is the record. A server that is away for a moment must not make a failure of a
maintenance that goes well, so what cannot be shown is only logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.report.change_record import render_plan_markdown
from pitstop.steps.context import RunContext
from pitstop.steps.runs import write_report

log = logging.getLogger(__name__)


def artifact_key(run_id: str, part: str) -> str:
    """Return a key of the characters that Prefect allows, one series per run and part."""
    return re.sub(r"[^a-z0-9]+", "-", f"pitstop-{run_id}-{part}".lower()).strip("-")


def show_plan(run_id: str, plan: Plan) -> None:
    """Show the plan."""
    with _if_possible("plan"):
        create_markdown_artifact(
            render_plan_markdown(plan),
            key=artifact_key(run_id, "plan"),
            description=plan.title,
        )


def show_result(ctx: RunContext, result: RunResult) -> None:
    """Show verdicts and timings, and write and link the report."""
    path = write_report(ctx)
    with _if_possible("result"):
        create_table_artifact(
            verdict_rows(result),
            key=artifact_key(ctx.run, "verdicts"),
            description="What the gate said of each workload",
        )
        create_table_artifact(
            timing_rows(result),
            key=artifact_key(ctx.run, "timings"),
            description="Restore beside cold start, both to ready to serve",
        )
        create_link_artifact(path.as_uri(), link_text="Report", key=artifact_key(ctx.run, "report"))


def verdict_rows(result: RunResult) -> list[dict[str, Any]]:
    """Return one row per differing field, or one that says that nothing differs."""
    rows = []
    for workload in result.workloads:
        differences = (workload.verdict or {}).get("differences", [])
        for difference in differences:
            rows.append({"workload": workload.name, **difference})
        if not differences:
            said = "not asked" if workload.verdict is None else "nothing differs"
            rows.append({"workload": workload.name, "field": "-", "reason": said})
    return rows


def timing_rows(result: RunResult) -> list[dict[str, Any]]:
    """Return one row per workload."""
    return [
        {
            "workload": w.name,
            "outcome": w.outcome.value if w.outcome else "waits",
            "restore to ready (s)": w.restore_seconds,
            "cold start to ready (s)": w.cold_start_seconds or w.earlier_cold_start_seconds,
            "frozen (s)": w.frozen_seconds,
            "image (bytes)": w.image_bytes,
            "cause": w.cause,
        }
        for w in result.workloads
    ]


@contextmanager
def _if_possible(what: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        log.warning("the %s could not be shown in Prefect: %s", what, error)
