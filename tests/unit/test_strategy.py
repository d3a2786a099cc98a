"""Which strategy a workload gets: every row of the ladder, and no step up it."""

from __future__ import annotations

from itertools import product

import pytest

from pitstop.decide.homes import Candidate
from pitstop.decide.strategy import choose, may_move
from pitstop.model.verdict import Difference, Verdict
from pitstop.model.words import Judgement, OnCheckpointFailure, Shape, Strategy

VALID = Verdict()
TOLERATED = Verdict((Difference("host.kernel", "6.1", "6.2", Judgement.TOLERATED, "may"),))
INVALID = Verdict(
    (
        Difference("driver.version", "580", "590", Judgement.INVALID, "saved value only"),
        Difference("host.kernel", "6.1", "6.2", Judgement.TOLERATED, "may"),
        Difference("engine.version", "1", "2", Judgement.INVALID, "saved value only"),
    )
)
RING = ["io_uring at fd 7: CRIU cannot dump it"]
ABORT, COLD, WAIT = (
    OnCheckpointFailure.ABORT,
    OnCheckpointFailure.COLD_START,
    OnCheckpointFailure.WAIT,
)


@pytest.mark.parametrize("shape", [Shape.SINGLE_GPU, Shape.SINGLE_NODE])
@pytest.mark.parametrize("policy", [ABORT, COLD, WAIT])
@pytest.mark.parametrize("predicted", [VALID, TOLERATED])
def test_declared_changes_that_keep_the_fingerprint(
    shape: Shape, policy: OnCheckpointFailure, predicted: Verdict
) -> None:
    choice = choose(shape, True, "", [], predicted, policy)
    assert choice.strategy is Strategy.RESTORE
    assert choice.reason


@pytest.mark.parametrize("blockers", [[], RING])
@pytest.mark.parametrize("policy", [ABORT, COLD, WAIT])
def test_declared_change_that_invalidates_means_no_dump_at_all(
    blockers: list[str], policy: OnCheckpointFailure
) -> None:
    """Whether it could be dumped, or what becomes of it when not, is then of no importance."""
    choice = choose(Shape.SINGLE_NODE, True, "", blockers, INVALID, policy)
    assert choice.strategy is Strategy.COLD_START
    # Each reason with both values; what is tolerated is no reason.
    assert "driver.version: 580 -> 590" in choice.reason
    assert "engine.version: 1 -> 2" in choice.reason
    assert "host.kernel" not in choice.reason


@pytest.mark.parametrize(
    ("policy", "strategy"),
    [(ABORT, Strategy.REFUSE), (WAIT, Strategy.REFUSE), (COLD, Strategy.COLD_START)],
)
def test_known_blocker_is_decided_by_the_policy(
    policy: OnCheckpointFailure, strategy: Strategy
) -> None:
    choice = choose(Shape.SINGLE_GPU, True, "", RING, VALID, policy)
    assert choice.strategy is strategy
    assert RING[0] in choice.reason


@pytest.mark.parametrize("policy", [ABORT, COLD, WAIT])
@pytest.mark.parametrize("predicted", [VALID, INVALID])
def test_multi_node_is_never_touched_alone(policy: OnCheckpointFailure, predicted: Verdict) -> None:
    choice = choose(Shape.MULTI_NODE, True, "", [], predicted, policy)
    assert choice.strategy is Strategy.REFUSE
    assert "several machines" in choice.reason


@pytest.mark.parametrize("shape", list(Shape))
def test_what_does_not_run_is_left(shape: Shape) -> None:
    choice = choose(shape, False, "ended with status 1", RING, INVALID, COLD)
    assert choice.strategy is Strategy.LEAVE
    assert "ended with status 1" in choice.reason


def test_it_never_rises() -> None:
    """One more obstacle never gives a strategy that keeps more."""
    keeps = {Strategy.RESTORE: 2, Strategy.COLD_START: 1, Strategy.REFUSE: 0}
    for shape, policy in product(Shape, (ABORT, COLD, WAIT)):
        free = choose(shape, True, "", [], VALID, policy).strategy
        for blockers, predicted in product([[], RING], [VALID, TOLERATED, INVALID]):
            choice = choose(shape, True, "", blockers, predicted, policy)
            assert keeps[choice.strategy] <= keeps[free]
            assert choice.reason
            if blockers or not predicted.valid or shape is Shape.MULTI_NODE:
                assert choice.strategy is not Strategy.RESTORE


FULL = Candidate("gpu2", ("too little memory: 9 MiB are needed, 4 MiB are left",), VALID)
OLD = Candidate("gpu3", ("differs in driver.version: 580 -> 570", "quarantined"), INVALID)
FITS = Candidate("gpu4", (), VALID)


def test_invalid_here_moves_to_the_first_that_fits() -> None:
    choice = choose(Shape.SINGLE_GPU, True, "", [], INVALID, ABORT, [FULL, FITS])
    assert (choice.strategy, choice.target) == (Strategy.MIGRATE, "gpu4")
    assert "driver.version: 580 -> 590" in choice.reason
    assert "gpu4 matches and has room" in choice.reason


def test_none_that_fits_is_no_dump_and_every_reason() -> None:
    choice = choose(Shape.SINGLE_GPU, True, "", [], INVALID, ABORT, [FULL, OLD])
    assert (choice.strategy, choice.target) == (Strategy.COLD_START, "")
    assert "driver.version: 580 -> 590" in choice.reason
    for candidate in (FULL, OLD):
        for reason in candidate.reasons:
            assert reason in choice.reason


@pytest.mark.parametrize(
    ("shape", "running", "blockers", "predicted"),
    [
        (Shape.MULTI_NODE, True, [], INVALID),
        (Shape.SINGLE_GPU, False, [], INVALID),
        (Shape.SINGLE_GPU, True, RING, INVALID),
        (Shape.SINGLE_GPU, True, [], VALID),
    ],
)
def test_what_cannot_move_or_need_not_asks_nobody_and_never_moves(
    shape: Shape, running: bool, blockers: list[str], predicted: Verdict
) -> None:
    assert not may_move(shape, running, blockers, predicted)
    choice = choose(shape, running, "", blockers, predicted, COLD, [FITS])
    assert choice.strategy is not Strategy.MIGRATE


def test_spares_are_of_no_use_to_what_cannot_be_saved_and_it_says_why() -> None:
    choice = choose(Shape.SINGLE_GPU, True, "", RING, INVALID, ABORT, spares=True)
    assert choice.strategy is Strategy.COLD_START
    assert "driver.version: 580 -> 590" in choice.reason
    assert RING[0] in choice.reason
