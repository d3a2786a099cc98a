"""The answer of `pitstop coverage` for people."""

from __future__ import annotations

from pitstop.model.coverage import Coverage
from pitstop.report.page import html_environment

WORDS = {
    "jobs": "the jobs",
    "node_hours": "the node-hours",
    "gpu_hours": "the GPU-hours",
    "users": "the users, with all of their jobs",
}


def headline(found: Coverage) -> str:
    """Say it in one sentence, both measures in it."""
    jobs, hours = found.share("jobs"), found.share("node_hours")
    if jobs is None or hours is None or jobs.share is None or hours.share is None:
        return "No job has started, so there is no share."
    if jobs.covered == jobs.total:
        return f"All {jobs.total:,.0f} jobs that started fit on one node each."
    return (
        f"{jobs.share:.1%} of the jobs fit on one node, with {hours.share:.1%} of the node-hours."
    )


def render_coverage_html(found: Coverage) -> str:
    """Return it as one self-contained HTML page."""
    template = html_environment().get_template("coverage.html.j2")
    return template.render(found=found, headline=headline(found), words=WORDS)
