"""What the Prefect server says of flow runs, task runs, artifacts, blocks and logs."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Collection
from typing import Any, TypeVar

T = TypeVar("T")


def ask(path: str, body: Any) -> Any:
    """Ask the server's own interface, past Prefect's client."""
    request = urllib.request.Request(
        f"{os.environ['PREFECT_API_URL']}/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def until(question: Callable[[], T], good: Callable[[T], bool], what: str) -> T:
    """Ask until the answer is good: the server takes in task runs and logs with a delay."""
    deadline = time.monotonic() + 30
    while True:
        answer = question()
        if good(answer):
            return answer
        assert time.monotonic() < deadline, f"never saw {what}; last: {answer}"
        time.sleep(0.2)


def flow_runs(run: str) -> list[dict[str, Any]]:
    """The flow runs that drove a run, oldest first."""
    found: list[dict[str, Any]] = ask("flow_runs/filter", {"sort": "START_TIME_ASC"})
    return [f for f in found if f["parameters"].get("run_id") == run]


def task_runs(flow_run: str, wanted: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """A flow run's task runs by name, once all that are wanted have ended."""

    def question() -> dict[str, dict[str, Any]]:
        found = ask("task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
        return {t["name"]: t for t in found}

    def good(found: dict[str, dict[str, Any]]) -> bool:
        ended = {name for name, t in found.items() if t["end_time"] is not None}
        return set(wanted) <= ended

    return until(question, good, f"the end of {sorted(wanted)}")


def artifacts(run: str) -> dict[str, dict[str, Any]]:
    """A run's newest artifacts by the last part of their keys."""
    prefix = f"pitstop-{run.lower()}-"
    found = ask("artifacts/latest/filter", {"artifacts": {"key": {"like_": f"{prefix}%"}}})
    return {a["key"].removeprefix(prefix): a for a in found}


def logs(flow_run: str, wanted: str) -> list[dict[str, Any]]:
    """A flow run's log, once a text has come in."""

    def question() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(
            "logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}, "limit": 200}
        )
        return found

    return until(question, lambda f: any(wanted in log["message"] for log in f), wanted)
