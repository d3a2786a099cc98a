"""The one table that every source becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

COLUMNS = {
    "line": pl.String,  # the record as it was, for what is not understood
    "understood": pl.Boolean,
    "started": pl.Boolean,
    "job": pl.String,
    "user": pl.String,
    "nodes": pl.Int64,  # machines at the same time
    "gpus": pl.Float64,  # of the whole job; null where the source does not say
    "seconds": pl.Float64,
    "month": pl.String,  # it began in; null where the source does not say
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a source may not say.

    Attributes:
        gpus_per_node: to tell nodes from GPUs.
        processors_per_node: to tell nodes from processors; None takes it from the trace.
        columns: names of a table's columns, by what they mean.
    """

    gpus_per_node: int = 8
    processors_per_node: int | None = None
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """A queue as a table, and what was assumed to make it one."""

    kind: str
    frame: pl.LazyFrame
    assumptions: tuple[str, ...] = ()


def lines(path: Path) -> pl.LazyFrame:
    """Read a text file as one column `line`, without its empty lines, in a stream."""
    return (
        pl.scan_csv(
            path,
            glob=False,
            has_header=False,
            # No text file holds it, so a line is one field.
            separator="\x1f",
            quote_char=None,
            schema={"line": pl.String},
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
        )
        .with_columns(pl.col("line").str.strip_chars_end("\r"))
        .filter(pl.col("line").str.len_bytes() > 0)
    )


def table(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Bring a frame into the form of `COLUMNS`.

    What ran is only understood with nodes and a finite time: one `nan` would spoil every sum.
    What never began may have anything for its size: it is not looked at.
    """
    cast = frame.select([pl.col(name).cast(kind, strict=False) for name, kind in COLUMNS.items()])
    sizes = (
        (pl.col("nodes") > 0)
        & pl.col("seconds").is_finite()
        & (pl.col("seconds") >= 0)
        & (pl.col("gpus").is_null() | pl.col("gpus").is_finite())
    )
    return cast.with_columns(
        pl.col("understood", "started").fill_null(value=False),
        pl.col("line", "job", "user").fill_null(""),
    ).with_columns(pl.col("understood") & (~pl.col("started") | sizes.fill_null(value=False)))
