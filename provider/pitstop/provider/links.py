"""The link from a task to the run's report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperatorLink


def report_uri(home: Path, run: str) -> str:
    """Return the address of a run's report. It is written when the run ends."""
    return (home / "runs" / run / "report.html").as_uri()


class ReportLink(BaseOperatorLink):
    """Where the run's report lies. The worker pushes it; the API server only reads it."""

    @property
    def name(self) -> str:
        """What the button says."""
        return "pitstop report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the report's address, as the operator left it; see `BaseOperatorLink`."""
        del ti_key
        return str(getattr(operator, "report_uri", "") or "")
