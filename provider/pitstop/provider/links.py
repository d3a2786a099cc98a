"""The link from a task to the run's report."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink


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
