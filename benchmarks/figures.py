"""Rounds, medians and ratios, printed the same way by every benchmark."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Median with the smallest and largest value: few rounds allow no more."""
    return f"{median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "load": round(os.getloadavg()[0], 2),
    }


def show(title: str, rows: Sequence[Mapping[str, str]], raw: Mapping[str, Any]) -> None:
    """Print a table for people, or everything as JSON with --json."""
    if "--json" in sys.argv:
        print(json.dumps({"title": title, "machine": machine(), **raw}, indent=1))
        return
    table = Table(title=title, caption=f"machine: {machine()}")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*row.values())
    Console(width=110).print(table)
