"""Automations shipped as code."""

from __future__ import annotations

from datetime import timedelta

from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture


def zombie_automation(heartbeat: timedelta = timedelta(seconds=30)) -> Automation:
    """Return the automation that marks flow runs as crashed whose process is gone.

    A process that was killed sends nothing, so its run would stay `Running` for ever. The
    node's work goes on all the same; `pitstop resume` picks it up. Runs send heartbeats when
    `PREFECT_FLOWS_HEARTBEAT_FREQUENCY` is set; three missing ones count as dead.

    Args:
        heartbeat: the frequency that is set there.
    """
    return Automation(
        name="pitstop: crash zombie maintenance runs",
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
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=max(heartbeat * 3, timedelta(seconds=10)),
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
