"""The deadline: part of the serialized DAG, and an alarm that says what is true."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from airflow.serialization.decoders import decode_deadline_alert
from airflow.serialization.encoders import encode_deadline_alert
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.callback import CallbackTrigger

from pitstop.fleet.node import DeferringNode
from pitstop.provider.deadlines import maintenance_deadline
from pitstop.provider.task_group import maintenance_task_group
from tests.provider.receiver import receiver
from tests.provider.unit.conftest import NODE, RUN, WORKLOAD, Here

DEADLINE = "2026-11-30T04:00:00+00:00"
CONTEXT = {
    "dag_run": {"dag_id": "dag", "dag_run_id": "manual", "conf": {"pitstop_run": RUN}},
    "deadline": {"id": "1", "deadline_time": DEADLINE},
}


def callback() -> tuple[str, str]:
    """Run the deadline's callback as a triggerer does; return how it ended, and its result."""
    found = maintenance_deadline(timedelta(hours=2)).callback
    trigger = CallbackTrigger(found.path, {**found.kwargs, "context": CONTEXT})
    path, state = trigger.serialize()
    assert path.endswith("CallbackTrigger")
    again = CallbackTrigger(**json.loads(json.dumps(state)))

    async def events() -> list[Any]:
        return [event.payload async for event in again.run()]

    started, ended = asyncio.run(events())
    assert started["state"] == "running"
    assert isinstance(ended["body"], str)  # the column is text; a triggerer dies of another type
    return str(ended["state"].value), ended["body"]


def tell(here: Here, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    extra = {"site_file": str(here.site_file), "home": str(here.home), "alarm_url": url}
    connection = {"conn_type": "pitstop", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PITSTOP_DEFAULT", json.dumps(connection))


def test_dag_with_a_deadline_survives_serialization() -> None:
    with DAG(
        dag_id="late",
        schedule=None,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        deadline=maintenance_deadline(timedelta(hours=2), pitstop_conn_id="other"),
    ) as dag:
        maintenance_task_group(maintenance="/m.yaml", node=NODE, workloads=[WORKLOAD])
    data = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    again = DagSerialization.from_dict(data)
    assert len(again.task_ids) == len(dag.task_ids)
    assert again.deadline
    [alert] = data["dag"]["deadline"]
    text = json.dumps(alert)
    assert "DagRunQueuedAtDeadline" in text
    assert "pitstop.provider.deadlines.alarm" in text
    assert '"other"' in text
    assert "7200" in text
    assert encode_deadline_alert(decode_deadline_alert(alert)) == alert


def test_alarm_names_run_step_node_and_the_way_on(
    here: Here, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DeferringNode, "PATIENCE", 0.2)
    here.begin()
    here.step("precheck", NODE).execute(here.context)
    with pytest.raises(TaskDeferred):
        here.step("drain").execute(here.context)
    before = here.events()

    with receiver() as (url, received), caplog.at_level(logging.INFO):
        tell(here, monkeypatch, url)
        state, text = callback()
    assert state == "success"
    [message] = received
    assert text == message["message"]
    assert (message["run"], message["node"], message["state"]) == (RUN, NODE, "under way")
    assert (message["step"]["verb"], message["step"]["subject"]) == ("drain", WORKLOAD)
    assert message["step"]["since"] == before[-1].time
    place = f"--home {here.home}"
    assert message["go_on"] == [
        f"pitstop reconcile {NODE} --site {here.site_file} {place}",
        f"pitstop resume {RUN} {place}",
    ]
    for part in (
        f"was not done by {DEADLINE}",
        f"stands in drain of {WORKLOAD}",
        *message["go_on"],
    ):
        assert part in text
        assert part in caplog.text
    assert "s3cret" not in caplog.text
    assert here.events() == before
    assert here.operation("drain", WORKLOAD) == "running"


def test_alarm_that_nobody_takes_fails_and_is_in_the_log_all_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here.begin()
    with receiver(500) as (url, received), caplog.at_level(logging.INFO):
        tell(here, monkeypatch, url)
        state, body = callback()
    assert state == "failed"
    assert len(received) == 1
    assert "could not be posted" in body
    assert f"stands before precheck of {NODE}" in caplog.text
    assert "s3cret" not in caplog.text + body
    tell(here, monkeypatch, "file:///etc/passwd")
    state, body = callback()
    assert state == "failed"
    assert "http" in body


def test_run_that_was_never_begun_touched_nothing(here: Here) -> None:
    state, text = callback()
    assert state == "success"
    assert "never begun, so it has touched nothing" in text
    assert "pitstop resume" not in text
