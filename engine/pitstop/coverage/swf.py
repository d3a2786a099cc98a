"""Standard Workload Format: 18 numbers a job (Feitelson, Parallel Workloads Archive)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import polars as pl

from pitstop.coverage.frame import Options, Source, lines, table
from pitstop.model.errors import BadInput

FIELDS = 18
_HEADER = re.compile(r";\s*(MaxNodes|MaxProcs|UnixStartTime)\s*:\s*(\d+)", re.ASCII)


def read_swf(path: Path, options: Options) -> Source:
    """Read a trace.

    Raises:
        BadInput: its header names more nodes than processors.
    """
    header = _header(path)
    nodes, processors = header.get("MaxNodes", 0), header.get("MaxProcs", 0)
    if options.processors_per_node is not None:
        per_node, why = options.processors_per_node, "as it was given"
    elif nodes and processors:
        if processors < nodes:
            raise BadInput(str(path), f"has {nodes} nodes and {processors} processors")
        per_node, why = max(1, processors // nodes), f"{processors} on {nodes} nodes"
    else:
        per_node, why = 1, "the trace does not say"
    number = [
        pl.col("fields").list.get(position, null_on_oob=True).cast(pl.Float64, strict=False)
        for position in range(FIELDS)
    ]
    used, asked, seconds, status = number[4], number[7], number[3], number[10]
    width = pl.when(used > 0).then(used).otherwise(asked)
    began = pl.lit(header.get("UnixStartTime", 0)) + number[1] + number[2].clip(lower_bound=0)
    whole = pl.all_horizontal(value.is_not_null() for value in number)
    # Cancelled with no time used: it was taken from the queue before it ran.
    started = (seconds > 0) | ((seconds == 0) & (status != 5))
    frame = (
        lines(path)
        .filter(~pl.col("line").str.contains(r"^\s*;"))
        .with_columns(pl.col("line").str.extract_all(r"\S+").alias("fields"))
        # 2, 3 and 4 are parts of a job that has a line of its own.
        .filter(~status.is_in([2.0, 3.0, 4.0]).fill_null(value=False))
        .with_columns(
            pl.col("fields").list.get(0, null_on_oob=True).alias("job"),
            pl.col("fields").list.get(11, null_on_oob=True).replace("-1", "").alias("user"),
            (width / per_node).ceil().alias("nodes"),
            pl.lit(None, pl.Float64).alias("gpus"),
            seconds.alias("seconds"),
            started.alias("started"),
            whole.alias("understood"),
            (
                pl.from_epoch(began.cast(pl.Int64), time_unit="s").dt.strftime("%Y-%m")
                if "UnixStartTime" in header
                else pl.lit(None, pl.String)
            ).alias("month"),
        )
    )
    return Source("swf", table(frame), (f"processors per node: {per_node} ({why})",))


def _header(path: Path) -> dict[str, int]:
    found = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in itertools.takewhile(lambda text: text.startswith(";"), file):
            match = _HEADER.match(line)
            if match:
                found[match.group(1)] = int(match.group(2))
    return found
