"""Add a queue up: what fits on one node, by jobs, hours and users, side by side."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl

from pitstop.coverage.frame import Source
from pitstop.model.coverage import Coverage, Period, QueuedJob, Reason, Share

TOP = 10
EXAMPLES = 5
EXAMPLE_LENGTH = 160

Measure = Literal["jobs", "node_hours", "gpu_hours", "users"]


def add_up(source: Source, name: str, top: int = TOP) -> Coverage:
    """Return the shares of a source. One pass over it for each part of the answer."""
    every = source.frame
    counted = every.filter(pl.col("understood") & pl.col("started")).with_columns(
        (pl.col("nodes") == 1).alias("covered"),
        (pl.col("seconds") / 3600).alias("hours"),
        (pl.col("seconds") / 3600 * pl.col("nodes")).alias("node_hours"),
        (pl.col("seconds") / 3600 * pl.col("gpus")).alias("gpu_hours"),
    )
    kinds, totals, users, months, widths, strange, gain, missed = pl.collect_all(
        [
            every.group_by("understood", "started").len(),
            counted.group_by("covered").agg(
                pl.len().alias("jobs"), pl.col("node_hours").sum(), pl.col("gpu_hours").sum()
            ),
            counted.group_by("user").agg(pl.col("covered").all()),
            counted.filter(pl.col("month").is_not_null())
            .group_by("month")
            .agg(
                pl.len().alias("jobs"),
                pl.col("covered").mean().alias("jobs_share"),
                pl.col("node_hours").sum(),
                pl.col("node_hours").filter(pl.col("covered")).sum().alias("covered_hours"),
            )
            .sort("month"),
            counted.filter(~pl.col("covered"))
            .group_by("nodes")
            .agg(pl.len().alias("jobs"), pl.col("node_hours").sum()),
            every.filter(~pl.col("understood")).select("line").head(EXAMPLES),
            _most(counted.filter(pl.col("covered")), top),
            _most(counted.filter(~pl.col("covered")), top),
        ],
        engine="streaming",
    )
    return Coverage(
        source=name,
        kind=source.kind,
        assumptions=source.assumptions,
        not_started=_count(kinds, understood=True, started=False),
        not_understood=_count(kinds, understood=False),
        examples=tuple(str(line)[:EXAMPLE_LENGTH] for line in strange["line"]),
        shares=_shares(totals, users),
        over_time=tuple(_period(row) for row in months.iter_rows(named=True)),
        reasons=_reasons(widths),
        gain=_jobs(gain),
        not_covered=_jobs(missed),
    )


def _most(frame: pl.LazyFrame, top: int) -> pl.LazyFrame:
    wanted = frame.select("job", "user", "nodes", "gpus", "hours", "node_hours")
    return wanted.top_k(top, by=["node_hours", "job"])


def _count(kinds: pl.DataFrame, **wanted: bool) -> int:
    for name, value in wanted.items():
        kinds = kinds.filter(pl.col(name) == value)
    return int(kinds["len"].sum())


def _shares(totals: pl.DataFrame, users: pl.DataFrame) -> tuple[Share, ...]:
    result = [_share("jobs", totals, "jobs"), _share("node_hours", totals, "node_hours")]
    if totals["gpu_hours"].sum():
        result.append(_share("gpu_hours", totals, "gpu_hours"))
    if (users["user"] != "").any():
        result.append(_share("users", users.group_by("covered").len(), "len"))
    return tuple(result)


def _share(measure: Measure, sums: pl.DataFrame, column: str) -> Share:
    total = float(sums[column].sum())
    covered = float(sums.filter(pl.col("covered"))[column].sum())
    return Share(
        measure=measure,
        covered=covered,
        total=total,
        share=min(1.0, covered / total) if total else None,
    )


def _period(row: dict[str, Any]) -> Period:
    hours = row["node_hours"]
    return Period(
        month=row["month"],
        jobs=row["jobs"],
        jobs_share=row["jobs_share"],
        node_hours=hours,
        node_hours_share=min(1.0, row["covered_hours"] / hours) if hours else None,
    )


def _reasons(widths: pl.DataFrame) -> tuple[Reason, ...]:
    """Group widths by powers of two: a table of every width there ever was is no answer."""
    sums: dict[int, list[float]] = {}
    for row in widths.iter_rows(named=True):
        found = sums.setdefault((int(row["nodes"]) - 1).bit_length(), [0, 0.0])
        found[0] += row["jobs"]
        found[1] += row["node_hours"]
    return tuple(
        Reason(reason=_width(power), jobs=int(jobs), node_hours=hours)
        for power, (jobs, hours) in sorted(sums.items())
    )


def _width(power: int) -> str:
    low, high = 2 ** (power - 1) + 1, 2**power
    several = f"{high}" if low == high else f"{low} to {high}"
    return f"it is on {several} machines at the same time"


def _jobs(frame: pl.DataFrame) -> tuple[QueuedJob, ...]:
    return tuple(QueuedJob.model_validate(row) for row in frame.iter_rows(named=True))
