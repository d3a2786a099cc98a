"""What is said of a node after a disaster: from every mixture of facts, nothing unsafe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.reconcile import (
    Act,
    Finding,
    LeaseFacts,
    NodeFacts,
    RunFacts,
    WorkloadFacts,
    findings,
)

ALIVE = LeaseFacts("me@there", "2026-11-30T12:00:00+00:00", 600, lapsed=False)
LAPSED = LeaseFacts("me@there", "2026-11-30T12:00:00+00:00", -1, lapsed=True)
RUNS_ON = WorkloadFacts("web", running=True)
DOWN = WorkloadFacts("web", running=False, why_not="nobody holds its lock")


def held(run: str, running: bool, sealed: str | None = None) -> WorkloadFacts:
    return WorkloadFacts("web", running, "" if running else "it was saved", run, sealed)


def only(node: NodeFacts, runs: dict[str, RunFacts] | None = None) -> Finding:
    [found] = findings(node, runs or {})
    return found


def test_all_in_order_is_no_finding() -> None:
    node = NodeFacts("gpu1", (RUNS_ON,))
    assert findings(node, {"r": RunFacts("done")}) == []


def test_workload_that_is_down_is_for_a_person() -> None:
    assert only(NodeFacts("gpu1", (DOWN,))).way == "pitstop start web"
    saved = WorkloadFacts("web", False, "gone", "", "web.ck")
    assert only(NodeFacts("gpu1", (saved,))).way == "pitstop restore web"
    by_hand = only(NodeFacts("gpu1", (held("hand-1", False, "web.ck"),)))
    assert (by_hand.act, by_hand.way) == (Act.PERSON, "pitstop restore web")


def test_what_has_moved_away_is_not_missed_and_never_started_here() -> None:
    away = WorkloadFacts("web", False, "moved to gpu2 by run r at …", away=True)
    assert findings(NodeFacts("gpu1", (away,)), {}) == []
    left = WorkloadFacts("web", False, "moved to gpu2 by run r at …", "r", away=True)
    found = only(NodeFacts("gpu1", (left,)), {"r": RunFacts("done")})
    assert (found.act, found.safe) == (Act.RELEASE, True)
    assert "moved to gpu2" in found.fact
    unknown = only(NodeFacts("gpu1", (left,)))
    assert (unknown.act, unknown.safe) == (Act.RELEASE, False)


def test_run_that_was_cut_off_is_resumed() -> None:
    node = NodeFacts("gpu1", (held("r", False, "web.ck"),), {"r": LAPSED})
    found = only(node, {"r": RunFacts("", "it stands in maintain of gpu1")})
    assert (found.act, found.safe, found.way) == (Act.RESUME, True, "pitstop resume r")
    assert "in maintain of gpu1" in found.fact


def test_run_that_lives_is_left_alone() -> None:
    node = NodeFacts("gpu1", (held("r", False),), {"r": ALIVE})
    unfinished = RunFacts("")
    for runs in ({"r": unfinished}, {}):
        assert only(node, runs).act is Act.WAIT
    silent = NodeFacts("gpu1", (held("r", False),), {"r": LAPSED})
    assert only(silent, {"r": RunFacts("", driven=True)}).act is Act.WAIT


def test_node_that_must_be_mended_first_is_for_a_person() -> None:
    node = NodeFacts("gpu1", (RUNS_ON,), {}, "r", "the patch failed")
    found = only(node, {"r": RunFacts("partial", cause="the patch failed", needs_repair=True)})
    assert (found.act, found.safe) == (Act.PERSON, False)
    assert "pitstop resume r" in found.way


def test_what_an_unknown_run_left_needs_a_word() -> None:
    for running, act in ((True, Act.RELEASE), (False, Act.BRING_BACK)):
        found = only(NodeFacts("gpu1", (held("r", running),)))
        assert (found.act, found.safe, found.run) == (act, False, "r")
        assert "--take-over r" in found.way


def test_what_an_ended_run_left_is_cleared_away() -> None:
    ended = {"r": RunFacts("done")}
    assert only(NodeFacts("gpu1", (held("r", True),)), ended).safe
    lease = only(NodeFacts("gpu1", (RUNS_ON,), {"r": LAPSED}), ended)
    assert (lease.act, lease.safe) == (Act.END_LEASE, True)


def test_what_an_unknown_run_only_drained_is_let_in_again() -> None:
    lease = LeaseFacts("me@there", "2026-11-30T12:00:00+00:00", -1, True, ("web",))
    found = only(NodeFacts("gpu1", (RUNS_ON,), {"r": lease}))
    assert (found.act, found.safe, found.subject) == (Act.RELEASE, True, "web")
    # Where it holds another workload, its maintenance may be half done.
    batch = WorkloadFacts("batch", False, "saved", "r")
    node = NodeFacts("gpu1", (RUNS_ON, batch), {"r": lease})
    assert [f.safe for f in findings(node, {})] == [False, False]


def test_work_of_an_unknown_run_is_waited_for() -> None:
    node = NodeFacts("gpu1", (held("r", False),), working=("r.gpu1.maintain.patch.1.1",))
    assert only(node).act is Act.WAIT
    # One whose id merely begins alike is another run's.
    other = NodeFacts("gpu1", (held("r", False),), working=("r2.gpu1.maintain.patch.1.1",))
    assert only(other).act is Act.BRING_BACK


def test_changed_record_is_said_whatever_the_state() -> None:
    found = only(NodeFacts("gpu1"), {"r": RunFacts("done", chain_faults=("event 3: hash",))})
    assert (found.act, found.safe) == (Act.PERSON, False)


RUN_IDS = st.sampled_from(["a", "b", "hand-1"])
WORKLOADS = st.builds(
    WorkloadFacts,
    name=st.sampled_from(["web", "batch"]),
    running=st.booleans(),
    why_not=st.just("down"),
    holder=st.one_of(st.just(""), RUN_IDS),
    sealed=st.sampled_from([None, "ck"]),
)
RUNS = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.builds(
        RunFacts,
        state=st.sampled_from(["", "partial", "done", "failed", "refused"]),
        needs_repair=st.booleans(),
        driven=st.booleans(),
    ),
)
LEASES = st.builds(
    LeaseFacts,
    controller=st.just("me@there"),
    time=st.just("2026-11-30T12:00:00+00:00"),
    seconds_left=st.just(0.0),
    lapsed=st.booleans(),
    drained=st.sets(st.sampled_from(["web", "batch"])).map(sorted).map(tuple),
)
NODES = st.builds(
    NodeFacts,
    node=st.just("gpu1"),
    workloads=st.lists(WORKLOADS, max_size=2, unique_by=lambda w: w.name).map(tuple),
    leases=st.dictionaries(st.sampled_from(["a", "b"]), LEASES),
    quarantined_by=st.sampled_from(["", "a", "b"]),
    working=st.lists(st.sampled_from(["a.web.checkpoint.1", "b.gpu1.maintain.1"])).map(tuple),
)


@given(NODES, RUNS)
def test_nothing_unsafe_is_called_safe(node: NodeFacts, runs: dict[str, RunFacts]) -> None:
    for found in findings(node, runs):
        lease = (node.leases or {}).get(found.run)
        if not found.run:
            assert not found.safe
            continue
        # Never beside somebody who lives, never what nobody here knows, and nothing that
        # runs or might run is started a second time.
        assert lease is None or lease.lapsed
        known = runs.get(found.run)
        assert known is None or not known.driven
        if found.safe:
            held = [w for w in node.workloads if w.holder == found.run]
            assert known is not None or (not held and found.act is not Act.RESUME)
            assert found.act in (Act.RESUME, Act.RELEASE, Act.END_LEASE)
        if found.act is Act.RESUME:
            assert known is not None and not known.over and not known.needs_repair
        if found.act is Act.RELEASE:
            assert any(w.name == found.subject and w.running for w in node.workloads)
        if found.act is Act.BRING_BACK:
            assert any(w.name == found.subject and not w.running for w in node.workloads)


@given(NODES, RUNS)
def test_nothing_that_is_down_or_held_goes_unsaid(
    node: NodeFacts, runs: dict[str, RunFacts]
) -> None:
    found = findings(node, runs)
    said = {f.subject for f in found} | {f.run for f in found}
    for workload in node.workloads:
        if workload.holder and not (workload.holder.startswith("hand-") and workload.running):
            assert workload.name in said or workload.holder in said
        elif not workload.running:
            assert workload.name in said
    if node.quarantined_by:
        assert node.quarantined_by in said or node.node in said
