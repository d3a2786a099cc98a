"""Which GPU takes whose state: every GPU of the node, models and links kept, or a reason."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.gpu_map import fits, map_gpus
from pitstop.decide.topology import Links, links_text
from pitstop.decide.visible import visible
from pitstop.model.fingerprint import Fact
from pitstop.model.inventory import (
    EMPTY,
    GPU_FACTS,
    Answer,
    Gpu,
    GpuProcess,
    Inventory,
    Link,
    MigDevice,
    number,
)

H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
GIB = 1 << 30
Linked = Callable[[int, int], int]


def gpu(uuid: str, name: str = H100, **facts: Any) -> Gpu:
    index = facts.pop("index", 0)
    values: dict[str, Any] = {
        "memory": Fact(str(80 * GIB)),
        "memory_used": Fact("0"),
        "mig": Fact("off"),
        "processes_read": Fact("0"),
        "pci": Fact(f"0000:{index + 1:02x}:00.0"),
        **facts,
    }
    return Gpu(index=index, uuid=Fact(f"GPU-{uuid}"), name=Fact(name), **values)


def all_alike(count: int) -> Linked:
    return lambda _one, _other: count


SWITCHED = all_alike(18)


def links(gpus: Sequence[Gpu], nvlinks: Linked = SWITCHED) -> list[Link]:
    return [
        Link(str(one.uuid.value), str(other.uuid.value), Fact(str(nvlinks(i, j))), Fact("ok"))
        for (i, one), (j, other) in itertools.combinations(enumerate(gpus), 2)
    ]


def graph(edges: set[frozenset[int]]) -> Linked:
    return lambda one, other: 4 if frozenset((one, other)) in edges else 0


def ring(*members: int) -> set[frozenset[int]]:
    return {frozenset((a, b)) for a, b in zip(members, (*members[1:], members[0]), strict=True)}


def pairs_of(count: int) -> Linked:
    """Bridges of two, as PCIe cards have."""
    return lambda one, other: 12 if one // 2 == other // 2 else 0


# DGX-1: two rings of four with diagonals, joined corner to corner; some links are double.
DOUBLE = {frozenset(p) for p in ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))}
SINGLE = {frozenset(p) for p in ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))}


def dgx_1(one: int, other: int) -> int:
    pair = frozenset((one, other))
    return 2 if pair in DOUBLE else 1 if pair in SINGLE else 0


TOPOLOGIES: dict[str, tuple[int, Linked]] = {
    "one": (1, all_alike(0)),
    "pair": (2, all_alike(12)),
    "no links": (8, all_alike(0)),
    "switched 8": (8, all_alike(18)),
    "switched 16": (16, all_alike(6)),
    "bridges 16": (16, pairs_of(16)),
    "mesh": (8, dgx_1),
    "ring 16": (16, graph(ring(*range(16)))),
}


def numbered(prefix: str, count: int, name: str = H100) -> list[Gpu]:
    return [gpu(f"{prefix}{n:02}", name, index=n) for n in range(count)]


def holds(found: Sequence[tuple[str, str]], old: Links, new: Links) -> bool:
    mapped = dict(found)
    return all(
        old.label(one, other) == new.label(mapped[one], mapped[other])
        for one, other in itertools.combinations(mapped, 2)
    )


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_has_not_moved_needs_no_map(name: str) -> None:
    count, linked = TOPOLOGIES[name]
    gpus = numbered("a", count)
    between = links(gpus, linked)
    found = map_gpus(gpus, gpus[::-1], between, between)
    assert found.possible
    assert not found.moved
    assert found.pairs == tuple((g.uuid.value, g.uuid.value) for g in gpus)


@pytest.mark.parametrize("name", TOPOLOGIES)
@given(shuffle=st.randoms(use_true_random=False))
def test_a_node_that_is_built_the_same_takes_all_of_it(name: str, shuffle: random.Random) -> None:
    count, linked = TOPOLOGIES[name]
    saved, present = numbered("a", count), numbered("b", count)
    places = list(range(count))
    shuffle.shuffle(places)
    between = links(saved, linked)
    there = links(present, lambda one, other: linked(*sorted((places[one], places[other]))))
    found = map_gpus(saved, present, between, there)
    assert found.refusals == ()
    assert found.moved
    assert {old for old, _ in found.pairs} == {g.uuid.value for g in saved}
    assert {new for _, new in found.pairs} == {g.uuid.value for g in present}
    assert holds(found.pairs, Links(between), Links(there))
    assert links_text(saved, between) == links_text(present, there)


@given(st.data())
def test_a_map_is_found_exactly_where_there_is_one(data: st.DataObject) -> None:
    """Against trying all orders, for up to five GPUs."""
    count = data.draw(st.integers(1, 5))
    amounts = st.integers(0, 1)
    before = {p: data.draw(amounts) for p in itertools.combinations(range(count), 2)}
    now = {p: data.draw(amounts) for p in itertools.combinations(range(count), 2)}
    models = data.draw(st.lists(st.sampled_from([H100, L40S]), min_size=count, max_size=count))
    saved = [gpu(f"a{n}", model) for n, model in enumerate(models)]
    present = [gpu(f"b{n}", model) for n, model in enumerate(data.draw(st.permutations(models)))]
    found = map_gpus(
        saved,
        present,
        links(saved, lambda one, other: before[one, other]),
        links(present, lambda one, other: now[one, other]),
    )
    exists = any(
        all(saved[i].name == present[order[i]].name for i in range(count))
        and all(
            amount == now[min(order[i], order[j]), max(order[i], order[j])]
            for (i, j), amount in before.items()
        )
        for order in itertools.permutations(range(count))
    )
    assert found.possible is exists
    assert bool(found.pairs) is exists


ROOK = {
    frozenset((a, b))
    for a, b in itertools.combinations(range(16), 2)
    if a // 4 == b // 4 or a % 4 == b % 4
}
SHRIKHANDE = {
    frozenset((a, b))
    for a, b in itertools.combinations(range(16), 2)
    if ((a // 4 - b // 4) % 4, (a % 4 - b % 4) % 4)
    in {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}
}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (ring(*range(16)), ring(*range(8)) | ring(*range(8, 16))),
        (
            ring(0, 1, 2, 3) | ring(4, 5, 6, 7) | ring(8, 9, 10, 11) | ring(12, 13, 14, 15),
            ring(0, 1, 2, 3) | ring(4, 5, 6, 7) | ring(*range(8, 16)),
        ),
        (ROOK, SHRIKHANDE),
    ],
    ids=["one ring or two", "four rings or three", "alike in all but one thing"],
)
def test_links_that_only_look_alike_are_told_apart(
    before: set[frozenset[int]], now: set[frozenset[int]]
) -> None:
    saved, present = numbered("a", 16), numbered("b", 16)
    old, new = links(saved, graph(before)), links(present, graph(now))
    assert links_text(saved, old) == links_text(present, new)
    for there, here in ((old, new), (new, old)):
        first, second = (saved, present) if there is old else (present, saved)
        found = map_gpus(first, second, there, here)
        assert "linked in another way" in found.refusals[0]
    assert map_gpus(saved, saved, old, old).possible


@given(st.data())
def test_state_only_goes_to_gpus_that_may_be_used(data: st.DataObject) -> None:
    """Where all are linked alike there is a map exactly if there are enough of them."""
    count = data.draw(st.integers(1, 16))
    old, new = numbered("a", count), numbered("b", count)
    used = data.draw(st.sets(st.sampled_from([g.uuid.value or "" for g in old])))
    usable = data.draw(st.sets(st.sampled_from([g.uuid.value or "" for g in new])))
    found = map_gpus(old, new, links(old), links(new), usable, used)
    assert found.possible == (len(usable) >= len(used)), found
    if found.possible:
        assert {new for old, new in found.pairs if old in used} <= usable
        assert {old for old, _ in found.pairs} == {g.uuid.value for g in old}
    else:
        assert f"{len(used)} GPUs are needed" in found.refusals[0]


def test_gpus_that_may_be_used_have_to_be_linked_as_the_others_were() -> None:
    old, new = numbered("a", 4), numbered("b", 4)
    bridges = links(old, pairs_of(4)), links(new, pairs_of(4))
    pair = {"GPU-a00", "GPU-a01"}
    assert map_gpus(old, new, *bridges, {"GPU-b02", "GPU-b03"}, pair).possible
    apart = map_gpus(old, new, *bridges, {"GPU-b01", "GPU-b02"}, pair)
    assert "linked in another way" in apart.refusals[0]


def test_a_gpu_that_was_swapped_is_the_only_one_that_moves() -> None:
    saved = numbered("b", 8)
    present = [*saved[:3], gpu("a99"), *saved[4:]]
    found = map_gpus(saved, present, links(saved), links(present))
    assert [pair for pair in found.pairs if pair[0] != pair[1]] == [("GPU-b03", "GPU-a99")]


def test_mixed_models_go_to_their_own() -> None:
    saved = [gpu("a1", H100), gpu("a2", L40S)]
    present = [gpu("b1", L40S), gpu("b2", H100)]
    found = map_gpus(saved, present, links(saved), links(present))
    assert found.pairs == (("GPU-a1", "GPU-b2"), ("GPU-a2", "GPU-b1"))


def test_same_gpus_with_a_link_that_is_gone_are_refused() -> None:
    gpus = numbered("a", 4)
    broken = links(gpus, lambda one, other: 17 if (one, other) == (0, 1) else 18)
    assert "linked in another way" in map_gpus(gpus, gpus, links(gpus), broken).refusals[0]


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        ([gpu("b1")], "the checkpoint has 2"),
        ([gpu("b1"), gpu("b2"), gpu("b3")], "this node 3"),
        ([gpu("b1"), gpu("b2", L40S)], "the checkpoint has 0 NVIDIA L40S"),
        ([gpu("b1"), gpu("b2", memory=Fact("1"))], "of 1 bytes"),
        ([gpu("b1"), replace(gpu("b2"), lost=True)], "is lost"),
        ([gpu("b1"), gpu("b2", mig=Fact("on"))], "MIG of this node's GPU-b2 is on"),
        ([gpu("b1"), gpu("b2", mig=Fact(None, "no permission"))], "no permission"),
        ([gpu("b1"), gpu("b2", memory=Fact(None, "broken"))], "broken"),
        ([gpu("b1"), gpu("b1")], "2 of this node's GPUs have the UUID GPU-b1"),
        ([gpu("b1"), replace(gpu("b2"), uuid=Fact(None, "Unknown Error"))], "Unknown Error"),
        ([gpu("b1"), replace(gpu("b2"), name=Fact(None, "no answer"))], "no answer"),
        ([], "this node 0"),
    ],
)
def test_what_forbids_a_map_is_said(present: list[Gpu], reason: str) -> None:
    saved = [gpu("a1"), gpu("a2")]
    for found in (
        map_gpus(saved, present, links(saved), links(present)),
        map_gpus(present, saved, links(present), links(saved)),
    ):
        assert not found.possible
        assert not found.pairs
    found = map_gpus(saved, present, links(saved), links(present))
    assert any(reason in refusal for refusal in found.refusals), found.refusals


def test_unknown_links_are_no_links_to_rely_on() -> None:
    gpus = numbered("a", 2)
    broken = [Link("GPU-a00", "GPU-a01", Fact(None, "NVML: Unknown Error"), Fact("ok"))]
    for before, now in ((broken, broken), (links(gpus), broken), ([], links(gpus))):
        assert "is not known" in map_gpus(gpus, gpus, before, now).refusals[0]
    assert not links_text(gpus, broken).known


# --- room


def test_an_empty_gpu_takes_what_fits_into_it() -> None:
    node = Inventory(Answer.OK, gpus=(gpu("a", memory_used=Fact(str(10 * GIB))),))
    assert fits({"GPU-a": 70 * GIB}, node) == ()
    assert "are needed" in fits({"GPU-a": 70 * GIB + 1}, node)[0]


def busy(*found: GpuProcess) -> Gpu:
    return gpu("a", processes_read=Fact(str(len(found))), processes=found)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (busy(GpuProcess(7, "compute", Fact("1"))), "in use by pid 7"),
        (busy(GpuProcess(7, "mps", Fact(None, "?"))), "in use by pid 7"),
        (gpu("a", memory=Fact(None, "x")), "free memory is not known"),
        (gpu("a", memory_used=Fact(None, "x")), "free memory is not known"),
        (gpu("a", memory_used=Fact("not supported")), "free memory is not known"),
        (gpu("a", processes_read=Fact(None, "x")), "whether it is empty is not known"),
        (gpu("a", processes_read=Fact("not supported")), "whether it is empty is not known"),
        (replace(gpu("a"), lost=True), "is lost"),
        (gpu("b"), "GPU-a is not there"),
    ],
)
def test_a_gpu_that_is_not_known_to_be_empty_takes_nothing(found: Gpu, reason: str) -> None:
    (said,) = fits({"GPU-a": 0}, Inventory(Answer.OK, gpus=(found,)))
    assert reason in said


def test_own_processes_and_screens_are_no_strangers() -> None:
    found = busy(GpuProcess(7, "compute", Fact("1")), GpuProcess(8, "graphics", Fact("1")))
    assert fits({"GPU-a": GIB}, Inventory(Answer.OK, gpus=(found,)), own={7}) == ()


# --- CUDA_VISIBLE_DEVICES

NODE = (
    replace(gpu("1111-a", index=1), pci=Fact("0000:3b:00.0")),
    replace(
        gpu("1122-b", index=0),
        pci=Fact("0000:18:00.0"),
        mig_devices=(MigDevice(Fact("MIG-7a"), Fact("1"), Fact("0")), MigDevice(Fact("MIG-7b"))),
    ),
)
A, B = "GPU-1111-a", "GPU-1122-b"


@pytest.mark.parametrize(
    ("value", "uuids", "refusal"),
    [
        (None, (A, B), ""),
        ("", (), ""),
        (" ", (), ""),
        ("0,1", (B, A), ""),
        ("1", (A,), ""),
        ("GPU-1111", (A,), ""),
        ("gpu-1111", (), "neither a number"),
        ("GPU-1122-B,GPU-1111-A", (B, A), ""),
        ("GPU-11", (), "fits to 2 devices"),
        ("GPU-9", (), "no device of this node"),
        ("MIG-7a", ("MIG-7a",), ""),
        ("MIG-7", (), "fits to 2 devices"),
        ("MIG-GPU-1122-b/1/0", ("MIG-7a",), ""),
        ("MIG-GPU-1122-b/2/0", (), "is not a slice of"),
        ("0,2,1", (B,), "2 is not a GPU of this node"),
        ("0,-1,1", (B,), "'-1' is neither"),
        ("0,0", (B,), "a second time"),
        ("0,GPU-1122", (B,), "a second time"),
        ("0,,1", (B,), "'' is neither"),
        ("NoDevFiles", (), "neither a number"),
        ("٣", (), "neither a number"),
    ],
)
def test_visible_devices(value: str | None, uuids: tuple[str, ...], refusal: str) -> None:
    found = visible(value, NODE)
    assert found.uuids == uuids
    assert [refusal in said for said in found.refusals] == ([True] if refusal else [])


def test_a_number_means_nothing_on_a_mixed_node_unless_the_order_is_the_bus() -> None:
    mixed = (gpu("l", L40S, index=0), gpu("h", H100, index=1))
    assert "several models" in visible("0", mixed).refusals[0]
    assert visible("0", mixed, "PCI_BUS_ID").uuids == ("GPU-l",)
    assert visible("GPU-h", mixed).uuids == ("GPU-h",)
    nowhere = (replace(mixed[0], pci=Fact(None, "no answer")),)
    assert "order of the GPUs on the bus" in visible("0", nowhere).refusals[0]


@given(st.text(st.sampled_from("0123,GPU-MIG/ab \n"), max_size=12))
def test_any_text_is_resolved_or_refused(value: str) -> None:
    found = visible(value, NODE)
    assert len(set(found.uuids)) == len(found.uuids)
    assert found.refusals or len(found.uuids) == (value.count(",") + 1 if value.strip() else 0)


# --- plain data

facts = st.one_of(st.builds(Fact, st.text(max_size=4)), st.builds(Fact, st.none(), st.text()))
processes = st.builds(GpuProcess, st.integers(1, 9), st.sampled_from(["compute", "mps"]), facts)
gpus_ = st.builds(
    Gpu,
    st.integers(0, 15),
    st.booleans(),
    processes=st.lists(processes, max_size=2).map(tuple),
    mig_devices=st.lists(st.builds(MigDevice, facts, facts, facts), max_size=2).map(tuple),
    **dict.fromkeys(GPU_FACTS, facts),
)
inventories = st.builds(
    Inventory,
    st.sampled_from(list(Answer)),
    st.text(max_size=3),
    *(facts,) * 6,
    st.lists(gpus_, max_size=2).map(tuple),
    st.lists(st.builds(Link, st.just("a"), st.just("b"), facts, facts, facts)).map(tuple),
)


@given(inventories)
def test_an_inventory_survives_json(found: Inventory) -> None:
    assert Inventory.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_field_that_an_older_engine_did_not_write_is_unknown() -> None:
    data = EMPTY.to_json()
    del data["loaded"]
    assert not Inventory.from_json(data).loaded.known


def test_at_rest_nothing_is_left_of_who_used_it() -> None:
    node = Inventory(Answer.OK, gpus=(busy(GpuProcess(7, "compute", Fact("1"))),))
    (found,) = node.at_rest().gpus
    assert (found.processes, found.processes_read.known) == ((), False)
    assert not found.memory_used.known
    assert found.uuid == node.gpus[0].uuid


@pytest.mark.parametrize(
    ("value", "expected"), [("0", 0), ("12", 12), ("-1", None), ("", None), ("٣", None)]
)
def test_numbers(value: str, expected: int | None) -> None:
    assert number(Fact(value)) == expected
    assert number(Fact(None, "1")) is None
