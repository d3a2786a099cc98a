"""The sequence with a scheduler's jobs in it: every branch, and what holds in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.decide.attempts import EFFECT_UNKNOWN, WITHOUT_CONTACT
from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import (
    CheckpointFailed,
    ConnectionLost,
    DeadlineExceeded,
    EndedInDump,
    Interrupted,
    MaintenanceFailed,
    NodeUnreachable,
    NotDrained,
    PermanentError,
    PitstopError,
    Refused,
    WorkloadGone,
)
from pitstop.model.jobs import JobPlan, JobPolicy, Signal
from pitstop.model.plan import SchedulerPlan, WorkloadPlan
from pitstop.model.result import RunResult
from pitstop.model.slurm import SlurmSpec
from pitstop.model.words import Outcome, Shape, Strategy, Verb
from pitstop.steps.context import RunContext
from pitstop.steps.runs import create_run
from pitstop.steps.sequence import Sequence as RunSequence
from tests.unit.test_sequence import (
    NODE,
    RESULTS,
    WEB,
    FrameTransport,
    Performer,
    Script,
    make_plan,
    outcomes,
    steps,
)

GONE = {"requeued": False, "state": "CANCELLED"}
JOB_RESULTS: dict[Verb, dict[str, Any]] = {
    Verb.CHECKPOINT: {**RESULTS[Verb.CHECKPOINT], "generation": 1},
    Verb.SIGNAL: {"path": "/ck"},
    Verb.REQUEUE: {"requeued": True, "state": "PENDING"},
    Verb.WAIT: {"state": "COMPLETED"},
    Verb.RELEASE: {"how": "restored", "cause": "", "node": "n2", "ready_seconds": 1.0},
    Verb.RESTORE: {"how": "restored", "cause": "", "ready_seconds": 1.0, "ready": "x"},
}


def job(number: int, strategy: Strategy, not_launched: str = "refuse") -> JobPlan:
    policy = {"not_launched": not_launched, "signal": Signal(file="/ck").model_dump()}
    return JobPlan(
        name=f"job-{number}",
        key=str(number),
        number=number,
        title="t",
        user="u",
        nodes=("n1",),
        gpus=1,
        shape=Shape.MULTI_NODE if strategy is Strategy.APPLICATION else Shape.SINGLE_GPU,
        strategy=strategy,
        reason="as planned",
        policy=JobPolicy.model_validate(policy),
        workload=f"w-{number}" if strategy is Strategy.RESTORE else "",
    )


SAVED, SIGNALLED = job(1, Strategy.RESTORE), job(2, Strategy.APPLICATION)
WAITED, AGAIN = job(3, Strategy.WAIT), job(4, Strategy.REQUEUE)
ALL = (SAVED, SIGNALLED, WAITED, AGAIN)


class JobRuns:
    def __init__(self, home: Path) -> None:
        self.home = home
        self._numbers = count()

    def through(
        self, script: Script, *jobs: JobPlan, workloads: tuple[WorkloadPlan, ...] = (WEB,)
    ) -> tuple[RunResult, Performer, RunContext]:
        run = f"run-{next(self._numbers)}"
        scheduler = SchedulerPlan(
            spec=SlurmSpec(kind="slurm"), node=NODE, claim="nobody", reason="", state="", jobs=jobs
        )
        plan = make_plan(*workloads).model_copy(update={"scheduler": scheduler})
        create_run(self.home, plan, run, "test", "me@here")
        ctx = RunContext(self.home, run, "me@here")
        ctx.node = RemoteNode(NODE, ctx.plan.node_spec, FrameTransport())
        try:
            full: Script = {
                (verb, one.name): dict(result)
                for one in jobs
                for verb, result in JOB_RESULTS.items()
            }
            full[Verb.DRAIN, NODE] = {"claim": "ours"}
            full[Verb.RETURN_TO_SERVICE, NODE] = {"claim": "nobody"}
            performer = Performer(ctx, {**full, **script})
            result = RunSequence(ctx, performer).run()
            check(ctx, performer, jobs)
        finally:
            ctx.close()
        return result, performer, ctx


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRuns]:
    yield JobRuns(tmp_path_factory.mktemp("home"))


def check(ctx: RunContext, performer: Performer, jobs: tuple[JobPlan, ...]) -> None:
    """What holds whatever went wrong."""
    done: dict[tuple[Verb, str], int] = {}
    asked = [(verb, subject) for verb, subject, _ in performer.performed]
    for position, (verb, subject, ok) in enumerate(performer.performed):
        if ok:
            done[verb, subject] = position
        one = next((j for j in jobs if j.name == subject), None)
        if one is None:
            continue
        assert (Verb.DRAIN, NODE) in done, "nothing is done to a job before the node is closed"
        if verb is Verb.REQUEUE:
            for other in jobs:
                waits = (Verb.CHECKPOINT, other.name) in asked[position:]
                assert not waits, "all are saved before the first gives its place up"
        if verb is Verb.REQUEUE and one.strategy is Strategy.RESTORE:
            saved = (Verb.CHECKPOINT, subject) in done
            by_policy = one.policy.not_launched.value in ("requeue", "signal")
            assert saved or by_policy, "no work is thrown away unasked"
        if verb is Verb.RELEASE:
            assert (Verb.REQUEUE, subject) in asked[:position]
        if verb is Verb.RESTORE:
            unknown = code_of(ctx, Verb.CHECKPOINT, subject) in EFFECT_UNKNOWN
            assert (Verb.CHECKPOINT, subject) in done or unknown
            assert (Verb.REQUEUE, subject) not in done, "one that is in the queue is released"
    if (Verb.MAINTAIN, NODE) in asked:
        for one in jobs:
            assert is_off(ctx, one), f"{one.name} was left on the node"
    drained = (Verb.DRAIN, NODE) in asked
    quarantined = (Verb.QUARANTINE, NODE) in asked
    lost = any(code_of(ctx, *step) in WITHOUT_CONTACT for step in asked)
    if drained and not quarantined and not lost:
        assert (Verb.RETURN_TO_SERVICE, NODE) in asked, "what we closed is opened again"
    if not lost:
        for one in jobs:
            if (ctx.result(Verb.REQUEUE, one.name) or GONE)["requeued"]:
                assert (Verb.RELEASE, one.name) in asked, "nobody is left in the queue, held"


def is_off(ctx: RunContext, one: JobPlan) -> bool:
    off = any(ctx.result(verb, one.name) is not None for verb in (Verb.REQUEUE, Verb.WAIT))
    verbs = (Verb.CHECKPOINT, Verb.SIGNAL, Verb.REQUEUE, Verb.WAIT)
    return off or any(code_of(ctx, verb, one.name) == "workload_gone" for verb in verbs)


def code_of(ctx: RunContext, verb: Verb, subject: str) -> str:
    failure = ctx.standing(verb, subject).failure
    return str(failure["code"]) if failure else ""


def test_all_goes_well(runs: JobRuns) -> None:
    result, performer, _ = runs.through({(Verb.RELEASE, "job-2"): started()}, *ALL)
    assert (result.state, result.cause) == ("done", "")
    assert steps(performer) == [
        *("precheck n1", "drain n1", "wait job-3", "drain web", "signal job-2", "checkpoint web"),
        *("checkpoint job-1", "requeue job-2", "requeue job-1", "requeue job-4"),
        *("maintain n1", "validate n1", "gate web", "restore web", "return_to_service web"),
        *("return_to_service n1", "release job-1", "release job-2", "release job-4"),
    ]
    assert outcomes(result) == {
        "web": Outcome.RESTORED,
        "job-1": Outcome.MIGRATED,
        "job-2": Outcome.REQUEUED,
        "job-3": Outcome.UNTOUCHED,
        "job-4": Outcome.MIGRATED,
    }


def started() -> dict[str, Any]:
    return {"how": "started", "node": "n2", "nodes": ["n2", "n3"]}


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ((Verb.WAIT, "job-3"), DeadlineExceeded),
        ((Verb.SIGNAL, "job-2"), DeadlineExceeded),
        ((Verb.DRAIN, NODE), NotDrained),
    ],
)
def test_what_fails_first_costs_nobody_anything(
    runs: JobRuns, step: tuple[Verb, str], error: type[PitstopError]
) -> None:
    result, performer, _ = runs.through({step: error}, *ALL)
    assert result.state == "failed"
    assert set(outcomes(result).values()) == {Outcome.UNTOUCHED}
    assert result.node_state == "in-service"
    verbs = {verb for verb, _, _ in performer.performed}
    assert not verbs & {Verb.CHECKPOINT, Verb.REQUEUE, Verb.STOP, Verb.MAINTAIN}


def test_a_node_that_is_not_empty_in_the_end(runs: JobRuns) -> None:
    result, performer, _ = runs.through({(Verb.MAINTAIN, NODE): NotDrained}, *ALL)
    assert result.state == "failed"
    assert "quarantine n1" not in steps(performer)
    assert outcomes(result)["web"] is Outcome.RESTORED
    assert "release job-1" in steps(performer)


def test_one_that_cannot_be_requeued_comes_back_where_it_is(runs: JobRuns) -> None:
    result, performer, _ = runs.through({(Verb.REQUEUE, "job-1"): PermanentError}, SAVED)
    assert (result.state, outcomes(result)["job-1"]) == ("failed", Outcome.RESTORED)
    assert steps(performer)[-1] == "restore job-1"


def test_failed_maintenance_sends_jobs_elsewhere(runs: JobRuns) -> None:
    result, performer, _ = runs.through({(Verb.MAINTAIN, NODE): MaintenanceFailed}, SAVED)
    assert (result.state, result.node_state) == ("partial", "quarantined")
    assert steps(performer)[-1] == "release job-1"
    assert "return_to_service n1" not in steps(performer)


@pytest.mark.parametrize(
    ("policy", "then", "state"),
    [
        ("refuse", [], "failed"),
        ("wait", ["wait job-1"], "done"),
        ("requeue", ["requeue job-1"], "done"),
        ("signal", ["signal job-1", "requeue job-1"], "done"),
    ],
)
def test_a_failed_checkpoint_goes_by_policy(
    runs: JobRuns, policy: str, then: list[str], state: str
) -> None:
    failing = job(1, Strategy.RESTORE, policy)
    result, performer, _ = runs.through({(Verb.CHECKPOINT, "job-1"): CheckpointFailed}, failing)
    assert result.state == state
    after = steps(performer)[steps(performer).index("checkpoint job-1") + 1 :]
    assert after[: len(then)] == then
    assert ("maintain n1" in after) is (state == "done")


def test_its_owner_ended_it(runs: JobRuns) -> None:
    result, performer, _ = runs.through({(Verb.REQUEUE, "job-1"): GONE}, SAVED)
    assert (result.state, outcomes(result)["job-1"]) == ("done", Outcome.UNTOUCHED)
    assert "release job-1" not in steps(performer)
    result, performer, _ = runs.through({(Verb.CHECKPOINT, "job-1"): WorkloadGone}, SAVED)
    assert (result.state, outcomes(result)["job-1"]) == ("done", Outcome.UNTOUCHED)
    assert "requeue job-1" not in steps(performer)


def test_one_that_ended_by_itself_when_it_was_saved_waits_for_a_person(runs: JobRuns) -> None:
    """Failed, or forgotten by its scheduler: nobody has said that its work may be thrown away."""
    kept = {"requeued": False, "state": "FAILED", "kept": "ck"}
    result, _, _ = runs.through({(Verb.REQUEUE, "job-1"): kept}, SAVED)
    assert (result.state, outcomes(result)["job-1"]) == ("partial", None)
    assert "checkpoint ck is kept" in result.workloads[-1].cause
    ended = {"how": "ended", "state": "FAILED", "kept": "ck"}
    result, _, _ = runs.through({(Verb.RELEASE, "job-1"): ended}, SAVED)
    assert (result.state, outcomes(result)["job-1"]) == ("partial", None)


def test_one_that_died_while_it_was_saved_is_not_called_untouched(runs: JobRuns) -> None:
    result, _, _ = runs.through({(Verb.CHECKPOINT, "job-1"): EndedInDump}, SAVED)
    assert (result.state, outcomes(result)["job-1"]) == ("partial", None)


@pytest.mark.parametrize("error", [DeadlineExceeded, Interrupted])
def test_one_of_which_nobody_knows_whether_it_was_saved_is_asked_for(
    runs: JobRuns, error: type[PitstopError]
) -> None:
    result, performer, _ = runs.through({(Verb.CHECKPOINT, "job-1"): error}, SAVED)
    assert result.state == "failed"
    assert steps(performer)[-1] == "restore job-1"


def test_a_node_that_does_not_come_back_keeps_no_job(runs: JobRuns) -> None:
    script: Script = {
        (Verb.MAINTAIN, NODE): DeadlineExceeded,
        (Verb.ROLLBACK, NODE): NodeUnreachable,
    }
    result, performer, _ = runs.through(script, SAVED)
    assert result.state == "partial"
    assert steps(performer)[-1] == "release job-1"
    assert outcomes(result)["job-1"] is Outcome.MIGRATED


def test_a_release_that_fails_keeps_no_other_down(runs: JobRuns) -> None:
    second = job(5, Strategy.RESTORE)
    result, performer, _ = runs.through({(Verb.RELEASE, "job-1"): PermanentError}, SAVED, second)
    assert result.state == "partial"
    assert "release job-5" in steps(performer)
    assert outcomes(result)["job-5"] is Outcome.MIGRATED


ERRORS = (
    *(Refused, PermanentError, CheckpointFailed, WorkloadGone, ConnectionLost, NotDrained),
    *(DeadlineExceeded, EndedInDump),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    st.lists(
        st.sampled_from(
            [
                *(job(n, s) for n, s in enumerate((Strategy.RESTORE, Strategy.APPLICATION), 1)),
                *(job(n, s) for n, s in enumerate((Strategy.WAIT, Strategy.REQUEUE), 3)),
                *(
                    job(n, Strategy.RESTORE, p)
                    for n, p in enumerate(("wait", "requeue", "signal"), 5)
                ),
            ]
        ),
        max_size=5,
        unique_by=lambda j: j.name,
    ),
    st.data(),
)
def test_whatever_fails(runs: JobRuns, jobs: list[JobPlan], data: st.DataObject) -> None:
    possible = [(verb, one.name) for one in jobs for verb in JOB_RESULTS]
    possible += [(verb, NODE) for verb in (Verb.DRAIN, Verb.MAINTAIN, Verb.RETURN_TO_SERVICE)]
    possible += [(verb, "web") for verb in (Verb.DRAIN, Verb.CHECKPOINT, Verb.RESTORE)]
    failing = data.draw(st.lists(st.sampled_from(possible), max_size=4, unique=True))
    script: Script = {step: data.draw(st.sampled_from(ERRORS)) for step in failing}
    for one in jobs:
        if (Verb.REQUEUE, one.name) not in script and data.draw(st.booleans()):
            script[Verb.REQUEUE, one.name] = GONE
    result, _, _ = runs.through(script, *jobs)
    assert {w.name for w in result.workloads} == {"web", *(one.name for one in jobs)}
    assert Outcome.LOST not in outcomes(result).values()
