"""Prefect as the driver behind `pitstop run --on prefect`."""

from __future__ import annotations

from pathlib import Path

from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from pitstop.decide.outcome import result_of
from pitstop.flows.maintain_node import maintain_node
from pitstop.model.result import RunResult
from pitstop.steps.runs import open_run

EPHEMERAL_STARTUP = 180
"""Seconds for the temporary server's first start, which migrates its database. Prefect's
default of 20 is too short on a small machine."""


def drive(home: Path, run_id: str) -> RunResult:
    """Drive a recorded run by the flow and return how it ended.

    Raises:
        PitstopError: the flow itself could not go on.
    """
    settings = {
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: EPHEMERAL_STARTUP,
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
    }
    with temporary_settings(set_defaults=settings):
        state = maintain_node(home=str(home), run_id=run_id, return_state=True)
    context = open_run(home, run_id)
    try:
        events = context.events()
        if not events or events[-1].kind != "run.ended":
            state.result()  # raises what ended the flow
        return result_of(context.plan, run_id, events)
    finally:
        context.close()
