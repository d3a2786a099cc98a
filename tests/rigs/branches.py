"""The branches that a run took, read from its journal: the same under every front end.

The suites of bare steps, Prefect and Airflow cannot run in one environment. So each holds the
journal of the same scenario against the one list that stands here.
"""

from __future__ import annotations

from collections.abc import Sequence

from pitstop.journal.chain import faults
from pitstop.journal.store import Journal
from pitstop.model.event import Event
from tests.rigs.site import NODE, SiteRig

_BEFORE = [f"precheck {NODE}", "drain web"]
_BACK = ["gate web: valid", "restore web", "return_to_service web"]

SCENARIOS: dict[str, list[str]] = {
    "restored": [
        *_BEFORE,
        "checkpoint web",
        f"maintain {NODE}",
        f"validate {NODE}",
        *_BACK,
        "ended: done, in-service",
    ],
    "moved": [
        *_BEFORE,
        "drain api",
        "checkpoint web",
        "transfer web",
        *_BACK,
        "decided api: save: stop",
        "stop api",
        f"maintain {NODE}",
        f"validate {NODE}",
        "gate api: valid",
        "decided api: start: cold-start",
        "cold_start api",
        "return_to_service api",
        "ended: done, in-service",
    ],
    "driver upgraded": [
        f"precheck {NODE}",
        "drain llm",
        "drain alone",
        "checkpoint llm",
        "transfer llm",
        "gate llm: valid",
        "restore llm",
        "return_to_service llm",
        "decided alone: save: stop",
        "stop alone",
        f"maintain {NODE}",
        f"validate {NODE}",
        "gate alone: invalid",
        "decided alone: start: cold-start",
        "cold_start alone",
        "return_to_service alone",
        "ended: done, in-service",
    ],
    "declared change": [
        *_BEFORE,
        "decided web: save: stop",
        "stop web",
        f"maintain {NODE}",
        f"validate {NODE}",
        "gate web: invalid",
        "decided web: start: cold-start",
        "cold_start web",
        "return_to_service web",
        "ended: done, in-service",
    ],
    "maintenance fails": [
        *_BEFORE,
        "checkpoint web",
        f"maintain {NODE}: failed for good (maintenance_failed)",
        f"decided {NODE}: maintenance: roll back",
        f"rollback {NODE}",
        f"decided {NODE}: quarantine: quarantine",
        f"quarantine {NODE}",
        *_BACK,
        "ended: partial, quarantined",
    ],
    "validation fails": [
        *_BEFORE,
        "checkpoint web",
        f"maintain {NODE}",
        f"validate {NODE}: failed for good (validation_failed)",
        f"decided {NODE}: maintenance: roll back",
        f"rollback {NODE}",
        f"decided {NODE}: quarantine: quarantine",
        f"quarantine {NODE}",
        "ended: partial, quarantined",
    ],
}


def branches(events: Sequence[Event]) -> list[str]:
    """What was done and decided, in order; without times, attempts and texts."""
    return [said for event in events if (said := _said(event))]


def assert_branches(rig: SiteRig, run: str, scenario: str) -> None:
    """The run took the scenario's branches, and its record is whole."""
    journal = Journal(rig.home / "journal.db")
    try:
        events = journal.events(run)
    finally:
        journal.close()
    assert faults(events) == []
    assert branches(events) == SCENARIOS[scenario]


def _said(event: Event) -> str:
    step = f"{event.verb} {event.subject}"
    match event.kind:
        case "step.finished" if event.verb == "gate":
            valid = event.data["result"]["verdict"]["valid"]
            return f"{step}: {'valid' if valid else 'invalid'}"
        case "step.finished":
            return step
        case "step.failed" if event.data["final"]:
            return f"{step}: failed for good ({event.data['error']['code']})"
        case "decision":
            return f"decided {event.subject}: {event.data['topic']}: {event.data['choice']}"
        case "run.ended":
            return f"ended: {event.data['state']}, {event.data['node_state']}"
    return ""
