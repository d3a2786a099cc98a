"""How a run ended, read from its plan and events, at any moment of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.outcome import result_of
from pitstop.journal.chain import link
from pitstop.model.errors import PitstopError
from pitstop.model.event import Event
from pitstop.model.plan import Plan, RunbookRef, Target, WorkloadPlan
from pitstop.model.result import RunResult, WorkloadResult
from pitstop.model.site import Node, SitePolicy
from pitstop.model.words import Outcome, Shape, Strategy, Verb
from pitstop.model.workload import HttpProbe, Launch, Ready, Workload

VALID = {"valid": True, "differences": []}
SAVED: dict[str, Any] = {"checkpoint": "web.r1.1", "image_bytes": 7, "fingerprint": {}}
UP: dict[str, Any] = {
    "ready_seconds": 1.5,
    "ready": "2026-11-30T00:00:59.250000+00:00",
    "earlier_cold_start_seconds": 9.0,
}


def workload(strategy: Strategy, name: str = "web") -> WorkloadPlan:
    return WorkloadPlan(
        name=name,
        spec=Workload(
            placement={"n1": 1},
            launch=Launch(command=("serve",)),
            ready=Ready(http=HttpProbe(url="http://127.0.0.1:1/")),
        ),
        shape=Shape.SINGLE_GPU,
        strategy=strategy,
        reason="as planned",
        running=True,
        fingerprint={},
        predicted=VALID,
        target=Target(node="n2", node_spec=Node(), predicted=VALID)
        if strategy is Strategy.MIGRATE
        else None,
    )


def plan(*workloads: WorkloadPlan) -> Plan:
    return Plan(
        site="lab",
        policy=SitePolicy(),
        title="t",
        reason="",
        node="n1",
        node_spec=Node(),
        boot_id="b",
        runbook=RunbookRef(
            name="r",
            title="r",
            digest="",
            source="",
            risk="low",
            variables={},
            changes={},
            steps=(),
        ),
        workloads=workloads,
        go=True,
    )


class Log:
    """Writes events the way a run does, a second apart."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: str, subject: str = "n1", verb: str = "", **data: Any) -> Log:
        fields = {
            "run": "r1",
            "time": f"2026-11-30T00:00:{len(self.events):02}.25+00:00",
            "kind": kind,
            "actor": "me@here",
            "subject": subject,
            "verb": verb,
            "attempt": 1 if kind.startswith("step.") else 0,
            "data": data,
        }
        self.events.append(link(fields, self.events[-1] if self.events else None))
        return self

    def begun(self, verb: str, subject: str = "web") -> Log:
        return self.add("step.started", subject, verb)

    def done(self, verb: str, subject: str = "web", /, **result: Any) -> Log:
        return self.add("step.finished", subject, verb, result=result)

    def failed(self, verb: str, code: str, subject: str = "web") -> Log:
        error = {"code": code, "subject": subject, "cause": f"cause of {code}", "hint": ""}
        return self.add("step.failed", subject, verb, error=error, final=True)

    def decided(self, topic: str, choice: str, cause: str, subject: str = "web") -> Log:
        return self.add("decision", subject, topic=topic, choice=choice, cause=cause)

    def ended(self, state: str, cause: str = "") -> Log:
        return self.add("run.ended", state=state, cause=cause)

    def result(self, strategy: Strategy = Strategy.RESTORE) -> RunResult:
        return result_of(plan(workload(strategy)), "r1", self.events)

    def web(self, strategy: Strategy = Strategy.RESTORE) -> WorkloadResult:
        [found] = self.result(strategy).workloads
        return found


def saved() -> Log:
    return Log().begun("checkpoint").done("checkpoint", **SAVED)


def test_run_that_has_not_ended_is_partial() -> None:
    for log in (Log(), saved()):
        result = log.result()
        assert (result.state, result.exit_code) == ("partial", 4)
        assert "not ended" in result.cause


@pytest.mark.parametrize(
    ("state", "code"), [("done", 0), ("failed", 1), ("refused", 3), ("partial", 4)]
)
def test_state_is_that_of_the_last_end(state: str, code: int) -> None:
    log = Log().ended("partial", "first").add("run.resumed", recover=True).ended(state, "last")
    result = log.result()
    assert (result.state, result.exit_code, result.cause) == (state, code, "last")


