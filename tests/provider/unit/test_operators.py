"""The operators against a real journal and a real engine: started again, resumed, killed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from pitstop.fleet.node import DeferringNode
from pitstop.provider import info
from pitstop.provider.links import ReportLink
from pitstop.provider.operators import FinishOperator, PitstopOperator, PlanOperator, StepOperator
from tests.provider.unit.conftest import NODE, RUN, WORKLOAD, Here
from tests.rigs.engine import until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeferringNode, "PATIENCE", 0.2)


def deferred(here: Here, verb: str, subject: str = WORKLOAD) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        here.step(verb, subject).execute(here.context)
    return caught.value


OPERATORS: list[PitstopOperator] = [
    PlanOperator(task_id="plan", maintenance="/m.yaml"),
    StepOperator(task_id="drain", verb="drain", subject="web"),
    FinishOperator(task_id="finish"),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: type(o).__name__)
def test_operators_are_templated_and_linked(operator: PitstopOperator) -> None:
    assert operator.pitstop_conn_id == info.DEFAULT_CONNECTION
    assert "pitstop_conn_id" in operator.template_fields
    for name in operator.template_fields:
        assert isinstance(getattr(operator, name), str)
    [link] = operator.operator_extra_links
    assert isinstance(link, ReportLink)
    assert link.name
    assert link.get_link(operator, ti_key=None) == ""  # there is no run yet


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: type(o).__name__)
def test_worker_that_dies_costs_a_retry_and_no_run(operator: PitstopOperator) -> None:
    assert (operator.retries or 0) >= 3
    assert PlanOperator(task_id="d", maintenance="/m.yaml", retries=0).retries == 0


def test_what_a_person_would_change_is_templated() -> None:
    plan, step, _ = OPERATORS
    assert "maintenance" in plan.template_fields
    assert "subject" in step.template_fields


def test_step_is_started_once_attached_to_and_resumed_any_number_of_times(here: Here) -> None:
    here.begin()
    assert here.step("precheck", NODE).execute(here.context)["boot_id"]
    first = deferred(here, "drain")
    assert first.method_name == "resume"
    again = deferred(here, "drain")  # a retry beside an orphan
    assert again.trigger.wait == first.trigger.wait
    assert here.kinds("drain") == ["step.started"]

    here.let_go("drained")
    until(lambda: here.operation("drain", WORKLOAD) == "done", "it is drained")
    step = here.step("drain")
    results = [step.resume(here.context, event) for event in ({"over": True}, {"over": True}, None)]
    results.append(here.step("drain").resume(here.context, {"over": False}))  # late, and wrong
    results.append(here.step("drain").execute(here.context))  # cleared
    assert results == [results[0]] * 5
    assert results[0]["in_flight_at_end"] is None
    assert here.kinds("drain") == ["step.started", "step.finished"]
    assert json.loads(json.dumps(results[0])) == results[0]


def test_out_of_time_is_a_failure_of_the_step(here: Here) -> None:
    here.begin()
    here.step("precheck", NODE).execute(here.context)
    deferred(here, "drain")
    with pytest.raises(Exception, match="still running"):
        here.step("drain").resume(here.context, {"over": False})
    assert here.kinds("drain") == ["step.started", "step.failed"]


def test_step_whose_turn_has_not_come_skips_and_records_nothing(here: Here) -> None:
    with pytest.raises(AirflowSkipException, match="no run"):
        here.step("drain").execute(here.context)
    here.begin()
    before = here.events()
    for verb in ("drain", "checkpoint", "restore"):
        with pytest.raises(AirflowSkipException, match="due is precheck of here"):
            here.step(verb).execute(here.context)
    with pytest.raises(AirflowFailException, match="stands before precheck of here"):
        FinishOperator(task_id="finish").execute(here.context)
    assert here.events() == before


def test_link_is_the_reports_address_from_the_plan_on(here: Here) -> None:
    expected = (here.home / "runs" / RUN / "report.html").as_uri()
    maintenance = str(here.root / "maintenance.yaml")
    for _ in ("made", "found"):
        plan = PlanOperator(task_id="plan", maintenance=maintenance)
        assert plan.execute(here.context) == RUN
        assert ReportLink().get_link(plan, ti_key=None) == expected
    step = here.step("precheck", NODE)
    step.execute(here.context)
    assert ReportLink().get_link(step, ti_key=None) == expected


def test_killed_drain_ends_on_the_node(here: Here) -> None:
    here.begin()
    here.step("precheck", NODE).execute(here.context)
    step = here.step("drain")
    with pytest.raises(TaskDeferred):
        step.execute(here.context)
    assert here.operation("drain", WORKLOAD) == "running"
    step.on_kill()
    assert here.operation("drain", WORKLOAD) not in ("running", "done")


def test_killed_maintenance_goes_on(
    here: Here, caplog: pytest.LogCaptureFixture, site_without_workloads: None
) -> None:
    here.begin()
    here.step("precheck", NODE).execute(here.context)
    step = here.step("maintain", NODE)
    with pytest.raises(TaskDeferred):
        step.execute(here.context)
    step.on_kill()
    assert here.operation("maintain", NODE, "patch.1") == "running"
    here.let_go("maintained")
    until(lambda: here.operation("maintain", NODE, "patch.1") == "done", "it went on")
    assert step.execute(here.context)["steps"]


def test_kill_before_anything_was_done_asks_nobody(here: Here) -> None:
    here.step("drain").on_kill()
    assert not here.home.exists()


@pytest.fixture
def site_without_workloads(here: Here) -> None:
    site: dict[str, Any] = json.loads(here.site_file.read_text())
    del site["workloads"]
    here.site_file.write_text(json.dumps(site))
