"""States: one base and flags, in every form that Slurm has written them in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.fleet.slurm.states import (
    JOB_BASES,
    JOB_FLAGS,
    NODE_BASES,
    NODE_FLAGS,
    UNKNOWN,
    NodeState,
    job_state,
    node_state,
    sinfo_state,
)

BASES = st.sampled_from(sorted(NODE_BASES))
FLAGS = st.frozensets(st.sampled_from(sorted(NODE_FLAGS)), max_size=6)


@given(BASES, FLAGS)
def test_every_form_of_a_nodes_state_says_the_same(base: str, flags: frozenset[str]) -> None:
    words = [base, *sorted(flags)]
    expected = NodeState(base, flags)
    assert node_state(words) == expected
    assert node_state("+".join(words)) == expected
    assert node_state(base.lower(), sorted(flags)) == expected
    assert node_state(str(expected)) == expected


@given(BASES, FLAGS)
def test_the_flag_is_not_the_state(base: str, flags: frozenset[str]) -> None:
    state = NodeState(base, flags)
    busy = base in ("ALLOCATED", "MIXED") or "COMPLETING" in flags
    assert (state.has_jobs is True) == busy
    if state.drained:
        assert "DRAIN" in flags
        assert not busy
        assert base == "IDLE"
        assert state.reachable


@given(BASES, FLAGS, st.from_regex(r"[A-Z]{3,12}_NEW", fullmatch=True))
def test_a_flag_of_a_newer_slurm_never_makes_a_node_empty(
    base: str, flags: frozenset[str], new: str
) -> None:
    state = node_state([base, *flags, "DRAIN", new])
    assert state.strange == {new}
    assert not state.drained
    assert state.has_jobs is not False


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("idle", "IDLE"),
        ("idle*", "IDLE+NOT_RESPONDING"),
        ("mix-", "MIXED+PLANNED"),
        ("mixed@", "MIXED+REBOOT_REQUESTED"),
        ("drained*", "IDLE+DRAIN+NOT_RESPONDING"),
        ("drng", "MIXED+DRAIN"),
        ("alloc", "ALLOCATED"),
        ("comp", "IDLE+COMPLETING"),
        ("down*", "DOWN+NOT_RESPONDING"),
        ("down^", "DOWN+REBOOT_ISSUED"),
        ("reboot^", "UNKNOWN+REBOOT_ISSUED"),
        ("reboot@", "UNKNOWN+REBOOT_REQUESTED"),
        ("reboot^*", "UNKNOWN+NOT_RESPONDING+REBOOT_ISSUED"),
        ("idle~", "IDLE+POWERED_DOWN"),
        ("idle#", "IDLE+POWERING_UP"),
        ("idle%", "IDLE+POWERING_DOWN"),
        ("idle!", "IDLE+POWER_DOWN"),
        ("maint", "IDLE+MAINTENANCE"),
        ("idle$", "IDLE+MAINTENANCE"),
        ("planned", "IDLE+PLANNED"),
        ("resv", "IDLE+RESERVED"),
        ("inval", "UNKNOWN+INVALID_REG"),
        ("unk*", "UNKNOWN+NOT_RESPONDING"),
        ("POWERED_DOWN", "IDLE+POWERED_DOWN"),
    ],
)
def test_sinfos_words(word: str, expected: str) -> None:
    assert str(sinfo_state(word)) == expected


@pytest.mark.parametrize("word", ["idle&", "idle?", "shiny", "", "*", "idle+drain", "idle drain"])
def test_an_unknown_word_or_suffix_is_not_idle(word: str) -> None:
    with pytest.raises(ValueError, match=r"suffix|no state"):
        sinfo_state(word)


@pytest.mark.parametrize(
    ("text", "reboot", "drained"),
    [
        ("MIXED+REBOOT_REQUESTED", "requested", False),
        ("DOWN+DRAIN+REBOOT_ISSUED", "issued", False),
        ("REBOOT*+DRAIN", "issued", False),
        ("BOOT", "issued", False),
        ("IDLE+DRAIN", "", True),
    ],
)
def test_faces_of_a_reboot(text: str, reboot: str, drained: bool) -> None:
    state = node_state(text)
    assert (state.reboot, state.drained) == (reboot, drained)


@pytest.mark.parametrize(
    "text", ["DOWN+DRAIN", "DOWN+DRAIN+NOT_RESPONDING", "IDLE+DRAIN+NOT_RESPONDING", "FUTURE+DRAIN"]
)
def test_jobs_that_slurm_has_dropped_may_still_run(text: str) -> None:
    """Of a node that it does not reach, or that is down, it has not seen their end."""
    state = node_state(text)
    assert state.has_jobs is None
    assert not state.drained


def test_reach_and_power() -> None:
    assert not node_state("DOWN+NOT_RESPONDING").reachable
    assert node_state("IDLE+CLOUD+POWERING_DOWN").powered_down
    assert not node_state("IDLE").powered_down


@pytest.mark.parametrize("state", ["IDLE+MIXED", ["IDLE", "DOWN"], [], "", None, 7, [7], "ID LE"])
def test_no_state_of_a_node(state: object) -> None:
    with pytest.raises(ValueError, match=r"state|suffix"):
        node_state(state)


@given(
    st.sampled_from(sorted(JOB_BASES)),
    st.frozensets(st.sampled_from(sorted(JOB_FLAGS)), max_size=3),
)
def test_every_form_of_a_jobs_state_says_the_same(base: str, flags: frozenset[str]) -> None:
    words = [base, *sorted(flags)]
    state = job_state(words)
    assert (state.base, state.flags, state.strange) == (base, flags, frozenset())
    assert job_state("+".join(words)) == state
    assert job_state(base, sorted(flags)) == state


@pytest.mark.parametrize(
    ("state", "base", "holds"),
    [
        ("RUNNING", "RUNNING", True),
        (["RUNNING"], "RUNNING", True),
        (["TIMEOUT", "COMPLETING"], "TIMEOUT", True),
        (["COMPLETED"], "COMPLETED", False),
        ("CANCELLED by 10001", "CANCELLED", False),
        ("COMPLETING", UNKNOWN, True),
        ("PENDING", "PENDING", False),
        (["PENDING", "REQUEUE_HOLD"], "PENDING", False),
        ("SUSPENDED", "SUSPENDED", True),
        (["COMPLETED", "HOVERING"], "COMPLETED", True),
    ],
)
def test_who_holds_a_node(state: object, base: str, holds: bool) -> None:
    found = job_state(state)
    assert (found.base, found.holds_node) == (base, holds)


@pytest.mark.parametrize("state", ["", [], None, ["RUNNING", "PENDING"], {"RUNNING": 1}])
def test_no_state_of_a_job(state: object) -> None:
    with pytest.raises(ValueError, match="state"):
        job_state(state)
