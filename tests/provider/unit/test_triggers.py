"""The trigger: plain state, an absolute deadline, and nothing undone when it ends."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from pitstop.fleet.node import DeferringNode
from pitstop.provider.triggers import NodeTrigger
from tests.provider.unit.conftest import NODE, WORKLOAD, Here
from tests.rigs.engine import until


@pytest.fixture
def drain(here: Here, monkeypatch: pytest.MonkeyPatch) -> NodeTrigger:
    """The trigger of a drain that is under way."""
    monkeypatch.setattr(DeferringNode, "PATIENCE", 0.2)
    here.begin()
    here.step("precheck", NODE).execute(here.context)
    with pytest.raises(TaskDeferred) as caught:
        here.step("drain").execute(here.context)
    trigger = caught.value.trigger
    assert isinstance(trigger, NodeTrigger)
    return trigger


def remade(trigger: NodeTrigger, **changes: Any) -> NodeTrigger:
    """The trigger as another triggerer makes it, from what the database holds."""
    path, kwargs = trigger.serialize()
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    made = found(**{**json.loads(json.dumps(kwargs)), **changes})
    assert isinstance(made, NodeTrigger)
    return made


def heard(trigger: NodeTrigger) -> NodeTrigger:
    """The trigger, its log written where pytest reads it and not where Airflow would."""
    trigger._log = logging.getLogger("heard")  # type: ignore[assignment]
    return trigger


async def fired(trigger: NodeTrigger) -> list[Any]:
    return [event.payload async for event in trigger.run()]


def test_is_made_again_from_plain_keyword_arguments(drain: NodeTrigger) -> None:
    assert remade(drain).serialize() == drain.serialize()
    _, kwargs = drain.serialize()
    parameters = list(inspect.signature(NodeTrigger).parameters.values())
    assert {p.kind for p in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    assert {p.name for p in parameters} == set(kwargs)


def test_deadline_is_a_moment_and_not_a_duration(drain: NodeTrigger) -> None:
    moment = datetime.fromisoformat(drain.deadline)
    assert moment.utcoffset() == timedelta(0)
    assert remade(drain).deadline == drain.deadline
    past = remade(drain, deadline=(datetime.now(UTC) - timedelta(seconds=1)).isoformat())
    begun = time.monotonic()
    assert asyncio.run(fired(past)) == [{"over": False}]
    assert time.monotonic() - begun < 60


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pitstop.provider.triggers.SLICE", 1.0)


def test_two_of_them_see_the_end(here: Here, drain: NodeTrigger) -> None:
    async def both() -> list[list[Any]]:
        waiting = [asyncio.create_task(fired(remade(drain))) for _ in range(2)]
        await asyncio.to_thread(here.let_go, "drained")
        return await asyncio.gather(*waiting)

    assert asyncio.run(both()) == [[{"over": True}]] * 2
    assert here.operation("drain", WORKLOAD) == "done"
    assert asyncio.run(fired(remade(drain))) == [{"over": True}]


def test_its_own_end_cancels_nothing(here: Here, drain: NodeTrigger) -> None:
    """A triggerer that is shut down cancels its tasks, then calls `cleanup`."""

    async def shut_down() -> None:
        task = asyncio.create_task(fired(drain))
        await asyncio.sleep(0.5)  # it is asking the node
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await drain.cleanup()

    asyncio.run(shut_down())
    assert here.operation("drain", WORKLOAD) == "running"


def test_killed_by_a_person_it_cancels_what_can_be_cut_off(
    here: Here, drain: NodeTrigger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        asyncio.run(heard(remade(drain, verb="maintain")).on_kill())
        # Made before there was a verb: what it waits for is not known to be safe to cut off.
        asyncio.run(heard(remade(drain, verb="")).on_kill())
        assert here.operation("drain", WORKLOAD) == "running"
        assert caplog.text.count("goes on") == 2
        asyncio.run(heard(remade(drain)).on_kill())
        assert "killed: run.sleeper.drain.1 on the node: " in caplog.text
    until(lambda: here.operation("drain", WORKLOAD) != "running", "it is cancelled")
    assert here.operation("drain", WORKLOAD) != "done"


def test_kill_of_a_silent_node_is_bounded_and_no_error(
    here: Here,
    drain: NodeTrigger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW__PITSTOP__KILL_TIMEOUT", "0.01")
    begun = time.monotonic()
    with caplog.at_level(logging.INFO):
        asyncio.run(heard(drain).on_kill())
    assert time.monotonic() - begun < 10
    assert "could not be cancelled" in caplog.text
