"""The gate: may this checkpoint be restored against what is there now?

Used twice with the same rules: when planning, against the fingerprint as the declared
changes will make it, and after maintenance, against the fingerprint that is really there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from pitstop.decide.support import Feature, support_of
from pitstop.model.fingerprint import HOST_PREFIX, SET_FIELDS, Fact, Fingerprint
from pitstop.model.verdict import Difference, Verdict
from pitstop.model.words import Judgement

ABSENT = Fact(None, "not recorded")

_GPU = re.compile(r"gpu\.[0-9]+\.uuid")


def compare(saved: Fingerprint, present: Fingerprint, tolerate: Collection[str] = ()) -> Verdict:
    """Compare field by field.

    Args:
        saved: the fingerprint in a checkpoint's manifest.
        present: the fingerprint of the node and workload now.
        tolerate: host fields (`host.kernel`, …) whose difference the site's policy allows.
            Other fields and unknown values are never tolerated.

    Another GPU (`gpu.N.uuid`) is tolerated by itself where the driver moves state between GPUs:
    all else that the fingerprint holds of it has to be the same.

    Returns:
        A verdict with one difference per field that is not the same, in field order.
    """
    fields = sorted({*saved.facts, *present.facts})
    fixed = _why_gpus_stay(present)
    found = (
        _difference(
            name,
            saved.facts.get(name, ABSENT),
            present.facts.get(name, ABSENT),
            set(tolerate),
            fixed,
        )
        for name in fields
    )
    return Verdict(tuple(d for d in found if d is not None))


def predict(
    saved: Fingerprint, changes: Mapping[str, str], tolerate: Collection[str] = ()
) -> Verdict:
    """Say beforehand what the gate will say after the declared changes are made."""
    return compare(saved, saved.with_changes(changes), tolerate)


def _why_gpus_stay(present: Fingerprint) -> str:
    """Say why state cannot move to another GPU; empty when it can."""
    driver = present.facts.get("driver.version", ABSENT)
    machine = present.facts.get("host.arch", ABSENT)
    if machine.value is None:
        return f"the machine is not known ({machine.reason})"
    return support_of(driver.value, machine.value).why_not(Feature.MIGRATION)


def _difference(
    name: str, saved: Fact, present: Fact, tolerate: set[str], fixed: str
) -> Difference | None:
    if saved.value is None or present.value is None:
        side = "saved" if saved.value is None else "present"
        return Difference(
            name, str(saved), str(present), Judgement.INVALID, f"the {side} value is unknown"
        )
    if name in SET_FIELDS:
        return _set_difference(name, saved.value, present.value, tolerate)
    if saved.value == present.value:
        return None
    if _GPU.fullmatch(name) and saved.value.startswith("GPU-") and present.value.startswith("GPU-"):
        return Difference(name, saved.value, present.value, *_judge_move(fixed))
    return Difference(name, saved.value, present.value, *_judge(name, tolerate))


def _judge_move(fixed: str) -> tuple[Judgement, str]:
    if fixed:
        return Judgement.INVALID, f"the state cannot move to another GPU: {fixed}"
    return Judgement.TOLERATED, "the state moves to this GPU"


def _set_difference(name: str, saved: str, present: str, tolerate: set[str]) -> Difference | None:
    before, now = set(saved.split()), set(present.split())
    if before == now:
        return None
    lost, gained = sorted(before - now), sorted(now - before)
    if not lost:
        # Code in the image was chosen for the smaller set; more features do it no harm.
        return Difference(
            name,
            f"without {' '.join(gained)}",
            f"with {' '.join(gained)}",
            Judgement.TOLERATED,
            "features were only added",
        )
    judgement, _ = _judge(name, tolerate)
    return Difference(
        name,
        f"with {' '.join(lost)}",
        f"without {' '.join(lost)}",
        judgement,
        "features are missing",
    )


def _judge(name: str, tolerate: set[str]) -> tuple[Judgement, str]:
    if name.startswith(HOST_PREFIX) and name in tolerate:
        return Judgement.TOLERATED, "the site's policy tolerates this host field"
    return Judgement.INVALID, "the checkpoint is only valid against the saved value"
