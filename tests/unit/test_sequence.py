"""The sequence and all its branches, over a real journal; only the steps' work is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pitstop.decide.attempts import standing
from pitstop.fleet import node as node_module
from pitstop.fleet.node import RemoteNode
from pitstop.fleet.session import Session
from pitstop.fleet.transport import Completed, Conversation, SessionTransport
from pitstop.journal.chain import faults
from pitstop.model.errors import (
    Busy,
    CheckpointFailed,
    ConnectionLost,
    EndedInDump,
    Interrupted,
    InvalidCheckpoint,
    MaintenanceFailed,
    NodeUnreachable,
    NotReady,
    PermanentError,
    PitstopError,
    Refused,
    RestoreFailed,
    TargetLost,
    TransferFailed,
    Unexpected,
    ValidationFailed,
    WorkloadGone,
)
from pitstop.model.plan import Plan, RunbookRef, Target, WorkloadPlan
from pitstop.model.result import RunResult
from pitstop.model.site import Node, Retry, SitePolicy
from pitstop.model.words import Outcome, Shape, Strategy, Verb
from pitstop.model.workload import HttpProbe, Launch, Policy, Ready, Workload
from pitstop.node.frame import Framed, wrap
from pitstop.steps.context import RunContext
from pitstop.steps.execute import execute, perform
from pitstop.steps.leases import Attention
from pitstop.steps.migrating import take_back
from pitstop.steps.runs import create_run, drive
from pitstop.steps.sequence import Sequence as RunSequence

NODE = "n1"
VALID = {"valid": True, "differences": []}
INVALID = {
    "valid": False,
    "differences": [
        {
            "field": "driver.version",
            "saved": "580",
            "present": "590",
            "judgement": "invalid",
            "reason": "the checkpoint is only valid against the saved value",
        }
    ],
}
UP = {
    "ready_seconds": 1.5,
    "ready": "2026-11-30T00:00:59+00:00",
    "earlier_cold_start_seconds": None,
}
RESULTS: dict[Verb, dict[str, Any]] = {
    Verb.CHECKPOINT: {"checkpoint": "ck", "image_bytes": 7, "fingerprint": {}},
    Verb.STOP: {"fingerprint": {}},
    Verb.TRANSFER: {"to": "n2", "shared": False, "bytes": 7, "seconds": 0.5},
    Verb.ROLLBACK: {"steps": [], "valid": True},
    Verb.GATE: {"verdict": VALID},
    Verb.RESTORE: UP,
    Verb.COLD_START: UP,
}
Step = tuple[Verb, str]
Script = dict[Step, PitstopError | type[PitstopError] | dict[str, Any]]


def workload(name: str, strategy: Strategy, policy: str = "abort") -> WorkloadPlan:
    return WorkloadPlan(
        name=name,
        spec=Workload(
            placement={NODE: 1},
            launch=Launch(command=("serve",)),
            ready=Ready(http=HttpProbe(url="http://127.0.0.1:1/")),
            policy=Policy.model_validate({"on_checkpoint_failure": policy}),
        ),
        shape=Shape.SINGLE_GPU,
        strategy=strategy,
        reason="as planned",
        running=strategy is not Strategy.LEAVE,
        fingerprint={},
        predicted=VALID,
        target=Target(node="n2", node_spec=Node(), predicted=VALID)
        if strategy is Strategy.MIGRATE
        else None,
    )


WEB = workload("web", Strategy.RESTORE)
BATCH = workload("batch", Strategy.COLD_START)
IDLE = workload("idle", Strategy.LEAVE)
MOVES = workload("web", Strategy.MIGRATE)


def make_plan(*workloads: WorkloadPlan) -> Plan:
    return Plan(
        site="lab",
        policy=SitePolicy(
            retries=dict.fromkeys((Verb.DRAIN, Verb.CHECKPOINT), Retry(count=1, delay=0))
        ),
        title="t",
        reason="",
        node=NODE,
        node_spec=Node(engine=("engine",), state_dir="/state"),
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
        workloads=workloads or (WEB, BATCH, IDLE),
        go=True,
    )


class FrameTransport(SessionTransport):
    """A node that answers what it is told to, and remembers what it was asked."""

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answer = answer or (lambda _request: {})

    def run(self, argv: Sequence[str], _stdin: bytes, _timeout: float) -> Completed:
        raise AssertionError(f"not over the session: {argv}")

    def open(self, argv: Sequence[str], _timeout: float) -> Conversation:
        assert argv[-2:] == ["rpc", "--session"]
        return FrameConversation(self)

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request)
        return {"result": self._answer(request)}

    def close(self) -> None:
        pass


class FrameConversation(Conversation):
    """A session with that node."""

    def __init__(self, node: FrameTransport) -> None:
        self._node = node

    @property
    def stderr(self) -> bytes:
        return b""

    def over(self) -> bool:
        return False

    def exchange(self, data: bytes, enough: Callable[[bytes], bool], _timeout: float) -> None:
        asked = Framed(None, len(data))
        assert asked.feed(data)
        request = asked.message()
        assert request is not None
        assert enough(wrap(asked.nonce, self._node.reply(request)))

    def close(self) -> None:
        pass


class Killed(BaseException):
    """The controller dies here."""


class Performer:
    """Performs steps as `execute` does, with made-up work.

    Attributes:
        performed: what was really performed, with how it went; not what was only recalled.
        kill_at: the number of the step during which the controller is killed.
    """

    def __init__(self, ctx: RunContext, script: Script, kill_at: int = -1) -> None:
        self.ctx = ctx
        self.script = script
        self.performed: list[tuple[Verb, str, bool]] = []
        self.kill_at = kill_at

    def __call__(self, verb: Verb, subject: str) -> dict[str, Any]:
        found = self.ctx.standing(verb, subject)
        if found.result is not None:
            return found.result
        if found.failure is not None:
            raise PitstopError.from_json(found.failure)
        journal, actor = self.ctx.journal, self.ctx.actor
        journal.append(self.ctx.run, "step.started", actor, subject, verb.value, found.attempt)
        if len(self.performed) == self.kill_at:
            raise Killed
        outcome = self.script.get((verb, subject), RESULTS.get(verb, {"ok": True}))
        if isinstance(outcome, type):
            outcome = outcome(subject, f"{verb.value} did not go well")
        failed = isinstance(outcome, PitstopError)
        self.performed.append((verb, subject, not failed))
        if isinstance(outcome, PitstopError):
            data: dict[str, Any] = {"error": outcome.to_json(), "final": True}
        else:
            data = {"seconds": 0.0, "result": outcome}
        kind = "step.failed" if failed else "step.finished"
        journal.append(
            self.ctx.run,
            kind,  # type: ignore[arg-type]
            actor,
            subject,
            verb.value,
            found.attempt,
            data,
        )
        if isinstance(outcome, PitstopError):
            raise outcome
        return outcome


class Runs:
    """Makes runs in one journal, and goes through them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._numbers = count()
        self._open: list[RunContext] = []

    def new(self, *workloads: WorkloadPlan) -> RunContext:
        run = f"run-{next(self._numbers)}"
        create_run(self.home, make_plan(*workloads), run, "test", "me@here")
        return self.open(run)

    def open(self, run: str) -> RunContext:
        ctx = RunContext(self.home, run, "me@here")
        ctx.node = RemoteNode(NODE, ctx.plan.node_spec, FrameTransport())
        self._open.append(ctx)
        return ctx

    def through(
        self, script: Script, *workloads: WorkloadPlan
    ) -> tuple[RunResult, Performer, RunContext]:
        """Make a run, go through it, and check what holds for every run."""
        ctx = self.new(*workloads)
        performer = Performer(ctx, script)
        result = RunSequence(ctx, performer).run()
        check(ctx, performer.performed, result)
        return result, performer, ctx

    def close(self) -> None:
        for ctx in self._open:
            ctx.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    made = Runs(tmp_path_factory.mktemp("home"))
    yield made
    made.close()


