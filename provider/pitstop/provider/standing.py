"""How a maintenance stands, as a message from Airflow tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pitstop.provider.hooks import PitstopHook
from pitstop.steps.outlook import outlook
from pitstop.steps.runs import has_run


@dataclass(frozen=True, slots=True)
class Standing:
    """What is told of a run: in words for people, as plain data for programs."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)


def standing_of(hook: PitstopHook, run: str) -> Standing:
    """Look at a run. Changes nothing, and does not wait for a node that is gone."""
    if not has_run(hook.home, run):
        text = f"run {run} was never begun, so it has touched nothing; see the task plan"
        return Standing(text, {"run": run, "state": "not begun", "go_on": []})
    found = outlook(hook.home, run)
    go_on = found.way_on(hook.home, hook.site_file)
    data = {
        "run": run,
        "node": found.node,
        "state": found.state or "under way",
        "step": {"verb": found.verb, "subject": found.subject, "since": found.since},
        "holds": list(found.holds),
        "unknown": found.unknown,
        "go_on": go_on,
    }
    return Standing("\n".join([*found.sentences(), *(f"go on with: {c}" for c in go_on)]), data)