def test_restored_with_its_measures() -> None:
    found = saved().done("gate", verdict=VALID).done("restore", **UP).web()
    assert (found.outcome, found.cause) == (Outcome.RESTORED, "")
    assert (found.checkpoint, found.image_bytes, found.verdict) == ("web.r1.1", 7, VALID)
    assert (found.restore_seconds, found.cold_start_seconds) == (1.5, None)
    assert found.earlier_cold_start_seconds == 9.0
    assert found.frozen_seconds == 59.0


def test_earlier_cold_start_is_read_from_the_precheck_otherwise() -> None:
    log = Log().done("precheck", "n1", workloads={"web": {"cold_start_seconds": 12}})
    assert log.web().earlier_cold_start_seconds == 12.0
    assert Log().done("precheck", "n1", workloads={}).web().earlier_cold_start_seconds is None


def test_cold_start_says_why() -> None:
    log = saved().decided("start", "cold-start", "the driver changed").done("cold_start", **UP)
    found = log.web()
    assert (found.outcome, found.cause) == (Outcome.COLD_STARTED, "the driver changed")
    assert (found.restore_seconds, found.cold_start_seconds) == (None, 1.5)
    planned = Log().done("stop").done("cold_start", **UP).web(Strategy.COLD_START)
    assert (planned.outcome, planned.cause) == (Outcome.COLD_STARTED, "as planned")


def test_moved_and_not_back_is_no_outcome_but_says_where_it_is() -> None:
    found = saved().ended("partial").web()
    assert found.outcome is None
    assert "web.r1.1" in found.cause
    assert "n1" in found.cause
    found = Log().done("stop").ended("partial").web(Strategy.COLD_START)
    assert found.outcome is None
    assert "launch" in found.cause
    # A start that failed changes nothing about that.
    assert saved().failed("restore", "not_ready").failed("cold_start", "busy").web().outcome is None


def test_untouched_says_why() -> None:
    assert Log().ended("refused").web().cause == "it was never stopped"
    assert Log().web(Strategy.LEAVE).cause == "as planned"
    log = Log().failed("checkpoint", "checkpoint_failed")
    assert (log.web().outcome, log.web().cause) == (Outcome.UNTOUCHED, "it was never stopped")
    log = Log().failed("checkpoint", "workload_gone").decided("save", "leave", "it had ended")
    assert (log.web().outcome, log.web().cause) == (Outcome.UNTOUCHED, "it had ended")
    log = Log().failed("checkpoint", "checkpoint_failed").decided("save", "wait", "no dump")
    log.done("wait", ended="…")
    assert log.web().outcome is Outcome.UNTOUCHED
    assert "ended by itself" in log.web().cause


@pytest.mark.parametrize("verb", ["checkpoint", "stop"])
@pytest.mark.parametrize("code", ["node_unreachable", "connection_lost", "deadline", "interrupted"])
def test_work_of_which_nobody_knows_the_end_is_never_called_untouched(verb: str, code: str) -> None:
    found = Log().failed(verb, code).ended("failed").web()
    assert found.outcome is None
    assert f"not known: cause of {code}" in found.cause


def test_died_while_it_was_saved_is_never_called_untouched() -> None:
    log = Log().failed("checkpoint", "ended_in_dump").decided("save", "stop", "it died")
    for found in (log.web(), log.failed("stop", "busy").web()):
        assert found.outcome is None
        assert "cause of ended_in_dump; its launch is known" in found.cause
    log = Log().failed("checkpoint", "ended_in_dump").done("stop").done("cold_start", **UP)
    assert log.web().outcome is Outcome.COLD_STARTED


def test_quarantine_is_told_until_it_is_lifted() -> None:
    log = Log().failed("quarantine", "busy", "n1")
    assert log.result().node_state == "in-service"
    log = Log().done("quarantine", "n1")
    assert log.result().node_state == "quarantined"
    log.decided("unquarantine", "in service", "validated", "n1")
    assert log.result().node_state == "in-service"


happening = st.one_of(
    st.tuples(st.just("done"), st.sampled_from(list(Verb)), st.just("")),
    st.tuples(
        st.just("failed"),
        st.sampled_from(list(Verb)),
        st.sampled_from(sorted(PitstopError.registry)),
    ),
    st.tuples(st.just("begun"), st.sampled_from(list(Verb)), st.just("")),
    st.tuples(
        st.just("decided"), st.just(Verb.GATE), st.sampled_from(["leave", "cold-start", "wait"])
    ),
    st.tuples(st.just("ended"), st.just(Verb.GATE), st.sampled_from(["done", "partial", "failed"])),
    st.tuples(st.just("resumed"), st.just(Verb.GATE), st.just("")),
)


