"""Scheduler's jobs: which strategy, by policy, and how each is said to have ended."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pitstop.decide.job_outcome import job_result
from pitstop.decide.jobs import RESERVE, JobFacts, choose_for_job, notes_on
from pitstop.model.errors import DeadlineExceeded
from pitstop.model.event import Event
from pitstop.model.jobs import JobPlan, JobPolicy, JobRule, OnJob, Signal
from pitstop.model.slurm import SlurmSpec
from pitstop.model.verdict import Difference, Verdict
from pitstop.model.words import Judgement, Outcome, Shape, Strategy
from pitstop.steps.job_planning import shape_of_job
from pitstop.steps.saving import checkpoint_id

SIGNAL = Signal(file="/s/{job}")
DRIVER = Verdict((Difference("driver.version", "580", "590", Judgement.INVALID, "it changed"),))


def facts(**changes: Any) -> JobFacts:
    given = {"shape": Shape.SINGLE_GPU, "launched": 1, "requeue": True, "seconds_left": None}
    return JobFacts(**{**given, **changes})


def policy(**changes: Any) -> JobPolicy:
    return JobPolicy.model_validate({"signal": SIGNAL.model_dump(), **changes})


def test_a_job_under_its_launcher_is_saved() -> None:
    assert choose_for_job(facts(), policy()).strategy is Strategy.RESTORE


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"launched": 0}, "pitstop-node launch"),
        ({"launched": 2}, "2 launchers"),
        ({"blockers": ["io_uring at pid 7"]}, "io_uring at pid 7"),
        ({"predicted": DRIVER}, "driver.version: 580 -> 590"),
    ],
)
@pytest.mark.parametrize(
    ("on_job", "strategy"),
    [
        ("wait", Strategy.WAIT),
        ("requeue", Strategy.REQUEUE),
        ("signal", Strategy.APPLICATION),
        ("refuse", Strategy.REFUSE),
    ],
)
def test_what_cannot_be_saved_goes_by_policy(
    changes: dict[str, Any], why: str, on_job: str, strategy: Strategy
) -> None:
    choice = choose_for_job(facts(**changes), policy(not_launched=on_job))
    assert choice.strategy is strategy
    assert why in choice.reason


def test_a_change_that_invalidates_here_is_no_matter_elsewhere() -> None:
    choice = choose_for_job(facts(predicted=DRIVER, elsewhere="n2"), policy())
    assert choice.strategy is Strategy.RESTORE
    assert "driver.version: 580 -> 590" in choice.reason
    assert "n2 fits" in choice.reason


@given(
    st.builds(
        facts,
        shape=st.just(Shape.MULTI_NODE),
        launched=st.integers(0, 4),
        requeue=st.sampled_from([True, False, None]),
        seconds_left=st.none() | st.floats(-10, 1e6),
        elsewhere=st.sampled_from(["", "n2"]),
    ),
    st.sampled_from(list(OnJob)),
    st.sampled_from(["signal", "wait", "refuse"]),
)
def test_no_part_of_a_job_of_several_nodes_is_saved(
    found: JobFacts, not_launched: OnJob, multi_node: str
) -> None:
    choice = choose_for_job(found, policy(not_launched=not_launched, multi_node=multi_node))
    assert choice.strategy in (Strategy.APPLICATION, Strategy.WAIT, Strategy.REFUSE)


@given(st.sampled_from(list(Shape)), st.integers(0, 3), st.sampled_from(list(OnJob)))
def test_what_its_owner_forbids_to_requeue_is_not_requeued(
    shape: Shape, launched: int, on_job: OnJob
) -> None:
    found = facts(shape=shape, launched=launched, requeue=False)
    multi = "refuse" if on_job is OnJob.REQUEUE else on_job.value
    choice = choose_for_job(found, policy(not_launched=on_job, multi_node=multi))
    assert choice.strategy in (Strategy.WAIT, Strategy.REFUSE)


@pytest.mark.parametrize(
    ("left", "strategy"),
    [(None, Strategy.WAIT), (3600.0, Strategy.WAIT), (-5.0, Strategy.WAIT), (3601.0, "refuse")],
)
def test_an_end_is_waited_for_if_it_comes_in_time(left: float | None, strategy: str) -> None:
    found = facts(launched=0, seconds_left=left)
    assert choose_for_job(found, policy(not_launched="wait")).strategy == strategy


def test_a_time_limit_that_comes_too_soon_is_reported() -> None:
    short, long = facts(seconds_left=40.0), facts(seconds_left=RESERVE + 1)
    [note] = notes_on(short, choose_for_job(short, policy()))
    assert "in 40 s" in note
    assert notes_on(long, choose_for_job(long, policy())) == ()
    assert notes_on(facts(), choose_for_job(facts(), policy())) == ()


@pytest.mark.parametrize(
    ("nodes", "gpus", "shape"),
    [
        (("a",), 1, Shape.SINGLE_GPU),
        (("a",), 8, Shape.SINGLE_NODE),
        (("a",), 0, Shape.SINGLE_NODE),
        (("a",), None, Shape.SINGLE_NODE),
        (("a", "b"), 2, Shape.MULTI_NODE),
        (("a", "b"), 0, Shape.MULTI_NODE),
        (("a", "b"), None, Shape.MULTI_NODE),
    ],
)
def test_shape_counts_machines(nodes: tuple[str, ...], gpus: int | None, shape: Shape) -> None:
    assert shape_of_job(nodes, gpus) is shape


def test_the_first_rule_that_matches_counts() -> None:
    spec = SlurmSpec(
        kind="slurm",
        jobs=(
            JobRule(match_name="train-*", match_user="ann", not_launched=OnJob.WAIT),
            JobRule(match_name="train-*", not_launched=OnJob.REQUEUE),
        ),
    )
    assert spec.policy("train-1", "ann").not_launched is OnJob.WAIT
    assert spec.policy("train-1", "bob").not_launched is OnJob.REQUEUE
    assert spec.policy("Train-1", "ann").not_launched is OnJob.REFUSE
    assert type(spec.policy("train-1", "ann")) is JobPolicy


@pytest.mark.parametrize(
    "data",
    [
        {"not_launched": "signal"},
        {"multi_node": "signal"},
        {"multi_node": "requeue"},
        {"signal": {"file": "relative/{job}"}},
        {"signal": {"file": "/s/{host}"}},
        {"signal": {"file": "/s/{job"}},
        {"signal": {"file": "/s/{job!r:>{name}}"}},
        {"signal": {"file": "/s/{job.__class__}"}},
        {"signal": {"file": "/s", "signal": "KILL"}},
    ],
)
def test_a_policy_that_cannot_be(data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobPolicy.model_validate(data)


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True),
    st.integers(1, 99),
)
def test_a_checkpoints_name_is_a_name_whatever_it_is_made_of(
    subject: str, run: str, attempt: int
) -> None:
    """A long workload in a DAG run with a long id had none, and could not be saved."""
    name = checkpoint_id(subject, run, attempt)
    assert len(name) <= 63
    assert name == checkpoint_id(subject, run, attempt)
    assert name != checkpoint_id(subject, run, attempt + 1)


JOB = JobPlan(
    name="job-7",
    key="7",
    number=7,
    title="train",
    user="ann",
    nodes=("n1",),
    gpus=1,
    shape=Shape.SINGLE_GPU,
    strategy=Strategy.RESTORE,
    reason="r",
    policy=JobPolicy(),
    workload="train-7",
)


def done(verb: str, **result: Any) -> Event:
    return event("step.finished", verb, {"seconds": 1.0, "result": result})


def event(kind: Any, verb: str, data: dict[str, Any]) -> Event:
    return Event(
        run="r",
        seq=1,
        time="2026-11-30T10:00:00+00:00",
        kind=kind,
        actor="a",
        subject="job-7",
        verb=verb,
        data=data,
        prev="0" * 64,
        hash="0" * 64,
    )


FAILED = {"final": True, "error": DeadlineExceeded("job-7", "still running").to_json()}
SAVED = done("checkpoint", checkpoint="job-7.r.1", image_bytes=5, generation=1)
QUEUED = done("requeue", requeued=True, state="PENDING")


@pytest.mark.parametrize(
    ("events", "outcome", "cause"),
    [
        ([], Outcome.UNTOUCHED, "never stopped"),
        ([SAVED], None, "waits as checkpoint job-7.r.1"),
        ([SAVED, QUEUED], None, "held in the queue"),
        ([SAVED, QUEUED, done("release", how="restored", node="n2")], Outcome.MIGRATED, "n2"),
        ([SAVED, QUEUED, done("release", how="restored", node="n1")], Outcome.RESTORED, ""),
        (
            [SAVED, QUEUED, done("release", how="cold", node="n2", cause="gate: driver")],
            Outcome.COLD_STARTED,
            "gate: driver",
        ),
        ([SAVED, QUEUED, done("release", how="requeued", state="PENDING")], "requeued", "queue"),
        ([SAVED, QUEUED, done("release", how="ended", state="CANCELLED")], "untouched", "CANC"),
        ([SAVED, done("requeue", requeued=False, state="CANCELLED")], "untouched", "CANCELLED"),
        ([SAVED, done("restore", how="restored", cause="")], Outcome.RESTORED, ""),
        ([done("wait", state="COMPLETED")], Outcome.UNTOUCHED, "COMPLETED"),
        (
            [QUEUED, done("release", how="started", node="n2", nodes=["n2", "n3"])],
            Outcome.REQUEUED,
            "started on n2, n3",
        ),
        (
            [SAVED, QUEUED, done("release", how="ended", state="FAILED", kept="job-7.r.1")],
            None,
            "job-7.r.1 is kept",
        ),
        (
            [event("step.failed", "checkpoint", FAILED)],
            None,
            "not known",
        ),
        (
            [event("decision", "", {"topic": "save", "choice": "leave", "cause": "gone"})],
            Outcome.UNTOUCHED,
            "gone",
        ),
    ],
)
def test_how_a_job_ended(events: list[Event], outcome: Outcome | None, cause: str) -> None:
    found = job_result(JOB, "n1", events)
    assert found.outcome == outcome
    assert cause in found.cause