def check(ctx: RunContext, performed: list[tuple[Verb, str, bool]], result: RunResult) -> None:
    """Check the invariants that hold whatever went wrong."""
    done: set[Step] = set()
    asked: set[Step] = set()
    concerned = {w.name for w in ctx.plan.workloads if w.strategy is not Strategy.LEAVE}
    moving = (Verb.CHECKPOINT, Verb.STOP)
    for verb, subject, ok in performed:
        assert (verb, subject) not in asked, "no step is performed twice"
        moved = any((v, subject) in done for v in moving)
        back = any((v, subject) in done for v in (Verb.RESTORE, Verb.COLD_START))
        if verb in (*moving, Verb.WAIT):
            died_before = {name for name in concerned if died(ctx, Verb.DRAIN, name)}
            drained = {name for name in concerned if (Verb.DRAIN, name) in done}
            assert drained | died_before == concerned, "drained first"
        if verb is Verb.MAINTAIN:
            for name in concerned:
                failure = ctx.standing(Verb.CHECKPOINT, name).failure
                gone = failure is not None and failure["code"] == "workload_gone"
                saved = any((v, name) in done for v in (*moving, Verb.WAIT))
                assert saved or gone, "nothing is left on the node"
        if verb is Verb.RESTORE:
            assert (Verb.CHECKPOINT, subject) in done
            gate = ctx.result(Verb.GATE, subject)
            assert gate is not None
            assert gate["verdict"]["valid"], "an invalid checkpoint is never restored"
        if verb in (Verb.RESTORE, Verb.COLD_START):
            dead = died(ctx, Verb.CHECKPOINT, subject) or died(ctx, Verb.DRAIN, subject)
            assert moved or dead, "never started while it was not moved"
            assert not back, "never two copies"
        if verb is Verb.RETURN_TO_SERVICE:
            assert (Verb.DRAIN, subject) in asked, "only what was reached"
            assert back or not moved, "nobody is let in to what does not run"
        if (verb, subject) == (Verb.QUARANTINE, NODE):
            assert {(Verb.MAINTAIN, NODE), (Verb.VALIDATE, NODE)} & (asked - done)
        assert subject not in ("idle",), "what does not run is left"
        asked.add((verb, subject))
        if ok:
            done.add((verb, subject))
    if result.state in ("done", "partial"):
        failed_maintenance = [
            event
            for event in ctx.events()
            if event.kind == "step.failed"
            and event.verb in (Verb.MAINTAIN, Verb.VALIDATE)
            and event.data["error"]["code"] not in ("connection_lost", "node_unreachable")
        ]
        assert ((Verb.QUARANTINE, NODE) in asked) is bool(failed_maintenance)
    events = ctx.events()
    assert faults(events) == []
    assert events[-1].kind == "run.ended"
    assert events[-1].data["state"] == result.state
    assert result.state == "done" or result.cause


def died(ctx: RunContext, verb: Verb, name: str) -> bool:
    failure = ctx.standing(verb, name).failure
    return failure is not None and failure["code"] == "ended_in_dump"


def outcomes(result: RunResult) -> dict[str, Outcome | None]:
    return {w.name: w.outcome for w in result.workloads}


def cause(result: RunResult, name: str = "web") -> str:
    return next(w.cause for w in result.workloads if w.name == name)


def steps(performer: Performer) -> list[str]:
    return [f"{verb.value} {subject}" for verb, subject, _ in performer.performed]


def decisions(ctx: RunContext) -> list[tuple[str, str, str]]:
    return [
        (e.subject, str(e.data["topic"]), str(e.data["choice"]))
        for e in ctx.events()
        if e.kind == "decision"
    ]


BEFORE = ["precheck n1", "drain web", "drain batch", "checkpoint web", "stop batch"]
BACK_WEB = ["gate web", "restore web"]
BACK_BATCH = ["gate batch", "cold_start batch"]
ADMIT = ["return_to_service web", "return_to_service batch"]
UNDO = ["rollback n1", "quarantine n1"]

ALL_BACK = {"web": Outcome.RESTORED, "batch": Outcome.COLD_STARTED, "idle": Outcome.UNTOUCHED}
NONE_MOVED = dict.fromkeys(ALL_BACK, Outcome.UNTOUCHED)


