"""Any table with a header: CSV with the columns that its maker chose."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pitstop.coverage.frame import COLUMNS, Options, Source, table
from pitstop.model.errors import BadInput

MEANINGS = ("job", "user", "nodes", "gpus", "seconds", "start", "end")

_MORE = "\x1f"

_KNOWN = {
    "job": ("job_id", "jobid", "job", "id"),
    "user": ("user", "user_id", "username", "owner"),
    "nodes": ("nodes", "num_nodes", "node_count", "nnodes", "node_num"),
    "gpus": ("gpus", "num_gpus", "gpu_num", "gpu_count", "ngpus"),
    "seconds": ("seconds", "duration_s", "duration", "runtime", "elapsed"),
    "start": ("start_time", "start", "started", "submit_time"),
    "end": ("end_time", "end", "finished"),
}


def read_table(path: Path, options: Options) -> Source:
    """Read a CSV; its columns are found by name, or as `options.columns` says.

    Raises:
        BadInput: a column that is named is not there, or what is needed cannot be told.
    """
    names = (
        pl.scan_csv(
            path, glob=False, infer_schema=False, encoding="utf8-lossy", truncate_ragged_lines=True
        )
        .collect_schema()
        .names()
    )
    raw = pl.scan_csv(
        path,
        glob=False,
        has_header=False,
        skip_rows=1,
        # One more than there are: a row that fills it has a comma too many, and is shifted.
        schema=dict.fromkeys([*names, _MORE], pl.String),
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
        missing_columns="insert",
    )
    found = _columns(path, names, options)
    assumptions = []
    gpus = _number(found.get("gpus"))
    if "nodes" in found:
        nodes = _number(found["nodes"])
    else:
        nodes = (gpus / options.gpus_per_node).ceil().clip(lower_bound=1)
        assumptions.append(f"a node has {options.gpus_per_node} GPUs, and a job fills its nodes")
    seconds = _number(found.get("seconds"))
    if "seconds" not in found:
        seconds = (_epoch(found["end"]) - _epoch(found["start"])).cast(pl.Float64)
    if found.get("start") == "submit_time":
        assumptions.append("jobs began when they were submitted")
    started = seconds.is_null() | ~seconds.is_finite() | (seconds > 0)
    frame = raw.with_columns(
        pl.concat_str(pl.all().fill_null(""), separator=",").alias("_line"),
        (pl.col(found["job"]) if "job" in found else _row_number()).alias("_job"),
        (pl.col(found["user"]) if "user" in found else pl.lit("")).alias("_user"),
        nodes.alias("_nodes"),
        gpus.alias("_gpus"),
        seconds.alias("_seconds"),
        (
            pl.col(found["start"]).str.extract(r"^(\d{4}-\d{2})-")
            if "start" in found
            else pl.lit(None, pl.String)
        ).alias("_month"),
        started.alias("_started"),
        pl.col(_MORE).is_null().alias("_understood"),
    ).select(pl.col(f"_{name}").alias(name) for name in COLUMNS)
    return Source("csv", table(frame), tuple(assumptions))


def _columns(path: Path, names: list[str], options: Options) -> dict[str, str]:
    found = {}
    for meaning in MEANINGS:
        given = options.columns.get(meaning)
        if given is not None and given not in names:
            raise BadInput(f"{path}:1", f"has no column {given!r} (for {meaning})")
        lower = {name.lower(): name for name in reversed(names)}
        known = next((lower[name] for name in _KNOWN[meaning] if name in lower), None)
        if given or known:
            found[meaning] = given or str(known)
    for needed in (("nodes", "gpus"), ("seconds", "end")):
        if not any(meaning in found for meaning in needed):
            raise BadInput(
                f"{path}:1",
                f"no column tells {' or '.join(needed)}; there are {', '.join(names)[:300]}",
                f"--column {needed[0]}=NAME",
            )
    if "seconds" not in found and "start" not in found:
        raise BadInput(f"{path}:1", "no column tells the start", "--column start=NAME")
    return found


def _number(name: str | None) -> pl.Expr:
    return pl.lit(None, pl.Float64) if name is None else pl.col(name).cast(pl.Float64, strict=False)


def _epoch(name: str) -> pl.Expr:
    """Read a moment: seconds, or a date and time."""
    text = pl.col(name).str.replace("T", " ", literal=True).str.slice(0, 19)
    return (
        pl.col(name)
        .cast(pl.Float64, strict=False)
        .fill_null(text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False).dt.epoch("s"))
    )


def _row_number() -> pl.Expr:
    return pl.int_range(2, pl.len() + 2).cast(pl.String)  # the header is line 1
