"""The kill matrix: all of it by `scripts/kill-matrix`, a few cells in the usual suites.

A cell kills something in the middle of a step; see docs/kill-matrix.md.
"""

from __future__ import annotations

import json
import os

import pytest

REPORT = "PITSTOP_MATRIX_REPORT_FD"
"""Names a descriptor that one JSON line per cell is written to."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "matrix: a cell that only scripts/kill-matrix runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the marked cells out unless somebody asked for them: by marker, or one by one."""
    if config.option.markexpr or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("matrix")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


_failed: dict[str, str] = {}
_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    descriptor = os.environ.get(REPORT)
    if descriptor is None:
        return
    cell = report.nodeid
    _seconds[cell] = _seconds.get(cell, 0.0) + report.duration
    if report.failed:
        sections = "".join(f"\n--- {name}\n{text}" for name, text in report.sections)
        _failed[cell] = _failed.get(cell, "") + f"[{report.when}]\n{report.longreprtext}{sections}"
    if report.when != "teardown":
        return
    line = {
        "cell": cell.partition("[")[2].removesuffix("]"),
        "outcome": "FAILED" if cell in _failed else "ok",
        "seconds": round(_seconds.pop(cell), 1),
        "log": _failed.pop(cell, ""),
    }
    os.write(int(descriptor), json.dumps(line).encode() + b"\n")