def test_all_goes_well(runs: Runs) -> None:
    result, performer, _ = runs.through({})
    assert (result.state, result.node_state, result.cause) == ("done", "in-service", "")
    assert outcomes(result) == ALL_BACK
    assert steps(performer) == [
        *(*BEFORE, "maintain n1", "validate n1"),
        *(*BACK_WEB, *BACK_BATCH, *ADMIT),
    ]


ANY = [Refused, Busy, PermanentError, Unexpected]


@pytest.mark.parametrize("error", ANY)
def test_precheck_fails(runs: Runs, error: type[PitstopError]) -> None:
    result, performer, _ = runs.through({(Verb.PRECHECK, NODE): error})
    assert result.state == ("refused" if error is Refused else "failed")
    assert steps(performer) == ["precheck n1"]
    assert outcomes(result) == NONE_MOVED


@pytest.mark.parametrize("error", ANY)
@pytest.mark.parametrize("subject", ["web", "batch"])
def test_drain_fails(runs: Runs, error: type[PitstopError], subject: str) -> None:
    """Admission opens again for all that were reached, and for no others."""
    result, performer, _ = runs.through({(Verb.DRAIN, subject): error})
    reached = 1 if subject == "web" else 2
    assert steps(performer) == [*BEFORE[: 1 + reached], *ADMIT[:reached]]
    assert (result.state, outcomes(result)) == ("failed", NONE_MOVED)
    assert "drain did not go well" in result.cause


@pytest.mark.parametrize("error", [Refused, Busy, CheckpointFailed, PermanentError, Unexpected])
def test_checkpoint_fails_and_the_policy_is_to_give_up(
    runs: Runs, error: type[PitstopError]
) -> None:
    result, performer, ctx = runs.through({(Verb.CHECKPOINT, "web"): error})
    assert steps(performer) == [*BEFORE[:4], *ADMIT]
    assert (result.state, outcomes(result)) == ("failed", NONE_MOVED)
    assert ("web", "save", "abort") in decisions(ctx)


def test_what_was_moved_before_the_run_gave_up_comes_back(runs: Runs) -> None:
    second = workload("second", Strategy.RESTORE)
    script: Script = {(Verb.CHECKPOINT, "second"): CheckpointFailed}
    result, performer, _ = runs.through(script, WEB, BATCH, second)
    assert "maintain n1" not in steps(performer)
    assert steps(performer)[-7:] == [
        *(*BACK_WEB, *BACK_BATCH, *ADMIT),
        "return_to_service second",
    ]
    assert result.state == "failed"
    assert outcomes(result) == {
        "web": Outcome.RESTORED,
        "batch": Outcome.COLD_STARTED,
        "second": Outcome.UNTOUCHED,
    }


def test_checkpoint_fails_and_the_policy_is_a_cold_start(runs: Runs) -> None:
    web = workload("web", Strategy.RESTORE, "cold-start")
    script: Script = {(Verb.CHECKPOINT, "web"): CheckpointFailed}
    result, performer, _ = runs.through(script, web)
    assert steps(performer) == [
        *("precheck n1", "drain web", "checkpoint web", "stop web"),
        *("maintain n1", "validate n1", "gate web", "cold_start web", "return_to_service web"),
    ]
    assert (result.state, outcomes(result)) == ("done", {"web": Outcome.COLD_STARTED})
    assert "not saved" in cause(result)


def test_refusal_to_save_is_no_failure_to_save(runs: Runs) -> None:
    """As of a workload that is no longer drained: not even one that may start cold is stopped."""
    web = workload("web", Strategy.RESTORE, "cold-start")
    result, performer, _ = runs.through({(Verb.CHECKPOINT, "web"): Refused}, web)
    assert steps(performer)[-2:] == ["checkpoint web", "return_to_service web"]
    assert (result.state, outcomes(result)) == ("failed", {"web": Outcome.UNTOUCHED})


def test_checkpoint_fails_and_the_policy_is_to_wait(runs: Runs) -> None:
    web = workload("web", Strategy.RESTORE, "wait")
    script: Script = {(Verb.CHECKPOINT, "web"): CheckpointFailed}
    result, performer, _ = runs.through(script, web)
    assert steps(performer)[2:] == ["checkpoint web", "wait web", "maintain n1", "validate n1"]
    assert (result.state, outcomes(result)) == ("done", {"web": Outcome.UNTOUCHED})
    assert "ended by itself" in cause(result)

    script[Verb.WAIT, "web"] = Busy
    result, performer, _ = runs.through(script, web)
    assert steps(performer)[2:] == ["checkpoint web", "wait web", "return_to_service web"]
    assert (result.state, outcomes(result)) == ("failed", {"web": Outcome.UNTOUCHED})


def test_workload_that_had_ended_by_itself_is_left(runs: Runs) -> None:
    result, performer, _ = runs.through({(Verb.CHECKPOINT, "web"): WorkloadGone})
    assert "restore web" not in steps(performer)
    assert "cold_start web" not in steps(performer)
    assert "return_to_service web" not in steps(performer)
    assert "maintain n1" in steps(performer)
    assert (result.state, outcomes(result)["web"]) == ("done", Outcome.UNTOUCHED)
    assert "ended by itself" in cause(result)


def test_workload_that_died_in_the_dump_starts_cold(runs: Runs) -> None:
    result, performer, _ = runs.through({(Verb.CHECKPOINT, "web"): EndedInDump})
    assert "stop web" in steps(performer)
    assert "restore web" not in steps(performer)
    assert (result.state, outcomes(result)["web"]) == ("done", Outcome.COLD_STARTED)


def test_workload_that_went_down_before_it_was_saved_starts_cold(runs: Runs) -> None:
    """Its node lost power in the drain: it is proven gone, and brought back after the rest."""
    result, performer, ctx = runs.through({(Verb.DRAIN, "web"): EndedInDump})
    assert steps(performer) == [
        *("precheck n1", "drain web", "drain batch", "stop web", "stop batch"),
        *("maintain n1", "validate n1", "gate web", "cold_start web", *BACK_BATCH, *ADMIT),
    ]
    assert (result.state, outcomes(result)["web"]) == ("done", Outcome.COLD_STARTED)
    assert ("web", "save", "stop") in decisions(ctx)


