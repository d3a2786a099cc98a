"""The automation that marks dead flow runs, on the real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta

import pytest
from prefect.automations import Automation
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from pitstop.flows import automations
from pitstop.flows.automations import create_automations, zombie_automation
from pitstop.flows.maintain_node import maintain_node


def test_created_once_and_brought_up_to_date(server: str) -> None:
    created = asyncio.run(create_automations())
    trigger = stored().trigger
    assert isinstance(trigger, EventTrigger)
    assert (trigger.posture, trigger.threshold) == (Posture.Proactive, 1)
    # Three times what Prefect's processes do by themselves.
    assert trigger.within == timedelta(seconds=540)
    assert trigger.after == {"prefect.flow-run.heartbeat"}
    assert trigger.for_each == {"prefect.resource.id"}
    [action] = stored().actions
    assert isinstance(action, ChangeFlowRunState)
    assert (action.state, action.force) == (StateType.CRASHED, False)

    asyncio.run(create_automations(timedelta(seconds=60)))
    again = stored()
    assert again.id == created.id
    assert isinstance(again.trigger, EventTrigger)
    assert again.trigger.within == timedelta(seconds=180)

    # By its command, as the documentation says it.
    done = subprocess.run(
        [sys.executable, "-m", "pitstop.flows.automations"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == f"{automations.NAME} ({created.id})\n"
    assert isinstance(stored().trigger, EventTrigger)


def stored() -> Automation:
    """The only one of that name."""
    return asyncio.run(Automation.aread(name=automations.NAME))


def test_it_watches_this_flow_alone() -> None:
    trigger = zombie_automation().trigger
    assert isinstance(trigger, EventTrigger)
    assert trigger.model_dump()["match_related"] == {
        "prefect.resource.role": "flow",
        "prefect.resource.name": maintain_node.name,
    }


def test_without_heartbeats_there_is_none() -> None:
    with (
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        pytest.raises(ValueError, match="no heartbeats"),
    ):
        zombie_automation()
