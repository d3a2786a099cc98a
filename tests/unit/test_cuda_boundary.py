"""The way back to running, and what a trace of calls proves, over all that a driver may do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.cuda_boundary import call_towards_running, proof_of, sets_of
from pitstop.model.cuda import Call, CudaAnswer, CudaLimits, CudaRequest, ProcessState
from pitstop.node.cuda.boundary import Boundary, BoundaryFailedError
from pitstop.node.cuda.undo import PATIENCE, ROUNDS, bring_back
from pitstop.node.processes import Identity, identity

RUNNING, LOCKED = ProcessState.RUNNING, ProcessState.LOCKED
CHECKPOINTED, FAILED = ProcessState.CHECKPOINTED, ProcessState.FAILED
MOVES = {
    Call.LOCK: (RUNNING, LOCKED),
    Call.CHECKPOINT: (LOCKED, CHECKPOINTED),
    Call.RESTORE: (CHECKPOINTED, LOCKED),
    Call.UNLOCK: (LOCKED, RUNNING),
}
LIMITS = CudaLimits()
ALIVE = identity(os.getpid())
"""Undo asks whether processes live, so all of them are this one, by other numbers."""


class Living(Identity):
    def alive(self) -> bool:
        return True


class Model:
    """The documented state machine, with what a call does to it drawn for each call.

    `ok`, `error` (nothing happens), `late` (it happens and is said to have failed), `silent`
    (it happens, and no answer comes), `nothing` (nothing happens, no answer comes), `fail`.
    """

    def __init__(self, states: dict[int, ProcessState], fates: Iterator[str]) -> None:
        self.states = dict(states)
        self.fates = fates
        self.clock = 0.0
        self.asked: list[CudaRequest] = []

    def ask(self, requests: Sequence[CudaRequest], _seconds: float) -> list[CudaAnswer]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: CudaRequest) -> CudaAnswer:
        self.asked.append(request)
        began, self.clock = self.clock, self.clock + 1
        answer = CudaAnswer(request.pid, request.call, began=began, ended=self.clock)
        fate = next(self.fates, "ok")
        state = self.states[request.pid]
        if request.call is Call.STATE:
            answer = replace(answer, value=state.value)
        else:
            before, after = MOVES[request.call]
            if state is not before:
                return replace(answer, error="CUDA_ERROR_ILLEGAL_STATE")
            if fate in ("ok", "late", "silent"):
                self.states[request.pid] = after
            if fate == "fail":
                self.states[request.pid] = FAILED
        if fate == "ok":
            return answer
        silent = fate in ("silent", "nothing")
        return replace(answer, value="", error=fate, answered=not silent)


FATES = st.sampled_from(["ok", "error", "late", "silent", "nothing", "fail"])
STATES = st.dictionaries(
    st.integers(2, 9), st.sampled_from(list(ProcessState)), min_size=1, max_size=8
)


def processes_of(states: dict[int, ProcessState]) -> list[Identity]:
    return [Living(pid, 1) for pid in sorted(states)]


@given(STATES, st.lists(FATES, max_size=40), st.booleans())
def test_whatever_the_driver_does_each_process_ends_in_exactly_one_way(
    states: dict[int, ProcessState], fates: list[str], in_turn: bool
) -> None:
    model = Model(states, iter(fates))
    undone = bring_back(model, processes_of(states), LIMITS, in_turn)
    assert sorted([*undone.running, *undone.lost]) == sorted(states)
    for pid in undone.running:
        assert model.states[pid] is RUNNING
    for pid, why in undone.lost.items():
        assert why and "None" not in why, (pid, why)


@given(STATES)
def test_all_that_can_run_again_does(states: dict[int, ProcessState]) -> None:
    model = Model(states, iter(()))
    undone = bring_back(model, processes_of(states), LIMITS, in_turn=False)
    assert set(undone.lost) == {pid for pid, state in states.items() if state is FAILED}
    assert all("lost" in why for why in undone.lost.values())


@pytest.mark.parametrize("fate", ["error", "late", "silent", "nothing"])
@pytest.mark.parametrize("nth", range(6))
def test_one_call_that_goes_wrong_is_made_good(fate: str, nth: int) -> None:
    fates = ["ok"] * 6
    fates[nth] = fate
    model = Model({2: CHECKPOINTED, 3: LOCKED}, iter(fates))
    undone = bring_back(model, processes_of(model.states), LIMITS, in_turn=False)
    assert not undone.losses(model.states), undone
    assert set(model.states.values()) == {RUNNING}


def test_a_driver_that_never_answers_is_not_waited_for_without_end() -> None:
    model = Model({2: CHECKPOINTED}, iter(["nothing"] * 99))
    undone = bring_back(model, processes_of(model.states), LIMITS, in_turn=False)
    assert set(undone.lost) == {2}
    assert len(model.asked) <= PATIENCE


def test_a_call_that_fails_for_ever_is_given_up() -> None:
    states = {2: CHECKPOINTED}
    model = Model(states, iter(["ok", "error"] * 99))
    undone = bring_back(model, processes_of(states), LIMITS, in_turn=False)
    assert undone.lost == {2: "it is checkpointed, and restore failed: error"}
    assert len(model.asked) <= 2 * ROUNDS


def test_the_last_process_comes_back_first() -> None:
    states = {2: LOCKED, 3: LOCKED, 4: LOCKED}
    model = Model(states, iter(()))
    bring_back(model, processes_of(states), LIMITS, in_turn=False)
    assert [r.pid for r in model.asked if r.call is Call.UNLOCK] == [4, 3, 2]


def test_a_process_that_has_ended_is_not_called_running() -> None:
    dead = Identity(ALIVE.pid, ALIVE.start + 1)
    undone = bring_back(Model({}, iter(())), [dead], LIMITS, in_turn=False)
    assert (undone.running, undone.ended) == ([], [dead.pid])
    assert undone.losses() == {}, "it ended by itself"
    assert set(undone.losses(held=[dead.pid])) == {dead.pid}


def test_a_driver_that_cannot_be_asked_has_lost_nothing() -> None:
    """Half an upgrade, or too little memory for its caller, says nothing about the workload."""

    class Unusable:
        def ask(self, requests: Sequence[CudaRequest], _seconds: float) -> list[CudaAnswer]:
            why = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
            return [
                CudaAnswer(r.pid, r.call, error=why, answered=False, sent=False) for r in requests
            ]

    undone = bring_back(Unusable(), processes_of({2: CHECKPOINTED}), LIMITS, in_turn=False)
    assert undone.unasked == "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
    assert undone.losses([2]) == {}


@given(st.integers(1, 8), st.booleans(), st.lists(FATES, max_size=30))
def test_nothing_is_checkpointed_before_all_are_locked(
    count: int, in_turn: bool, fates: list[str]
) -> None:
    states = dict.fromkeys(range(2, 2 + count), RUNNING)
    model = Model(states, iter(fates))
    boundary = Boundary(model, processes_of(states), LIMITS, in_turn)
    failed = False
    try:
        boundary.lock()
        boundary.checkpoint()
    except BoundaryFailedError:
        failed = True
    calls = [request.call for request in model.asked]
    if Call.CHECKPOINT in calls:
        assert calls.index(Call.CHECKPOINT) > max(
            i for i, call in enumerate(calls) if call is Call.LOCK
        )
        assert calls.count(Call.LOCK) == count
    proof = proof_of(boundary.trace)
    assert proof is None or proof.holds
    if not failed:
        assert set(model.states.values()) == {CHECKPOINTED}
        assert proof is not None
        assert proof.processes == count


def test_a_success_that_did_not_happen_is_found_out() -> None:
    """The call says that it has checkpointed, and the state is another."""
    model = Model({2: RUNNING}, iter(()))
    boundary = Boundary(model, processes_of(model.states), LIMITS, in_turn=False)
    boundary.lock()
    model.states[2] = RUNNING
    with pytest.raises(BoundaryFailedError, match="pid 2 is running, not locked"):
        boundary.checkpoint()


def answer(pid: int, call: Call, began: float, ended: float, error: str = "") -> CudaAnswer:
    return CudaAnswer(pid, call, error=error, began=began, ended=ended)


@pytest.mark.parametrize(
    ("trace", "holds"),
    [
        ([answer(2, Call.LOCK, 0, 1), answer(2, Call.CHECKPOINT, 1, 2)], True),
        (
            [
                answer(2, Call.LOCK, 0, 1),
                answer(2, Call.CHECKPOINT, 1, 2),
                answer(3, Call.LOCK, 1, 2),
                answer(3, Call.CHECKPOINT, 2, 3),
            ],
            False,
        ),
        ([answer(2, Call.CHECKPOINT, 1, 2)], False),
        (
            [answer(2, Call.LOCK, 0, 1, "CUDA_ERROR_NOT_READY"), answer(2, Call.CHECKPOINT, 1, 2)],
            False,
        ),
    ],
    ids=["one", "too early", "never locked", "lock failed"],
)
def test_a_proof_is_of_what_happened(trace: list[CudaAnswer], holds: bool) -> None:
    proof = proof_of(trace)
    assert proof is not None
    assert proof.holds is holds


def test_without_a_checkpoint_there_is_nothing_to_prove() -> None:
    assert proof_of([answer(2, Call.LOCK, 0, 1)]) is None


def test_from_each_state_there_is_one_way() -> None:
    assert call_towards_running(CHECKPOINTED) is Call.RESTORE
    assert call_towards_running(LOCKED) is Call.UNLOCK
    assert call_towards_running(RUNNING) is call_towards_running(FAILED) is None


def test_in_turn_means_one_at_a_time() -> None:
    requests = [CudaRequest(pid, Call.RESTORE) for pid in (2, 3)]
    assert sets_of(requests, in_turn=True) == [[requests[0]], [requests[1]]]
    assert sets_of(requests, in_turn=False) == [requests]


@given(
    st.builds(
        CudaAnswer,
        st.integers(2, 9),
        st.sampled_from(Call),
        st.text(),
        st.text(),
        st.booleans(),
        st.booleans(),
        st.floats(0, 1e9),
        st.floats(0, 1e9),
    )
)
def test_an_answer_survives_its_journey(one: CudaAnswer) -> None:
    assert CudaAnswer.from_json(one.to_json()) == one