def test_workload_that_went_down_is_brought_back_when_the_run_is_given_up(runs: Runs) -> None:
    script: Script = {(Verb.DRAIN, "web"): EndedInDump, (Verb.DRAIN, "batch"): Refused}
    result, performer, _ = runs.through(script)
    assert "maintain n1" not in steps(performer)
    assert "cold_start web" in steps(performer)
    assert (result.state, outcomes(result)["web"]) == ("failed", Outcome.COLD_STARTED)


@pytest.mark.parametrize("error", [Refused, Busy, PermanentError, Unexpected])
def test_stop_fails(runs: Runs, error: type[PitstopError]) -> None:
    result, performer, _ = runs.through({(Verb.STOP, "batch"): error})
    assert steps(performer) == [*BEFORE, *BACK_WEB, *ADMIT]
    assert result.state == "failed"
    assert outcomes(result) == {**NONE_MOVED, "web": Outcome.RESTORED}


@pytest.mark.parametrize("error", [*ANY, MaintenanceFailed, ValidationFailed])
@pytest.mark.parametrize("verb", [Verb.MAINTAIN, Verb.VALIDATE])
def test_maintenance_or_validation_fails(runs: Runs, verb: Verb, error: type[PitstopError]) -> None:
    result, performer, ctx = runs.through({(verb, NODE): error})
    last = ["maintain n1", "validate n1"][: 1 if verb is Verb.MAINTAIN else 2]
    assert steps(performer) == [*BEFORE, *last, *UNDO, *BACK_WEB, *BACK_BATCH, *ADMIT]
    assert (result.state, result.node_state) == ("partial", "quarantined")
    assert outcomes(result) == ALL_BACK
    assert (NODE, "quarantine", "quarantine") in decisions(ctx)


@pytest.mark.parametrize("rollback", [{"steps": [], "valid": False}, Busy, Unexpected])
def test_node_that_could_not_be_rolled_back_gets_no_workload(
    runs: Runs, rollback: dict[str, Any] | type[PitstopError]
) -> None:
    script: Script = {(Verb.MAINTAIN, NODE): MaintenanceFailed, (Verb.ROLLBACK, NODE): rollback}
    result, performer, _ = runs.through(script)
    assert steps(performer) == [*BEFORE, "maintain n1", *UNDO]
    assert (result.state, result.node_state) == ("partial", "quarantined")
    assert outcomes(result) == {"web": None, "batch": None, "idle": Outcome.UNTOUCHED}
    assert "ck" in cause(result)


def test_quarantine_that_cannot_be_set_is_said_and_nothing_brought_back(runs: Runs) -> None:
    script: Script = {(Verb.VALIDATE, NODE): ValidationFailed, (Verb.QUARANTINE, NODE): Busy}
    result, performer, _ = runs.through(script)
    assert steps(performer)[-2:] == UNDO
    assert result.state == "partial"
    assert "no quarantine could be set" in result.cause
    assert outcomes(result)["web"] is None


@pytest.mark.parametrize("error", ANY)
def test_gate_fails_and_a_checkpoint_is_kept_for_a_person(
    runs: Runs, error: type[PitstopError]
) -> None:
    result, performer, ctx = runs.through({(Verb.GATE, "web"): error})
    assert "restore web" not in steps(performer)
    assert "cold_start web" not in steps(performer)
    assert "return_to_service web" not in steps(performer)
    assert "return_to_service batch" in steps(performer)
    assert result.state == "partial"
    assert outcomes(result) == {**ALL_BACK, "web": None}
    assert ("web", "start", "wait for a person") in decisions(ctx)


@pytest.mark.parametrize("error", ANY)
def test_gate_fails_and_what_was_not_saved_starts_cold_all_the_same(
    runs: Runs, error: type[PitstopError]
) -> None:
    result, _, _ = runs.through({(Verb.GATE, "batch"): error})
    assert (result.state, outcomes(result)) == ("done", ALL_BACK)


@pytest.mark.parametrize("error", [ConnectionLost, NodeUnreachable])
@pytest.mark.parametrize(
    ("verb", "subject"),
    [
        (Verb.DRAIN, "web"),
        (Verb.CHECKPOINT, "web"),
        (Verb.STOP, "batch"),
        (Verb.MAINTAIN, NODE),
        (Verb.VALIDATE, NODE),
        (Verb.GATE, "web"),
        (Verb.RESTORE, "web"),
        (Verb.COLD_START, "batch"),
        (Verb.RETURN_TO_SERVICE, "web"),
    ],
)
def test_without_contact_no_branch_is_taken_and_the_run_goes_on_later(
    runs: Runs, verb: Verb, subject: str, error: type[PitstopError]
) -> None:
    """What became of the step is unknown, so nothing may follow from it."""
    result, performer, ctx = runs.through({(verb, subject): error})
    assert result.state == "partial"
    assert steps(performer)[-1] == f"{verb.value} {subject}"
    assert (NODE, "quarantine", "quarantine") not in decisions(ctx)
    result, performer, _ = recover(ctx, {})
    assert steps(performer)[0] != "precheck n1"
    assert (result.state, outcomes(result)) == ("done", ALL_BACK)


def test_gate_says_no(runs: Runs) -> None:
    result, performer, ctx = runs.through({(Verb.GATE, "web"): {"verdict": INVALID}})
    assert "restore web" not in steps(performer)
    assert (result.state, outcomes(result)["web"]) == ("done", Outcome.COLD_STARTED)
    assert "driver.version: 580 -> 590" in cause(result)
    [decision] = [e for e in ctx.events() if e.kind == "decision" and e.subject == "web"]
    assert decision.data["verdict"] == INVALID


@pytest.mark.parametrize("error", [*ANY, RestoreFailed, NotReady, InvalidCheckpoint])
def test_restore_fails(runs: Runs, error: type[PitstopError]) -> None:
    result, performer, _ = runs.through({(Verb.RESTORE, "web"): error})
    assert steps(performer)[7:10] == ["gate web", "restore web", "cold_start web"]
    assert (result.state, outcomes(result)["web"]) == ("done", Outcome.COLD_STARTED)
    assert "restore did not go well" in cause(result)


