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
from pitstop.model.errors import Refused
from pitstop.model.result import RunResult
from pitstop.steps.runs import ended_as, open_run

EPHEMERAL_STARTUP = 180
"""Seconds for the temporary server's first start, which migrates its database. Prefect's
default of 20 is too short on a small machine."""


def drive(home: Path, run_id: str) -> RunResult:
    """Drive a recorded run by the flow and return how it ended.

    Raises:
        Refused: it has ended for good.
        PitstopError: the flow itself could not go on.
    """
    context = open_run(home, run_id)
    try:
        ended = ended_as(context.events())
        if ended not in ("", "partial"):
            raise Refused(run_id, f"it has ended: {ended}")
        settings = {
            PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: EPHEMERAL_STARTUP,
            PREFECT_SERVER_ANALYTICS_ENABLED: False,
        }
        with temporary_settings(set_defaults=settings):
            state = maintain_node(home=str(home), run_id=run_id, return_state=True)
        events = context.events()
        if not ended_as(events):
            state.result()  # raises what ended the flow
        return result_of(context.plan, run_id, events)
    finally:
        context.close()
