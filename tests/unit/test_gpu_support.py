"""The support table: what a driver can do, what forbids it, and that the page says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.support import (
    ARM,
    DENIED,
    TABLE,
    X86,
    Feature,
    Since,
    branch_of,
    obstacles,
    support_of,
    why_not_checkpoint,
)
from pitstop.model.fingerprint import NONE, Fact
from pitstop.model.inventory import EMPTY, NOT_OFFERED, NOT_SUPPORTED, Answer, Gpu, Inventory

PAGE = Path(__file__).parents[2] / "docs" / "gpu-support.md"

GOOD_GPU = Gpu(0, uuid=Fact("GPU-a"), mig=Fact("off"), mps=Fact("off"))
GOOD = Inventory(
    Answer.OK, driver=Fact("580.65.06"), loaded=Fact("580.65.06"), gpus=(GOOD_GPU,) * 2
)


@pytest.mark.parametrize(
    ("driver", "machine", "api", "migration"),
    [
        ("550.90.07", X86, False, False),
        ("565.57.01", X86, False, False),
        ("570.124.06", X86, True, False),
        ("575.57.08", X86, True, False),
        ("580.65.06", X86, True, True),
        ("595.10", X86, True, True),
        ("1000.1", X86, True, True),
        ("580.65.06", ARM, False, False),
        ("595.10", ARM, True, True),
        ("580.65.06", "riscv64", False, False),
        ("99.1", X86, False, False),
        ("570.86.10", X86, False, False),
        ("570.86", X86, False, False),
        ("570.860.1", X86, True, False),
        ("570.158.01", X86, False, False),
        ("610.57.04", X86, False, False),
        ("610.57.05", X86, True, True),
        *((words, X86, False, False) for words in ("", "beta", NONE, "580", "580.x", "٥80.1")),
        (None, X86, False, False),
    ],
)
def test_of_a_driver(driver: str | None, machine: str, api: bool, migration: bool) -> None:
    support = support_of(driver, machine)
    assert support.has(Feature.API) is api
    assert support.has(Feature.MIGRATION) is migration
    for feature in Feature:
        assert bool(support.why_not(feature)) is not support.has(feature)


@given(st.integers(1, 2000), st.sampled_from([X86, ARM]), st.sampled_from(list(Feature)))
def test_a_newer_branch_can_no_less(branch: int, machine: str, feature: Feature) -> None:
    if support_of(f"{branch}.1", machine).has(feature):
        assert support_of(f"{branch + 1}.1", machine).has(feature)


@given(st.text(max_size=12))
def test_a_branch_is_read_from_a_version_and_from_nothing_else(text: str) -> None:
    branch = branch_of(text)
    assert branch is None or text.startswith((f"{branch}.", "0"))


def test_what_nobody_can_is_said_with_its_reference() -> None:
    support = support_of("610.99.1", X86)
    for feature in (Feature.MIG, Feature.MPS, Feature.UVM, Feature.CUSTOM_STORAGE):
        assert "no driver is known that can" in support.why_not(feature)
    assert support.has(Feature.IPC)


def with_gpu(**changes: object) -> Inventory:
    return replace(GOOD, gpus=(GOOD_GPU, replace(GOOD_GPU, **changes)))  # type: ignore[arg-type]


def test_a_good_node_has_nothing_against_it() -> None:
    assert why_not_checkpoint(GOOD, X86) == ()
    assert why_not_checkpoint(with_gpu(mig=Fact(NOT_SUPPORTED)), X86) == ()
    assert why_not_checkpoint(replace(GOOD, loaded=Fact(NONE)), X86) == ()


@pytest.mark.parametrize(
    ("inventory", "machine", "reason", "fix"),
    [
        (EMPTY, X86, "no GPU", "a node with a GPU"),
        (replace(GOOD, gpus=()), X86, "the driver shows none", "dmesg"),
        (Inventory(Answer.NO_LIBRARY), X86, "not installed", "install the NVIDIA driver"),
        (Inventory(Answer.NO_DRIVER), X86, "not loaded", "modprobe nvidia"),
        (Inventory(Answer.NO_BINDING, "No module"), X86, "No module", "nvidia-ml-py"),
        (Inventory(Answer.CRASH, "SIGSEGV"), X86, "crashes (SIGSEGV)", "reboot"),
        (Inventory(Answer.HANG, "no answer in 5 s"), X86, "no answer in 5 s", "reboot"),
        (Inventory(Answer.ERROR, "Unknown Error"), X86, "Unknown Error", "dmesg"),
        (
            Inventory(
                Answer.MISMATCH, "mismatch", library=Fact("580.126"), loaded=Fact("580.105.08")
            ),
            X86,
            "library 580.126, module 580.105.08",
            "modprobe -r",
        ),
        (replace(GOOD, loaded=Fact("580.105.08")), X86, "would mix versions", "modprobe -r"),
        (replace(GOOD, driver=Fact("565.1.1"), loaded=Fact(NONE)), X86, "from driver 570", "570"),
        (GOOD, ARM, "from driver 595", "595 or newer"),
        (GOOD, "riscv64", "riscv64", "docs/gpu-support.md"),
        (
            replace(GOOD, driver=Fact(None, "No Permission"), loaded=Fact(NONE)),
            X86,
            "driver's version is not known",
            "dmesg",
        ),
        (
            replace(GOOD, driver=Fact("610.57.04"), loaded=Fact("610.57.04")),
            X86,
            "cuda-checkpoint#58",
            "another driver",
        ),
        (with_gpu(lost=True), X86, "fallen off the bus", "reboot"),
        (with_gpu(mig=Fact("on")), X86, "cuda-checkpoint#42", "without MIG"),
        (with_gpu(mig=Fact("off, on after a reset")), X86, "MIG off, on after", "without MIG"),
        (with_gpu(mig=Fact(None, "Unknown Error")), X86, "Unknown Error", "nvidia-smi"),
        (with_gpu(mig=Fact(NOT_OFFERED)), X86, NOT_OFFERED, "without MIG"),
        (with_gpu(mps=Fact("on")), X86, "MPS server", "without MPS"),
        (with_gpu(mps=Fact(None, "No Permission")), X86, "No Permission", "nvidia-smi"),
    ],
)
def test_what_forbids_it_is_said_once_with_what_to_do(
    inventory: Inventory, machine: str, reason: str, fix: str
) -> None:
    (found,) = obstacles(inventory, machine)
    assert reason in str(found)
    assert fix in found.fix
    assert why_not_checkpoint(inventory, machine) == (str(found),)


def test_everything_that_forbids_it_is_said() -> None:
    bad = replace(
        with_gpu(mig=Fact("on"), mps=Fact("on")), driver=Fact("550.1"), loaded=Fact("550.1")
    )
    assert len(why_not_checkpoint(bad, X86)) == 3


# --- the page


def row(since: Since) -> str:
    cells = (
        f"`{since.feature}`",
        since.what,
        *(str(since.branches.get(machine, "no driver")) for machine in (X86, ARM)),
        since.note,
        ", ".join(since.sources),
    )
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def test_the_page_is_the_table() -> None:
    page = PAGE.read_text()
    features = [line for line in page.splitlines() if line.startswith("| `")]
    denied = [
        f"| {entry.version} | {entry.why} | {entry.fix} | {', '.join(entry.sources)} |"
        for entry in DENIED
    ]
    assert features == [row(since) for since in TABLE]
    assert [line for line in page.splitlines() if line.startswith(("| 5", "| 6"))] == denied


def test_every_line_has_a_source() -> None:
    assert {since.feature for since in TABLE} == set(Feature)
    assert all(since.sources for since in TABLE)
    assert all(entry.sources for entry in DENIED)