@given(st.lists(happening, max_size=25), st.sampled_from(list(Strategy)))
def test_any_beginning_of_any_run_has_a_result(
    history: list[tuple[str, Verb, str]], strategy: Strategy
) -> None:
    log = Log()
    results: dict[str, dict[str, Any]] = {
        "checkpoint": SAVED,
        "restore": UP,
        "cold_start": UP,
        "gate": {"verdict": VALID},
        "precheck": {"workloads": {"web": {"cold_start_seconds": 3.0}}},
    }
    back: dict[Verb, bool] = {}
    for what, verb, extra in history:
        subject = "n1" if verb in (Verb.PRECHECK, Verb.QUARANTINE, Verb.MAINTAIN) else "web"
        if what == "done":
            log.done(verb.value, subject, **results.get(verb.value, {}))
            back[verb] = True
        elif what == "failed":
            log.failed(verb.value, extra, subject)
        elif what == "begun":
            log.begun(verb.value, subject)
        elif what == "decided":
            log.decided("t", extra, "c")
        elif what == "ended":
            log.ended(extra)
        else:
            log.add("run.resumed", recover=False)
        result = log.result(strategy)
        [found] = result.workloads
        moved = back.get(Verb.CHECKPOINT) or back.get(Verb.STOP)
        if back.get(Verb.COLD_START):
            assert found.outcome is Outcome.COLD_STARTED
        elif back.get(Verb.RESTORE):
            assert found.outcome is Outcome.RESTORED
        elif moved:
            assert found.outcome is None
        else:
            assert found.outcome in (None, Outcome.UNTOUCHED)
        if found.outcome is not Outcome.RESTORED:
            assert found.cause or found.outcome is Outcome.COLD_STARTED
        # It survives the way to a program that reads it.
        assert RunResult.model_validate_json(result.model_dump_json(by_alias=True)) == result


MOVED: dict[str, Any] = {"to": "n2", "shared": False, "bytes": 7, "seconds": 0.5}


def test_migrated_with_its_measures() -> None:
    log = saved().done("transfer", **MOVED).done("gate", verdict=VALID).done("restore", **UP)
    found = log.web(Strategy.MIGRATE)
    assert (found.outcome, found.node, found.cause) == (Outcome.MIGRATED, "n2", "restored on n2")
    assert (found.transfer_bytes, found.transfer_seconds) == (7, 0.5)
    assert (found.restore_seconds, found.frozen_seconds) == (1.5, 59.0)


def test_cold_start_on_the_target_says_where_and_why() -> None:
    log = saved().failed("transfer", "transfer_failed")
    waits = log.web(Strategy.MIGRATE)
    assert (waits.outcome, waits.node) == (None, None)
    assert "its launch is known" in waits.cause
    log.decided("start", "cold-start", "on n2: it did not come").done("cold_start", **UP)
    found = log.web(Strategy.MIGRATE)
    assert (found.outcome, found.node) == (Outcome.COLD_STARTED, "n2")
    assert (found.cause, found.transfer_bytes) == ("on n2: it did not come", None)


def test_waits_where_its_checkpoint_is() -> None:
    assert saved().web(Strategy.MIGRATE).cause == "waits as checkpoint web.r1.1 on n1"
    there = saved().done("transfer", **MOVED)
    assert there.web(Strategy.MIGRATE).cause == "waits as checkpoint web.r1.1 on n2"
    lost = saved().failed("transfer", "target_lost")
    assert lost.web(Strategy.MIGRATE).cause == "waits as checkpoint web.r1.1 on n1"
    back = lost.done("gate", verdict=VALID).done("restore", **UP).web(Strategy.MIGRATE)
    assert (back.outcome, back.node) == (Outcome.RESTORED, None)


@pytest.mark.parametrize("verb", ["gate", "restore", "cold_start"])
def test_target_that_was_given_up_leaves_the_launch_here(verb: str) -> None:
    log = saved().done("transfer", **MOVED).failed(verb, "target_lost")
    log.decided("start", "cold-start", "n2 was given up").done("cold_start", **UP)
    found = log.web(Strategy.MIGRATE)
    assert (found.outcome, found.node) == (Outcome.COLD_STARTED, None)