@pytest.mark.parametrize("error", ANY)
def test_nothing_brings_it_back(runs: Runs, error: type[PitstopError]) -> None:
    script: Script = {(Verb.RESTORE, "web"): RestoreFailed, (Verb.COLD_START, "web"): error}
    result, performer, _ = runs.through(script)
    assert "return_to_service web" not in steps(performer)
    assert "return_to_service batch" in steps(performer)
    assert (result.state, outcomes(result)["web"]) == ("partial", None)
    assert "ck" in cause(result)


@pytest.mark.parametrize("error", ANY)
def test_admission_does_not_open(runs: Runs, error: type[PitstopError]) -> None:
    result, performer, ctx = runs.through({(Verb.RETURN_TO_SERVICE, "web"): error})
    assert steps(performer)[-2:] == ADMIT
    assert (result.state, outcomes(result)) == ("partial", ALL_BACK)
    assert ("web", "admission", "wait for a person") in decisions(ctx)


def test_nothing_to_move(runs: Runs) -> None:
    result, performer, _ = runs.through({}, IDLE)
    assert steps(performer) == ["precheck n1", "maintain n1", "validate n1"]
    assert result.state == "done"


# --- killed and taken up again ---

SCENARIOS: dict[str, Script] = {
    "well": {},
    "drain fails": {(Verb.DRAIN, "batch"): Busy},
    "maintenance fails": {(Verb.MAINTAIN, NODE): MaintenanceFailed},
    "not rolled back": {
        (Verb.VALIDATE, NODE): ValidationFailed,
        (Verb.ROLLBACK, NODE): {"steps": [], "valid": False},
    },
    "restore fails": {(Verb.RESTORE, "web"): NotReady},
    "nothing starts": {(Verb.RESTORE, "web"): NotReady, (Verb.COLD_START, "web"): NotReady},
}


def what_happened(ctx: RunContext) -> list[tuple[Any, ...]]:
    """All that was decided, done and failed, in order; starts and resumptions aside."""
    return [
        (e.kind, e.subject, e.verb, e.attempt, e.data)
        for e in ctx.events()
        if e.kind in ("step.finished", "step.failed", "decision", "run.ended")
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_in_any_step_it_takes_the_same_branches(runs: Runs, name: str) -> None:
    script = SCENARIOS[name]
    result, performer, ctx = runs.through(script)
    expected = what_happened(ctx)
    for number in range(len(performer.performed)):
        cut = runs.new()
        first = Performer(cut, script, kill_at=number)
        with pytest.raises(Killed):
            RunSequence(cut, first).run()
        again = runs.open(cut.run)
        second = Performer(again, script)
        resumed = RunSequence(again, second).run()
        assert first.performed + second.performed == performer.performed
        assert what_happened(again) == expected
        assert resumed == result.model_copy(update={"run": cut.run, "workloads": resumed.workloads})
        assert outcomes(resumed) == outcomes(result)
        check(again, first.performed + second.performed, resumed)


def test_replay_of_an_ended_run_performs_nothing(runs: Runs) -> None:
    for script in SCENARIOS.values():
        _, _, ctx = runs.through(script)
        before = what_happened(ctx)
        again = Performer(ctx, {})
        RunSequence(ctx, again).run()
        assert again.performed == []
        # The same end once more, and nothing else.
        assert what_happened(ctx)[:-1] == before


@pytest.mark.parametrize(
    ("script", "state"), [({}, "done"), ({(Verb.PRECHECK, NODE): Refused}, "refused")]
)
def test_run_that_has_ended_for_good_is_not_driven_again(
    runs: Runs, script: Script, state: str
) -> None:
    result, _, ctx = runs.through(script)
    assert result.state == state
    again = Performer(ctx, {})
    with pytest.raises(Refused, match=f"it has ended: {state}"):
        drive(ctx, again)
    assert again.performed == []


# --- recovery ---


def recover(
    ctx: RunContext, script: Script | None = None
) -> tuple[RunResult, Performer, list[dict[str, Any]]]:
    """Recover a run as a front end does; return also what the node was asked directly."""
    transport = FrameTransport()
    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, transport)
    performer = Performer(ctx, script or {})
    result = drive(ctx, performer)
    assert faults(ctx.events()) == []
    return result, performer, transport.asked


def test_recovery_brings_back_what_waited(runs: Runs) -> None:
    _, _, ctx = runs.through({(Verb.GATE, "web"): Busy})
    result, performer, asked = recover(ctx)
    assert (result.state, outcomes(result)) == ("done", ALL_BACK)
    assert steps(performer)[0] == "validate n1"
    again = steps(performer)
    assert [s for s in again if s.split()[0] in ("restore", "cold_start")] == ["restore web"]
    assert [s for s in again if s.startswith("return")] == ["return_to_service web"]
    assert [a["call"] for a in asked] == ["lease.end"]
    for verb in (Verb.DRAIN, Verb.CHECKPOINT, Verb.STOP, Verb.MAINTAIN):
        assert verb.value not in " ".join(again)


def test_recovery_lifts_the_quarantine_of_a_node_that_is_fit_again(runs: Runs) -> None:
    _, _, ctx = runs.through({(Verb.MAINTAIN, NODE): MaintenanceFailed})
    result, _, asked = recover(ctx)
    assert (result.state, result.node_state) == ("done", "in-service")
    asked_for = [(a["call"], a["arguments"]) for a in asked]
    assert asked_for == [("unquarantine", {"run": ctx.run}), ("lease.end", {"run": ctx.run})]
    assert outcomes(result) == ALL_BACK


def test_recovery_of_a_node_that_is_still_not_fit_touches_nothing(runs: Runs) -> None:
    script: Script = {
        (Verb.MAINTAIN, NODE): MaintenanceFailed,
        (Verb.ROLLBACK, NODE): {"steps": [], "valid": False},
    }
    _, _, ctx = runs.through(script)
    for _ in range(2):
        result, performer, asked = recover(ctx, {(Verb.VALIDATE, NODE): ValidationFailed})
        assert steps(performer) == ["validate n1"]
        assert (result.state, result.node_state) == ("partial", "quarantined")
        assert [a["call"] for a in asked] == ["lease.end"]
        assert outcomes(result)["web"] is None
    result, performer, asked = recover(ctx)
    assert (result.state, result.node_state) == ("done", "in-service")
    assert outcomes(result) == ALL_BACK
    # Attempts go on counting: the node knows each by its number.
    numbers = [e.attempt for e in ctx.events() if (e.kind, e.verb) == ("step.started", "validate")]
    assert numbers == [1, 2, 3]


