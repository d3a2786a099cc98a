"""The gate: what may be restored against what, and what is never let through."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.decide.gate import compare, predict
from pitstop.decide.support import Feature, support_of
from pitstop.model.fingerprint import HOST_PREFIX, SET_FIELDS, Fact, Fingerprint
from pitstop.model.verdict import Difference, Verdict
from pitstop.model.words import Judgement

quick = settings(deadline=None, max_examples=150)

NAMES = (
    "driver.version",
    "engine.version",
    "gpu.0.uuid",
    "gpu.count",
    "host.cpu",
    "host.kernel",
    "host.libc",
    "hostile.field",
    "model.version",
)
names = st.sampled_from(NAMES)
values = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
features = st.sets(st.sampled_from(["avx", "avx2", "sse", "amx"])).map(
    lambda s: " ".join(sorted(s))
)
known = st.builds(Fact, values)
unknown = st.builds(lambda reason: Fact(None, reason), values)


def fingerprints(facts: st.SearchStrategy[Fact]) -> st.SearchStrategy[Fingerprint]:
    return st.dictionaries(names, facts).map(Fingerprint)


full = fingerprints(known)
partial = fingerprints(st.one_of(known, unknown))
tolerations = st.sets(names)


def fp(**facts: str | None) -> Fingerprint:
    return Fingerprint({k.replace("_", "."): Fact(v, "") for k, v in facts.items()})


@quick
@given(full, tolerations)
def test_a_known_fingerprint_equals_itself(saved: Fingerprint, tolerate: set[str]) -> None:
    verdict = compare(saved, saved, tolerate)
    assert verdict == Verdict()
    assert verdict.valid


@quick
@given(partial, partial, tolerations)
def test_unknown_never_equals_anything_and_is_never_tolerated(
    saved: Fingerprint, present: Fingerprint, tolerate: set[str]
) -> None:
    verdict = compare(saved, present, tolerate)
    invalid = {d.field for d in verdict.invalid}
    for name in {*saved.facts, *present.facts}:
        sides = (saved.facts.get(name), present.facts.get(name))
        if any(side is None or not side.known for side in sides):
            assert name in invalid


@quick
@given(partial, partial, tolerations)
def test_what_is_not_of_the_host_is_never_tolerated(
    saved: Fingerprint, present: Fingerprint, tolerate: set[str]
) -> None:
    for difference in compare(saved, present, tolerate).differences:
        if difference.judgement is Judgement.TOLERATED:
            assert difference.field.startswith(HOST_PREFIX) or (
                difference.reason == "the state moves to this GPU"
            )


@quick
@given(partial, partial, tolerations)
def test_every_differing_field_is_listed_once_in_order_and_no_other(
    saved: Fingerprint, present: Fingerprint, tolerate: set[str]
) -> None:
    found = [d.field for d in compare(saved, present, tolerate).differences]
    assert found == sorted(set(found))

    def differs(name: str) -> bool:
        before, now = saved.facts.get(name), present.facts.get(name)
        if before is None or now is None or before.value is None or now.value is None:
            return True
        if name in SET_FIELDS:
            return set(before.value.split()) != set(now.value.split())
        return before.value != now.value

    assert found == sorted(name for name in {*saved.facts, *present.facts} if differs(name))


@quick
@given(full, full, tolerations)
def test_both_values_are_shown(
    saved: Fingerprint, present: Fingerprint, tolerate: set[str]
) -> None:
    for d in compare(saved, present, tolerate).differences:
        if d.field in SET_FIELDS:
            continue
        assert d.saved == str(saved.facts.get(d.field, Fact(None, "not recorded")))
        assert d.present == str(present.facts.get(d.field, Fact(None, "not recorded")))
        assert d.reason


@quick
@given(full, full, tolerations)
def test_tolerating_more_never_forbids_more(
    saved: Fingerprint, present: Fingerprint, tolerate: set[str]
) -> None:
    strict = {d.field for d in compare(saved, present).invalid}
    lenient = {d.field for d in compare(saved, present, tolerate).invalid}
    assert lenient <= strict
    assert strict - lenient <= {n for n in tolerate if n.startswith(HOST_PREFIX)}


# --- another GPU

MOVES = {"driver.version": "580.65.06", "host.arch": "x86_64"}
gpu_values = st.sampled_from(["GPU-a", "GPU-b", "GPU-c", "none", "not supported", ""])
drivers = st.sampled_from(
    ["550.90.07", "570.86.10", "575.57.08", "580.65.06", "595.1.0", "610.57.04", "none", "", "x"]
)
machines = st.sampled_from(["x86_64", "aarch64", "riscv64", ""])


@quick
@given(gpu_values, gpu_values, drivers, machines, st.text(max_size=3), st.text(max_size=3))
def test_another_gpu_is_tolerated_exactly_where_the_driver_moves_state_and_all_else_is_the_same(
    before: str, now: str, driver: str, machine: str, vbios: str, vbios_now: str
) -> None:
    common = {"driver.version": Fact(driver), "host.arch": Fact(machine), "gpu.count": Fact("1")}
    saved = Fingerprint({**common, "gpu.0.uuid": Fact(before), "gpu.0.vbios": Fact(vbios)})
    present = Fingerprint({**common, "gpu.0.uuid": Fact(now), "gpu.0.vbios": Fact(vbios_now)})
    moves = support_of(driver, machine).has(Feature.MIGRATION)
    real = before.startswith("GPU-") and now.startswith("GPU-")
    verdict = compare(saved, present, ["gpu.0.uuid", "gpu.0.vbios"])
    assert verdict.valid == ((before == now or (moves and real)) and vbios == vbios_now)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "the state moves to this GPU"),
        ({"driver.version": "575.57.08"}, "from driver 580 on, here is 575.57.08"),
        ({"driver.version": None}, "the driver's version is not known"),
        ({"driver.version": "none"}, "'none' is not the version of a driver"),
        ({"driver.version": "610.57.04"}, "cuda-checkpoint#58"),
        ({"host.arch": "aarch64"}, "from driver 595 on"),
        ({"host.arch": None}, "the machine is not known"),
    ],
)
def test_why_another_gpu_is_taken_or_not(changes: dict[str, str | None], reason: str) -> None:
    facts = {name: Fact(value, "broken") for name, value in {**MOVES, **changes}.items()}
    verdict = compare(
        Fingerprint({**facts, "gpu.0.uuid": Fact("GPU-a")}),
        Fingerprint({**facts, "gpu.0.uuid": Fact("GPU-b")}),
    )
    (moved,) = [d for d in verdict.differences if d.field == "gpu.0.uuid"]
    assert reason in moved.reason
    assert (moved.judgement is Judgement.TOLERATED) is (not changes)


@pytest.mark.parametrize("field", ["gpu.uuid", "gpu.x.uuid", "gpu.0.uuid.x", "xgpu.0.uuid"])
def test_only_the_uuid_of_a_gpu_may_be_another(field: str) -> None:
    facts = {name: Fact(value) for name, value in MOVES.items()}
    saved = Fingerprint({**facts, field: Fact("GPU-a")})
    assert not compare(saved, saved.with_changes({field: "GPU-b"})).valid


@quick
@given(full, full)
def test_being_different_is_symmetric(saved: Fingerprint, present: Fingerprint) -> None:
    there = {d.field for d in compare(saved, present).differences}
    back = {d.field for d in compare(present, saved).differences}
    assert there == back


@quick
@given(full)
def test_no_change_is_predicted_to_be_valid(saved: Fingerprint) -> None:
    assert predict(saved, {}) == Verdict()


@quick
@given(full, st.dictionaries(names, values), tolerations)
def test_the_prediction_is_what_the_gate_says_afterwards(
    saved: Fingerprint, changes: dict[str, str], tolerate: set[str]
) -> None:
    after = Fingerprint({**saved.facts, **{k: Fact(v) for k, v in changes.items()}})
    assert predict(saved, changes, tolerate) == compare(saved, after, tolerate)


@quick
@given(partial)
def test_a_prediction_does_not_make_the_unknown_known(saved: Fingerprint) -> None:
    assert predict(saved, {}).valid == all(fact.known for fact in saved.facts.values())


def test_a_declared_driver_upgrade_is_refused_beforehand() -> None:
    saved = fp(driver_version="570.86", host_kernel="6.1")
    (difference,) = predict(saved, {"driver.version": "580.65"}, ["host.kernel"]).differences
    assert (difference.saved, difference.present) == ("570.86", "580.65")
    assert difference.judgement is Judgement.INVALID


def test_a_field_that_was_not_recorded_says_so() -> None:
    (difference,) = compare(fp(), fp(model_version="a")).differences
    assert difference.saved == "unknown (not recorded)"
    assert difference.reason == "the saved value is unknown"


def test_two_unknowns_for_the_same_reason_are_not_equal() -> None:
    broken = Fingerprint({"gpu.count": Fact(None, "NVML: lost")})
    verdict = compare(broken, broken, ["gpu.count"])
    assert not verdict.valid
    assert "NVML: lost" in str(verdict)


def test_none_is_a_value() -> None:
    assert compare(fp(driver_version="none"), fp(driver_version="none")).valid
    assert not compare(fp(driver_version="none"), fp(driver_version="580")).valid


@pytest.mark.parametrize("value", ["", " ", "none"])
def test_an_empty_value_is_not_unknown(value: str) -> None:
    assert compare(fp(engine_version=value), fp(engine_version=value)).valid


# --- sets


@quick
@given(features, features, st.booleans())
def test_set_fields(before: str, now: str, tolerated: bool) -> None:
    tolerate = ["host.cpu"] if tolerated else []
    verdict = compare(fp(host_cpu=before), fp(host_cpu=now), tolerate)
    lost = set(before.split()) - set(now.split())
    assert verdict.valid == (not lost or tolerated)
    assert bool(verdict.differences) == (set(before.split()) != set(now.split()))


def test_order_and_spacing_of_a_set_do_not_matter() -> None:
    assert compare(fp(host_cpu="a b  c"), fp(host_cpu="c b a")) == Verdict()


def test_added_features_are_tolerated_and_shown() -> None:
    (difference,) = compare(fp(host_cpu="a b"), fp(host_cpu="a b c d")).differences
    assert difference.judgement is Judgement.TOLERATED
    assert (difference.saved, difference.present) == ("without c d", "with c d")


def test_lost_features_are_named_and_no_other() -> None:
    (difference,) = compare(fp(host_cpu="a b c"), fp(host_cpu="c d")).differences
    assert difference.judgement is Judgement.INVALID
    assert (difference.saved, difference.present) == ("with a b", "without a b")


# --- plain data


@quick
@given(partial)
def test_a_fingerprint_survives_json(saved: Fingerprint) -> None:
    assert Fingerprint.from_json(json.loads(json.dumps(saved.to_json()))) == saved


@quick
@given(partial, partial, tolerations)
def test_a_verdict_survives_json(
    saved: Fingerprint, present: Fingerprint, tolerate: set[str]
) -> None:
    verdict = compare(saved, present, tolerate)
    data = json.loads(json.dumps(verdict.to_json()))
    assert Verdict.from_json(data) == verdict
    assert data["valid"] is verdict.valid


def test_a_verdict_from_a_file_is_judged_by_its_differences_not_by_its_word() -> None:
    lie = {"valid": True, "differences": [difference_json(Judgement.INVALID)]}
    assert not Verdict.from_json(lie).valid


def difference_json(judgement: Judgement) -> dict[str, str]:
    return {
        "field": "f",
        "saved": "1",
        "present": "2",
        "judgement": judgement.value,
        "reason": "r",
    }


def test_an_unknown_judgement_in_a_file_is_an_error() -> None:
    with pytest.raises(ValueError, match="maybe"):
        Verdict.from_json(
            {"differences": [{**difference_json(Judgement.INVALID), "judgement": "maybe"}]}
        )


def test_words() -> None:
    assert str(Verdict()) == "valid: nothing differs"
    bad = Difference("driver.version", "1", "2", Judgement.INVALID, "why")
    good = Difference("host.kernel", "1", "2", Judgement.TOLERATED, "policy")
    assert str(Verdict((bad, good))) == (
        "invalid: driver.version: 1 -> 2 (invalid: why); host.kernel: 1 -> 2 (tolerated: policy)"
    )
    assert str(Verdict((good,))).startswith("valid: host.kernel")
    assert Verdict((bad, good)).invalid == (bad,)
