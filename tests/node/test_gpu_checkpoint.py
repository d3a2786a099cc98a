"""A workload with GPU state: saved at one boundary and brought back, whatever the driver does.

Real processes, a real CRIU and the real cuda-python and nvidia-ml-py; only the driver is emulated.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import State
from pitstop.model.errors import CheckpointFailed, EndedInDump, PitstopError
from pitstop.node import processes
from pitstop.node.checkpointer import settle
from pitstop.node.cuda.mark import read_mark
from tests.rigs.engine import Engine, until
from tests.rigs.gpu_program import GpuProgram
from tests.rigs.gpus import EmulatedGpus, build

WORKLOAD = "gpu"
QUICK = {"lock": 5.0, "call": 3.0, "move": 3.0}
"""Deadlines of the driver's calls: what hangs is to be given up soon."""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedGpus:
    """Four GPUs, for all that is started from here."""
    found = EmulatedGpus(tmp_path / "gpus", gpus=4)
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def program(engine: Engine, gpus: EmulatedGpus) -> GpuProgram:
    """Two CUDA processes on a GPU each, below a parent without CUDA."""
    return start(engine, 2)


def start(engine: Engine, ranks: int, *options: str) -> GpuProgram:
    command = (str(build() / "gpu-workload"), "--processes", str(ranks), *options)
    return GpuProgram.start(engine, *command, workload=WORKLOAD)


def save(program: GpuProgram, checkpoint: str = "ck1", **changes: Any) -> dict[str, Any]:
    return program.save(checkpoint, **{"gpu_limits": QUICK, **changes})


def calls(gpus: EmulatedGpus, *wanted: str) -> list[str]:
    """The calls that the driver saw succeed, in the order of their ends."""
    return [t.call for t in gpus.trace() if t.result == 0 and t.call in wanted]


def test_all_gpus_come_back_byte_by_byte(engine: Engine, gpus: EmulatedGpus) -> None:
    program = start(engine, 4)
    for _ in range(3):
        program.step()
    before = program.memory()
    saved = save(program)
    assert (saved["gpus"]["processes"], saved["gpus"]["gpus"]) == (4, 4)
    assert saved["gpus"]["bytes"] >= 4 * 65536
    assert [gpus.used(n) for n in range(4)] == [0] * 4, "it is all in the image"
    assert program.restore().report.get("running"), program.launched.said
    assert program.memory() == before
    assert program.uuids() == list(gpus.uuids)
    program.step()
    assert program.counters() == [4] * 4
    # The driver itself saw the order, and so does the journal.
    order = calls(gpus, "lock", "checkpoint")
    assert order == ["lock"] * 4 + ["checkpoint"] * 4
    assert saved["gpus"]["one_boundary"] is True


def test_one_process_with_several_gpus(engine: Engine, gpus: EmulatedGpus) -> None:
    program = start(engine, 2, "--gpus", "2")
    before = program.memory()
    saved = save(program)
    assert (saved["gpus"]["processes"], saved["gpus"]["gpus"]) == (2, 4)
    assert program.restore().report.get("running"), program.launched.said
    assert program.memory() == before


def test_a_workload_without_cuda_loads_no_driver(engine: Engine, gpus: EmulatedGpus) -> None:
    engine.serve()
    assert engine.save()["gpus"] is None
    assert gpus.trace() == []


CALLS_OF_A_CHECKPOINT = ("get_restore_thread_id", "lock", "get_state", "checkpoint")
CALLS_OF_THE_WAY_BACK = ("get_state", "restore", "unlock")
KINDS = ("error", "error_after", "hang", "hang_target", "die", "die_caller", "fail", "oom")


def outcome_of(program: GpuProgram, attempt: Callable[[], object]) -> str:
    """Try, and say how the workload is afterwards: seen, not believed."""
    processes_before = program.launched.tree
    try:
        attempt()
    except EndedInDump as error:
        until(lambda: not any(p.alive() for p in processes_before), "all of it has ended")
        assert read_mark(program.engine.files(WORKLOAD)) is None
        return f"ended: {error.cause}"
    except CheckpointFailed as error:
        assert "runs on" in error.hint or "untouched" in error.hint, error
        assert all(p.alive() for p in processes_before)
        before = program.counters()
        program.step()
        assert program.counters() == [count + 1 for count in before]
        assert read_mark(program.engine.files(WORKLOAD)) is None
        assert program.engine.store(WORKLOAD).all() == []
        return f"runs: {error.cause}"
    return "saved"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS_OF_A_CHECKPOINT)
def test_a_fault_in_a_checkpoint_loses_nothing_unsaid(
    program: GpuProgram, gpus: EmulatedGpus, call: str, kind: str
) -> None:
    """Once, in the second process: the first one is where it should be by then."""
    victim = program.launched.tree[-1].pid
    gpus.fault(call, kind, value=999, pid=victim, nth=1)  # type: ignore[arg-type]
    how = outcome_of(program, lambda: save(program))
    if kind in ("die", "fail") or (kind == "hang_target" and call != "lock"):
        assert how.startswith("ended: "), how
    elif how == "saved":
        gpus.clear_faults()
        assert program.restore().report.get("running"), program.launched.said
        assert program.counters() == [0, 0]
    else:
        assert how.startswith("runs: "), how
        assert str(victim) in how, how


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS_OF_THE_WAY_BACK)
def test_a_fault_on_the_way_back_is_tried_again_or_said(
    program: GpuProgram, gpus: EmulatedGpus, call: str, kind: str
) -> None:
    """The first process cannot be checkpointed, and then the way back of the second fails."""
    _root, one, other = program.launched.tree
    gpus.fault("checkpoint", "error", value=999, pid=one.pid)
    gpus.fault(call, kind, value=999, pid=other.pid, nth=2 if call == "get_state" else 1)  # type: ignore[arg-type]
    how = outcome_of(program, lambda: save(program))
    if kind in ("die", "fail", "hang_target"):
        assert how.startswith("ended: "), how
        assert str(other.pid) in how, how
    elif kind == "oom" and call == "restore":
        assert how.startswith("ended: "), how
    else:
        assert how.startswith("runs: "), how