def test_recovery_that_is_cut_off_is_a_recovery_again(runs: Runs) -> None:
    _, _, ctx = runs.through({(Verb.GATE, "web"): Busy})
    performer = Performer(ctx, {}, kill_at=1)
    with pytest.raises(Killed):
        drive(ctx, performer)
    again = runs.open(ctx.run)
    result, second, _ = recover(again)
    assert (result.state, outcomes(result)) == ("done", ALL_BACK)
    assert "drain" not in " ".join(steps(second))


def test_recovery_does_not_start_what_is_back(runs: Runs) -> None:
    """Not even when the gate would say no by now: it runs."""
    _, _, ctx = runs.through({(Verb.MAINTAIN, NODE): MaintenanceFailed})
    result, performer, _ = recover(ctx, {(Verb.GATE, "web"): {"verdict": INVALID}})
    assert "cold_start web" not in steps(performer)
    assert (result.state, outcomes(result)) == ("done", ALL_BACK)


# --- what must wait for a person ---


def test_branch_that_was_not_taken_is_not_recorded(runs: Runs) -> None:
    web = workload("web", Strategy.RESTORE, "cold-start")
    _, performer, ctx = runs.through({(Verb.CHECKPOINT, "web"): Refused}, web)
    assert "stop web" not in steps(performer)
    assert ("web", "save", "cold-start") not in decisions(ctx)


def test_workload_that_died_in_the_dump_and_could_not_be_moved_is_not_given_up(
    runs: Runs,
) -> None:
    result, performer, _ = runs.through(
        {(Verb.CHECKPOINT, "web"): EndedInDump, (Verb.STOP, "web"): Busy}
    )
    assert "cold_start web" in steps(performer)
    assert outcomes(result)["web"] is Outcome.COLD_STARTED


def test_admission_that_stays_closed_after_giving_up_waits_for_a_person(runs: Runs) -> None:
    script: Script = {(Verb.DRAIN, "web"): Busy, (Verb.RETURN_TO_SERVICE, "web"): Busy}
    result, _, _ = runs.through(script)
    assert result.state == "partial"


def test_recovery_after_giving_up_does_not_claim_a_maintenance(runs: Runs) -> None:
    """The node was never maintained, so it is neither validated nor is the run done."""
    script: Script = {(Verb.STOP, "batch"): Busy, (Verb.GATE, "web"): Busy}
    result, _, ctx = runs.through(script)
    assert result.state == "partial"
    result, performer, _ = recover(ctx, {(Verb.VALIDATE, NODE): ValidationFailed})
    assert "restore web" in steps(performer)
    assert "validate n1" not in steps(performer)
    assert result.state == "failed"


# --- one step, as it is really executed ---


def started_ids(transport: FrameTransport) -> list[str]:
    return [a["arguments"]["id"] for a in transport.asked if a["call"] == "op.start"]


def test_step_that_lost_contact_asks_again_for_the_same_work(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "CONTACT_GRACE", 0.0)
    ctx = runs.new()
    lost = iter([True, False])

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["call"] == "op.start" and next(lost):
            raise ConnectionLost(NODE, "cut")
        return {"state": "done", "result": {"waited_seconds": 0.0}}

    transport = FrameTransport(answer)
    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, transport)
    assert perform(ctx, Verb.DRAIN, "web") == {"waited_seconds": 0.0}
    assert started_ids(transport) == [f"{ctx.run}.web.drain.1"] * 2
    found = standing(ctx.events(), Verb.DRAIN, "web")
    assert (found.failures, found.result) == (1, {"waited_seconds": 0.0})


def test_step_that_failed_on_the_node_is_tried_as_new_work(runs: Runs) -> None:
    ctx = runs.new()
    error = Busy("web", "somebody else").to_json()
    answers = iter([{"state": "failed", "error": error}, {"state": "done", "result": {"ok": 1}}])
    transport = FrameTransport(lambda _request: next(answers))
    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, transport)
    assert perform(ctx, Verb.DRAIN, "web") == {"ok": 1}
    assert started_ids(transport) == [f"{ctx.run}.web.drain.{n}" for n in (1, 2)]


def test_finished_and_failed_steps_are_not_executed_again(runs: Runs) -> None:
    ctx = runs.new()
    transport = FrameTransport(lambda _request: {"state": "done", "result": {"ok": 1}})
    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, transport)
    assert execute(ctx, Verb.DRAIN, "web") == execute(ctx, Verb.DRAIN, "web") == {"ok": 1}
    assert len(transport.asked) == 1
    refusal = {"state": "failed", "error": Refused("batch", "no").to_json()}
    transport = FrameTransport(lambda _request: refusal)
    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, transport)
    for _ in range(2):
        with pytest.raises(Refused, match="no"):
            perform(ctx, Verb.DRAIN, "batch")
    assert len(transport.asked) == 1


LOCKED_TOO_LATE = CheckpointFailed(
    "web", "CUDA lock of pid 7: CUDA_ERROR_NOT_READY: This [cuda-busy]", "the workload runs on"
).judged("cuda-busy", True)
WITH_RING = CheckpointFailed("web", "Unknown shit 600 (anon_inode:[io_uring]) [io-uring]").judged(
    "io-uring", False
)
UNKNOWN = CheckpointFailed("web", "something new")
SAVED = RESULTS[Verb.CHECKPOINT]


