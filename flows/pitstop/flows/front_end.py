"""Prefect as the driver behind `pitstop run --on prefect`."""

from __future__ import annotations

import os
from pathlib import Path

# A cold start of the ephemeral server takes longer than Prefect's default on small machines.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")

from pitstop.decide.outcome import result_of
from pitstop.model.result import RunResult
from pitstop.steps.runs import open_run


def drive(home: Path, run_id: str) -> RunResult:
    """Drive a recorded run by the flow and return how it ended.

    Raises:
        PitstopError: the flow itself could not go on.
    """
    from pitstop.flows.maintain_node import maintain_node

    state = maintain_node(home=str(home), run_id=run_id, return_state=True)
    context = open_run(home, run_id)
    try:
        events = context.events()
        if not events or events[-1].kind != "run.ended":
            state.result()  # raises what ended the flow
        return result_of(context.plan, run_id, events)
    finally:
        context.close()
