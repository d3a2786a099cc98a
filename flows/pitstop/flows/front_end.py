"""Prefect as the driver behind `pitstop run --on prefect`."""

from __future__ import annotations

import logging
from pathlib import Path

from prefect.exceptions import FailedRun
from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from pitstop.decide.outcome import result_of
from pitstop.flows.maintain_node import maintain_node
from pitstop.model.errors import PitstopError, Refused, TemporaryError, Unexpected
from pitstop.model.result import RunResult
from pitstop.steps.runs import ended_as, open_run

EPHEMERAL_STARTUP = 180
"""Seconds for the temporary server's first start, which migrates its database. Prefect's
default of 20 is too short on a small machine."""

log = logging.getLogger(__name__)


def drive(home: Path, run_id: str) -> RunResult:
    """Drive a recorded run by the flow and return how it ended.

    The journal says how: a server that goes away in the middle loses the flow run's end, not
    the run's.

    Raises:
        Refused: it has ended for good.
        PitstopError: the flow itself could not go on.
    """
    context = open_run(home, run_id)
    try:
        before = context.events()
        ended = ended_as(before)
        if ended not in ("", "partial"):
            raise Refused(run_id, f"it has ended: {ended}")
        failure = _run_flow(home, run_id)
        events = context.events()
        if len(events) == len(before) or not ended_as(events):
            raise failure or Unexpected(run_id, "the flow run has ended, and the run has not")
        if failure is not None:
            log.warning("Prefect does not know how the run ended: %s", failure)
        return result_of(context.plan, run_id, events)
    finally:
        context.close()


def _run_flow(home: Path, run_id: str) -> PitstopError | None:
    """Run the flow, and return what made it fail other than the run's own result."""
    settings = {
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: EPHEMERAL_STARTUP,
        PREFECT_SERVER_ANALYTICS_ENABLED: False,
    }
    try:
        with temporary_settings(set_defaults=settings):
            state = maintain_node(home=str(home), run_id=run_id, return_state=True)
    except Exception as error:  # noqa: BLE001  # the flow's own errors are in its state
        return TemporaryError(
            "Prefect",
            f"{type(error).__name__}: {error}",
            f"is its server there? Else: pitstop resume {run_id} --on steps",
        )
    found: object = state.result(raise_on_failure=False)
    if isinstance(found, PitstopError):
        return found
    if isinstance(found, Exception) and not isinstance(found, FailedRun):
        return Unexpected("Prefect", f"{type(found).__name__}: {found}")
    return None  # what it says is how the run ended