@pytest.mark.parametrize(
    ("answers", "attempts", "after"),
    [
        ([LOCKED_TOO_LATE, SAVED], 2, "maintain n1"),
        ([LOCKED_TOO_LATE, LOCKED_TOO_LATE], 2, "stop web"),
        ([LOCKED_TOO_LATE, WITH_RING], 2, "stop web"),
        ([WITH_RING], 1, "stop web"),
        ([UNKNOWN], 1, "stop web"),
    ],
)
def test_what_failed_says_whether_a_checkpoint_is_tried_again(
    runs: Runs, answers: list[CheckpointFailed | dict[str, Any]], attempts: int, after: str
) -> None:
    ctx = runs.new(workload("web", Strategy.RESTORE, "cold-start"))
    left = iter(answers)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["call"] != "op.start":
            return {"state": "unknown"}
        came = next(left)
        if isinstance(came, CheckpointFailed):
            return {"state": "failed", "error": came.to_json()}
        return {"state": "done", "result": came}

    transport = FrameTransport(answer)
    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, transport)
    scripted = Performer(ctx, {})

    def performer(verb: Verb, subject: str) -> dict[str, Any]:
        return perform(ctx, verb, subject) if verb is Verb.CHECKPOINT else scripted(verb, subject)

    result = RunSequence(ctx, performer).run()
    assert started_ids(transport) == [f"{ctx.run}.web.checkpoint.{n + 1}" for n in range(attempts)]
    assert result.state == "done"
    assert steps(scripted)[2] == after
    last = answers[-1]
    if isinstance(last, CheckpointFailed):
        # With no try left its policy is followed, and the record names what failed.
        assert last.cause in cause(result)
        assert last.failure in cause(result)
        failures = [e.data["error"] for e in ctx.events() if e.kind == "step.failed"]
        assert [f.get("failure") for f in failures] == [
            a.failure or None for a in answers if isinstance(a, CheckpointFailed)
        ]
        recorded = ctx.standing(Verb.CHECKPOINT, "web").failure
        assert recorded == last.to_json()


def test_bug_in_a_step_is_recorded_as_one(runs: Runs) -> None:
    ctx = runs.new()
    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, FrameTransport(lambda _request: {"odd": 1}))
    with pytest.raises(Unexpected, match="KeyError"):
        perform(ctx, Verb.DRAIN, "web")
    assert ctx.standing(Verb.DRAIN, "web").failure is not None


@pytest.mark.parametrize(
    ("boot_id", "running", "expected"),
    [
        ("after", False, EndedInDump),  # gone with the power, and nobody brought it back
        ("after", True, Interrupted),  # brought back by whoever supervises it: drained anew
        ("before", False, Interrupted),  # no reboot: it may have ended by itself
    ],
)
@pytest.mark.parametrize("verb", [Verb.DRAIN, Verb.CHECKPOINT])
def test_workload_that_went_down_with_its_node_is_told_from_all_others(
    runs: Runs, verb: Verb, boot_id: str, running: bool, expected: type[PitstopError]
) -> None:
    ctx = runs.new()
    for kind, data in (
        ("step.started", {}),
        ("step.finished", {"result": {"boot_id": "before"}}),
    ):
        ctx.journal.append(ctx.run, kind, "me@here", NODE, Verb.PRECHECK.value, 1, data)  # type: ignore[arg-type]

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["call"] == "ping":
            return {"boot_id": boot_id}
        if request["call"] == "inspect":
            return {"workloads": {"web": {"running": running}}}
        if request["call"] == "settle":
            raise Interrupted("web", "as it was")
        return {"state": "interrupted"}

    ctx.node = RemoteNode(NODE, ctx.plan.node_spec, FrameTransport(answer))
    with pytest.raises(expected):
        execute(ctx, verb, "web")


# --- a workload that moves to another node

LEAVE = ["precheck n1", "drain web", "checkpoint web", "transfer web"]
ADMITTED = "return_to_service web"
SERVICED = ["maintain n1", "validate n1"]


def test_moves_and_is_admitted_before_its_node_is_touched(runs: Runs) -> None:
    result, performer, ctx = runs.through({}, MOVES)
    assert steps(performer) == [*LEAVE, *BACK_WEB, ADMITTED, *SERVICED]
    assert (result.state, outcomes(result)) == ("done", {"web": Outcome.MIGRATED})
    assert ctx.is_there("web")


@pytest.mark.parametrize("error", [TransferFailed, InvalidCheckpoint, PermanentError, Refused])
def test_transfer_fails_and_it_starts_cold_on_the_target(
    runs: Runs, error: type[PitstopError]
) -> None:
    result, performer, ctx = runs.through({(Verb.TRANSFER, "web"): error}, MOVES)
    assert steps(performer) == [*LEAVE, "cold_start web", ADMITTED, *SERVICED]
    assert (result.state, result.workloads[0].node) == ("done", "n2")
    assert outcomes(result) == {"web": Outcome.COLD_STARTED}
    assert "its checkpoint did not come" in cause(result)
    assert ctx.is_there("web")


def test_gate_says_no_on_the_target(runs: Runs) -> None:
    result, performer, _ = runs.through({(Verb.GATE, "web"): {"verdict": INVALID}}, MOVES)
    assert steps(performer) == [*LEAVE, "gate web", "cold_start web", ADMITTED, *SERVICED]
    assert (outcomes(result), result.workloads[0].node) == ({"web": Outcome.COLD_STARTED}, "n2")
    assert cause(result).startswith("on n2: driver.version: 580 -> 590")


def test_restore_fails_on_the_target(runs: Runs) -> None:
    result, performer, _ = runs.through({(Verb.RESTORE, "web"): RestoreFailed}, MOVES)
    assert steps(performer) == [*LEAVE, *BACK_WEB, "cold_start web", ADMITTED, *SERVICED]
    assert (outcomes(result), result.workloads[0].node) == ({"web": Outcome.COLD_STARTED}, "n2")


def test_target_lost_before_the_hand_over_comes_back_after_the_maintenance(runs: Runs) -> None:
    script: Script = {(Verb.TRANSFER, "web"): TargetLost, (Verb.GATE, "web"): {"verdict": INVALID}}
    result, performer, ctx = runs.through(script, MOVES)
    assert steps(performer) == [*LEAVE, *SERVICED, "gate web", "cold_start web", ADMITTED]
    assert (result.state, result.workloads[0].node) == ("done", None)
    assert ("web", "move", "stay") in decisions(ctx)
    assert not ctx.is_there("web")


