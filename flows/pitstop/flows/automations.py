"""Automations shipped as code. `python -m pitstop.flows.automations` creates them."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.settings import get_current_settings

NAME = "pitstop: crash zombie maintenance runs"
FLOW = "maintain-node"
MISSED = 3
"""Heartbeats in a row whose absence counts as death."""


def zombie_automation(heartbeat: timedelta | None = None) -> Automation:
    """Return the automation that marks maintenance runs as crashed whose process is gone.

    A process that was killed sends nothing, so its run would stay `Running` for ever. The
    node's work goes on all the same; `pitstop resume` picks it up.

    Args:
        heartbeat: how often the flow's processes send one; else what
            `PREFECT_FLOWS_HEARTBEAT_FREQUENCY` is here. Less than they really do would mark
            healthy runs.

    Raises:
        ValueError: heartbeats are switched off.
    """
    frequency = heartbeat or _configured()
    return Automation(
        name=NAME,
        description="A maintenance whose process died must not look as if it ran.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={
                "prefect.flow-run.heartbeat",
                "prefect.flow-run.Completed",
                "prefect.flow-run.Failed",
                "prefect.flow-run.Cancelled",
                "prefect.flow-run.Crashed",
            },
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "flow", "prefect.resource.name": FLOW},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=frequency * MISSED,
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                force=False,
                state=StateType.CRASHED,
                message="No heartbeat. The node was not touched by this; pitstop resume goes on.",
            )
        ],
    )


async def create_automations(heartbeat: timedelta | None = None) -> Automation:
    """Create the automation, or bring the one that is there up to date.

    Raises:
        ValueError: heartbeats are switched off.
    """
    wanted = zombie_automation(heartbeat)
    try:
        found = await Automation.aread(name=NAME)
    except ValueError:  # there is none
        return await wanted.acreate()
    for name in ("description", "trigger", "actions"):
        setattr(found, name, getattr(wanted, name))
    await found.aupdate()
    return found


def _configured() -> timedelta:
    frequency = get_current_settings().flows.heartbeat_frequency
    if frequency is None:
        raise ValueError("PREFECT_FLOWS_HEARTBEAT_FREQUENCY is not set: there are no heartbeats")
    return timedelta(seconds=frequency)


def main() -> int:
    """Create all automations on the server that this environment names."""
    created = asyncio.run(create_automations())
    print(f"{created.name} ({created.id})")  # noqa: T201  # a command's result
    return 0


if __name__ == "__main__":
    sys.exit(main())
