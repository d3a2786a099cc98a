"""Which kind of source a file is."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from pitstop.coverage.frame import Options, Source
from pitstop.coverage.live import read_pods, read_squeue
from pitstop.coverage.sacct import read_sacct
from pitstop.coverage.sacct_json import is_sacct, read_sacct_json
from pitstop.coverage.swf import FIELDS, read_swf
from pitstop.coverage.tables import read_table
from pitstop.model.errors import BadInput

KINDS = ("sacct", "swf", "csv", "squeue", "pods")

_HEAD = 65536


def read_source(path: Path, kind: str | None, options: Options, now: datetime) -> Source:
    """Read a file as what it is, or as it is said to be.

    Raises:
        BadInput: it cannot be read, or is of no kind that is known.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from error
    if not head.strip():
        raise BadInput(str(path), "is empty")
    first = head.lstrip("\ufeff\r\n").splitlines()[0]
    found = kind or _guess(path, head, first)
    if found == "sacct":
        as_json = head.lstrip().startswith("{")
        return read_sacct_json(path) if as_json else read_sacct(path, first)
    if found == "swf":
        return read_swf(path, options)
    if found == "squeue":
        return read_squeue(path, now)
    if found == "pods":
        return read_pods(path, options, now)
    if found == "csv":
        return read_table(path, options)
    raise BadInput(str(found), f"is no kind of source; there are {', '.join(KINDS)}")


def _guess(path: Path, head: str, first: str) -> str:
    if head.lstrip().startswith("{"):
        return _guess_json(path)
    if "|" in first and "JobID" in first.split("|"):
        return "sacct"
    data = next((line for line in head.splitlines() if not line.startswith(";")), "")
    numbers = re.fullmatch(r"\s*(?:-?[0-9.]+\s+)+-?[0-9.]+\s*", data)
    if first.startswith(";") or (numbers and len(data.split()) == FIELDS):
        return "swf"
    if "," in first:
        return "csv"
    raise BadInput(f"{path}:1", "is of no kind that is known", f"name it: --kind {'|'.join(KINDS)}")


def _guess_json(path: Path) -> str:
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="backslashreplace"))
    except ValueError as error:
        raise BadInput(str(path), f"is no JSON: {error}") from error
    if isinstance(found, dict) and "jobs" in found:
        return "sacct" if is_sacct(found["jobs"]) else "squeue"
    if "items" in found:
        return "pods"
    raise BadInput(str(path), "is no answer of squeue or sacct, and no list of pods")
