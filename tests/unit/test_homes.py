"""Where a workload may be, and which of these nodes it fits on."""

from __future__ import annotations

from typing import Any

import pytest

from pitstop.decide.homes import Home, Room, home_on, homes, judge, only_spare, spec_on
from pitstop.model.fingerprint import Fact, Fingerprint
from pitstop.model.workload import AtRouter, Drain, HttpProbe, Launch, Ready, Spare, Workload

MIB = 1 << 20
SAVED = Fingerprint({"driver.version": Fact("580"), "host.kernel": Fact("6.1")})
NEED, PLENTY = Room(100 * MIB, 100 * MIB), Room(1000 * MIB, 1000 * MIB)


def web(*spares: Spare, router: AtRouter | None = None) -> Workload:
    return Workload(
        placement={"gpu1": 2},
        spares=spares,
        launch=Launch(command=("serve",)),
        ready=Ready(http=HttpProbe(url="http://127.0.0.1:1/")),
        drain=Drain(router=router),
    )


def answer(*reasons: str, driver: str = "580", kernel: str = "6.1") -> dict[str, Any]:
    present = Fingerprint({"driver.version": Fact(driver), "host.kernel": Fact(kernel)})
    return {"fingerprint": present.to_json(), "reasons": list(reasons)}


def test_without_consent_it_has_one_home() -> None:
    assert [home.node for home in homes(web())] == ["gpu1"]
    assert home_on(web(), "gpu2") is None


def test_homes_are_its_placement_then_its_spares_in_their_order() -> None:
    spec = web(Spare(node="gpu3"), Spare(node="gpu2"))
    assert [home.node for home in homes(spec)] == ["gpu1", "gpu3", "gpu2"]
    assert [only_spare(spec, node) for node in ("gpu1", "gpu2")] == [False, True]


def test_on_a_spare_it_is_the_same_workload_with_that_nodes_replica() -> None:
    at = AtRouter(name="lb", replica="a")
    spec = web(Spare(node="gpu2", replica="b"), router=at)
    there = spec_on(spec, "gpu2")
    assert (there.placement, there.drain.router) == (
        {"gpu2": 2},
        AtRouter(name="lb", replica="b"),
    )
    assert next(home.node for home in homes(there)) == "gpu2"
    assert spec_on(spec, "gpu1") == spec


def test_behind_a_router_without_a_replica_there_it_does_not_move() -> None:
    spec = web(Spare(node="gpu2"), router=AtRouter(name="lb", replica="a"))
    home = home_on(spec, "gpu2")
    assert home is not None
    found = judge(home, answer(), SAVED, (), NEED, PLENTY)
    assert not found.fits
    assert "no replica is declared" in str(found)


def test_fits_where_nothing_differs_and_there_is_room() -> None:
    found = judge(Home("gpu2"), answer(), SAVED, (), NEED, PLENTY)
    assert (found.fits, str(found)) == (True, "gpu2: matches and has room")
    assert found.verdict is not None
    assert found.verdict.valid


def test_every_reason_is_said() -> None:
    short = Room(50 * MIB, 20 * MIB)
    found = judge(Home("gpu2"), answer("quarantined", driver="570"), SAVED, (), NEED, short)
    assert found.reasons == (
        "quarantined",
        "differs in driver.version: 580 -> 570",
        "too little memory: 100 MiB are needed, 50 MiB are left",
        "too little disk: 100 MiB are needed, 20 MiB are left",
    )


def test_what_the_site_tolerates_is_no_reason() -> None:
    other = answer(kernel="6.2")
    assert not judge(Home("gpu2"), other, SAVED, (), NEED, PLENTY).fits
    assert judge(Home("gpu2"), other, SAVED, ("host.kernel",), NEED, PLENTY).fits


def test_what_a_node_does_not_know_of_itself_does_not_match() -> None:
    there = {"fingerprint": {"host.kernel": {"value": "6.1"}}, "reasons": []}
    assert not judge(Home("gpu2"), there, SAVED, (), NEED, PLENTY).fits


@pytest.mark.parametrize(("taken", "fits"), [(0, True), (50, True), (51, False), (1000, False)])
def test_room_is_what_others_that_move_there_leave(taken: int, fits: bool) -> None:
    left = Room(150 * MIB, 150 * MIB).without(Room(taken * MIB, taken * MIB))
    assert judge(Home("gpu2"), answer(), SAVED, (), NEED, left).fits is fits
