"""`sacct --parsable2`: one line a job, columns as the header names them."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pitstop.coverage.frame import Source, lines, table
from pitstop.model.errors import BadInput

NEEDED = ("JobID", "State", "NNodes", "Elapsed", "Start")

_OWNERS = ("JobName", "Comment", "SubmitLine", "WorkDir")
"""Fields that a job's owner writes: a separator in them shifts what comes after."""

_NEVER = ("", "None", "Unknown", "N/A")


def read_sacct(path: Path, header: str) -> Source:
    """Read a dump; `header` is its first line.

    Raises:
        BadInput: a column that is needed is not there.
    """
    names = header.removesuffix("|").split("|")
    for name in NEEDED:
        if name not in names:
            raise BadInput(
                f"{path}:1",
                f"has no column {name}",
                f"sacct --parsable2 --format={','.join(NEEDED)},User,AllocTRES,JobName",
            )
    trailing = int(header.endswith("|"))
    found = pl.col("line").str.count_matches("|", literal=True) + 1 - trailing
    whole = found == len(names)
    if names[-1] in _OWNERS and not trailing:
        whole = found >= len(names)  # what follows belongs to the owner's text
    split = pl.col("line").str.splitn("|", len(names)).struct.rename_fields(names)
    frame = (
        lines(path)
        .filter(pl.col("line") != header)
        .with_columns(whole.alias("whole"), split.alias("fields"))
        .unnest("fields")
        # A step is part of its job, and no job.
        .filter(~(pl.col("whole") & pl.col("JobID").str.contains(".", literal=True)))
        .with_columns(
            pl.col("NNodes").cast(pl.Int64, strict=False).alias("nodes"),
            _seconds("Elapsed").alias("seconds"),
        )
    )
    start = pl.col("Start")
    never = start.is_in(_NEVER) | pl.col("State").str.starts_with("PENDING")
    nothing = pl.lit(None, pl.Float64)
    return Source(
        "sacct",
        _with_whole_jobs(
            frame.with_columns(
                pl.col("JobID").alias("job"),
                (pl.col("User") if "User" in names else pl.lit("")).alias("user"),
                (_gpus("AllocTRES") if "AllocTRES" in names else nothing).alias("gpus"),
                start.str.extract(r"^(\d{4}-\d{2})-").alias("month"),
                (~never).alias("started"),
                pl.col("whole").alias("understood"),
            )
        ),
    )


def _with_whole_jobs(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Put the parts of a heterogeneous job, `77+0` and `77+1`, together: they run at once."""
    rows = table(frame)
    part = pl.col("job").str.contains(r"^\d+\+\d+$") & pl.col("understood")
    whole = (
        rows.filter(part)
        .with_columns(pl.col("job").str.extract(r"^(\d+)\+"))
        .group_by("job")
        .agg(
            pl.col("line", "user", "month").first(),
            pl.col("understood").all(),
            pl.col("started").any(),
            pl.col("nodes").sum(),
            pl.col("gpus").sum(),
            pl.col("seconds").max(),
        )
        .select(rows.collect_schema().names())
    )
    return pl.concat([rows.filter(~part), whole])


def _seconds(name: str) -> pl.Expr:
    """Read `[days-]hours:minutes:seconds`."""
    parts = pl.col(name).str.extract_groups(r"^(?:(\d+)-)?(\d+):(\d{2}):(\d{2})(?:\.\d+)?$")
    day, hour, minute, second = (
        parts.struct.field(str(number)).cast(pl.Int64) for number in (1, 2, 3, 4)
    )
    return ((day.fill_null(0) * 24 + hour) * 60 + minute) * 60 + second


def _gpus(name: str) -> pl.Expr:
    """Count GPUs; `gres/gpu=4,gres/gpu:h100=4` names the same four twice."""
    every = pl.col(name).str.extract(r"(?:^|,)gres/gpu=(\d+)").cast(pl.Float64)
    typed = (
        pl.col(name)
        .str.extract_all(r"gres/gpu:[^=,]+=\d+")
        .list.eval(pl.element().str.extract(r"=(\d+)$").cast(pl.Float64))
        .list.sum()
        + 0.0  # the sum of none is -0.0
    )
    return every.fill_null(typed)