@pytest.mark.parametrize("verb", [Verb.GATE, Verb.RESTORE])
def test_target_given_up_after_the_hand_over_means_a_cold_start_here(
    runs: Runs, verb: Verb
) -> None:
    """Its checkpoint is gone with that node: nobody asks the gate about it."""
    result, performer, _ = runs.through({(verb, "web"): TargetLost}, MOVES)
    there = BACK_WEB[: 1 if verb is Verb.GATE else 2]
    assert steps(performer) == [*LEAVE, *there, *SERVICED, "cold_start web", ADMITTED]
    assert (result.state, result.workloads[0].node) == ("done", None)
    assert outcomes(result) == {"web": Outcome.COLD_STARTED}


@pytest.mark.parametrize("verb", [Verb.TRANSFER, Verb.GATE, Verb.RESTORE, Verb.COLD_START])
@pytest.mark.parametrize("error", [NodeUnreachable, ConnectionLost])
def test_without_contact_to_the_target_nothing_is_decided(
    runs: Runs, verb: Verb, error: type[PitstopError]
) -> None:
    """Whether it runs there is unknown, so it is not started here, and its node not touched."""
    script: Script = {(verb, "web"): error}
    if verb is Verb.COLD_START:
        script[Verb.GATE, "web"] = {"verdict": INVALID}
    result, performer, _ = runs.through(script, MOVES)
    assert result.state == "partial"
    assert "maintain n1" not in steps(performer)
    assert result.workloads[0].outcome is None


def test_what_comes_up_nowhere_waits_for_a_person_and_its_node_is_serviced(runs: Runs) -> None:
    script: Script = {(Verb.RESTORE, "web"): RestoreFailed, (Verb.COLD_START, "web"): NotReady}
    result, performer, _ = runs.through(script, MOVES)
    assert steps(performer) == [*LEAVE, *BACK_WEB, "cold_start web", *SERVICED]
    assert (result.state, result.workloads[0].outcome) == ("partial", None)
    assert "on n2" in cause(result)


def test_what_has_moved_stays_away_when_the_run_is_given_up_or_rolled_back(runs: Runs) -> None:
    second = workload("second", Strategy.RESTORE)
    for script, state in (
        ({(Verb.CHECKPOINT, "second"): CheckpointFailed}, "failed"),
        ({(Verb.MAINTAIN, NODE): MaintenanceFailed}, "partial"),
    ):
        result, performer, _ = runs.through(dict(script), MOVES, second)
        assert steps(performer).count("restore web") == 1
        assert (result.state, outcomes(result)["web"]) == (state, Outcome.MIGRATED)


@pytest.mark.parametrize("kill_at", range(9))
def test_killed_in_any_step_of_a_move_it_takes_the_same_branches(runs: Runs, kill_at: int) -> None:
    ctx = runs.new(MOVES)
    performer = Performer(ctx, {}, kill_at)
    with pytest.raises(Killed):
        RunSequence(ctx, performer).run()
    performer.kill_at = -1
    result = RunSequence(ctx, performer).run()
    assert steps(performer) == [*LEAVE, *BACK_WEB, ADMITTED, *SERVICED]
    assert outcomes(result) == {"web": Outcome.MIGRATED}


def test_lease_of_the_run_is_kept_while_it_works_on_the_target(runs: Runs) -> None:
    """The node that the workload leaves hears of the run, whichever node works for it."""
    ctx = runs.new(MOVES)
    home, there = FrameTransport(), FrameTransport(lambda _: {"state": "done", "result": {}})
    spec, order = ctx.plan.node_spec, {"run": ctx.run, "seconds": 0}
    ctx.attention = Attention(lambda: RemoteNode(NODE, spec, home, lease=order), 0)
    target = ctx.at("n2")
    target._session = Session("n2", spec.engine, there)
    target.operate("r.web.restore", "restore", {}, 10)
    target.operate("r.web.action", "action", {}, 10)
    assert [request["arguments"]["lease"] for request in home.asked] == [order, order]

    ctx.attention = Attention(lambda: RemoteNode(NODE, spec, home, lease=order), 900)
    ctx.attention.renew()
    assert len(home.asked) == 2, "not more often than it has to be"


class Told:
    """The two nodes of a move, which answer and remember what they were asked."""

    def __init__(self, ctx: RunContext, moved_here: bool, there: dict[str, Any] | PitstopError):
        def answer_here(request: dict[str, Any]) -> dict[str, Any]:
            return {"moved": {"to": "n2"} if moved_here else None}

        def answer_there(request: dict[str, Any]) -> dict[str, Any]:
            if isinstance(there, PitstopError):
                raise there
            if request["call"] == "handover.give" and there["running"]:
                raise Refused("web", "a copy of it runs")
            return there

        self.here, self.there = FrameTransport(answer_here), FrameTransport(answer_there)
        spec = ctx.plan.node_spec
        ctx.node = RemoteNode(NODE, spec, self.here)
        ctx.at("n2")._session = Session("n2", spec.engine, self.there)

    @property
    def calls(self) -> tuple[list[str], list[str]]:
        return tuple([r["call"] for r in node.asked] for node in (self.here, self.there))  # type: ignore[return-value]


def test_it_starts_here_again_only_once_the_target_cannot_start_it(runs: Runs) -> None:
    ctx = runs.new(MOVES)
    told = Told(ctx, True, {"moved": None, "running": False})
    take_back(ctx, "web")
    assert told.calls == (
        ["workload", "handover.take-back"],
        ["workload", "handover.give", "release"],
    )
    assert told.there.asked[1]["arguments"]["to"] == NODE

    given_up = Told(ctx, False, NodeUnreachable("n2", "no route"))
    take_back(ctx, "web")
    assert given_up.calls == (["workload"], []), "a person has said that the target is gone"


@pytest.mark.parametrize(
    "there",
    [
        {"moved": None, "running": True},
        NodeUnreachable("n2", "no route"),
        ConnectionLost("n2", "cut"),
    ],
)
def test_it_never_starts_here_while_it_may_run_there(
    runs: Runs, there: dict[str, Any] | PitstopError
) -> None:
    ctx = runs.new(MOVES)
    told = Told(ctx, True, there)
    with pytest.raises(Refused):
        take_back(ctx, "web")
    assert "handover.take-back" not in told.calls[0]
