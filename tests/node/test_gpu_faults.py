"""Every fault of the driver at every call: all processes run again, or the loss is said.

Real processes, a real CRIU and the real cuda-python; only the driver is emulated. What is still
running after a test is the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pitstop.model.errors import CheckpointFailed, EndedInDump
from pitstop.node.cuda.mark import read_mark
from pitstop.node.stopper import end_launched
from tests.rigs.engine import Engine, Launched, copies_of, running_engine, until
from tests.rigs.gpu_machine import shown
from tests.rigs.gpu_program import QUICK, GpuProgram
from tests.rigs.gpus import EmulatedGpus, build

WORKLOAD = "gpu"


@dataclass
class Bench:
    """An engine and GPUs, and a program of two CUDA processes below a parent without CUDA."""

    engine: Engine
    gpus: EmulatedGpus
    newest: GpuProgram | None = None

    @property
    def command(self) -> tuple[str, ...]:
        return (str(build() / "gpu-workload"), "--processes", "2")

    def program(self) -> GpuProgram:
        """The one that still runs, or a new one where its driver's thread hangs for ever."""
        if self.newest is not None and self.gpus.has_fault("hang_target"):
            end_launched(self.engine.files(WORKLOAD))
        self.gpus.clear_faults()
        if not self.engine.files(WORKLOAD).running():
            self.newest = GpuProgram.start(
                self.engine, *self.command, workload=WORKLOAD, options=("--run", "run1")
            )
        assert self.newest is not None
        return self.newest


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    gpus = EmulatedGpus(tmp_path_factory.mktemp("gpus") / "gpus", gpus=2)
    with (
        pytest.MonkeyPatch.context() as patch,
        running_engine(tmp_path_factory.mktemp("state")) as engine,
        shown(gpus),
    ):
        for name, value in gpus.environment().items():
            patch.setenv(name, value)
        yield Bench(engine, gpus)


@pytest.fixture
def program(bench: Bench) -> GpuProgram:
    return bench.program()


@pytest.fixture
def gpus(bench: Bench) -> EmulatedGpus:
    return bench.gpus


def save(program: GpuProgram, checkpoint: str = "ck1", **changes: Any) -> dict[str, Any]:
    return program.save(checkpoint, **{"gpu_limits": QUICK, **changes})


def ended_or_running(program: GpuProgram, attempt: Callable[[], object]) -> str:
    """Try, and say how the workload is afterwards: seen, not believed."""
    tree = program.launched.tree
    try:
        attempt()
    except EndedInDump as error:
        until(lambda: not any(p.alive() for p in tree), "all of it has ended")
        how = f"ended: {error.cause}"
    except CheckpointFailed as error:
        assert "runs on" in error.hint or "untouched" in error.hint, error
        assert all(p.alive() for p in tree)
        before = program.counters()
        program.step()
        assert program.counters() == [count + 1 for count in before]
        how = f"runs: {error.cause}"
    else:
        pytest.fail("it was saved in spite of the fault")
    assert read_mark(program.engine.files(WORKLOAD)) is None
    assert [c for c in program.engine.store(WORKLOAD).all() if c.id == "failing"] == []
    return how


NO_ANSWER = ("error", "hang", "die_caller")
"""Kinds of faults of a call that only looks."""

ALL = (*NO_ANSWER, "error_after", "hang_target", "die", "fail", "oom")


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *(("get_restore_thread_id", kind) for kind in NO_ANSWER),
        *(("get_state", kind) for kind in NO_ANSWER),
        *(("lock", kind) for kind in ALL),
        *(("checkpoint", kind) for kind in ALL),
    ],
)
def test_a_fault_in_a_checkpoint_loses_nothing_unsaid(
    program: GpuProgram, gpus: EmulatedGpus, call: str, kind: str
) -> None:
    """In the second process: the first one is where it should be by then."""
    victim = program.launched.tree[-1].pid
    gpus.fault(call, kind, value=999, pid=victim, nth=1)
    how = ended_or_running(program, lambda: save(program, "failing"))
    lost = kind in ("die", "fail") or (call, kind) == ("checkpoint", "hang_target")
    assert how.startswith("ended: " if lost else "runs: "), how
    assert call == "get_restore_thread_id" or str(victim) in how, how


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *(("get_state", kind) for kind in NO_ANSWER),
        *(("restore", kind) for kind in ALL),
        *(("unlock", kind) for kind in ALL if kind != "oom"),
    ],
)
def test_a_fault_on_the_way_back_is_made_good_or_said(
    program: GpuProgram, gpus: EmulatedGpus, call: str, kind: str
) -> None:
    """The first process cannot be checkpointed, and then the way back of the second fails."""
    _root, one, other = program.launched.tree
    gpus.fault("checkpoint", "error", value=999, pid=one.pid)
    gpus.fault(call, kind, value=999, pid=other.pid, nth=2 if call == "get_state" else 1)
    how = ended_or_running(program, lambda: save(program, "failing"))
    # A restore that has run out of memory cannot be made good: cuda-checkpoint#44.
    lost = kind in ("die", "fail", "hang_target", "oom")
    assert how.startswith("ended: " if lost else "runs: "), how
    assert not lost or str(other.pid) in how, how


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("init", "error"),
        ("get_state", "error"),
        *(("restore", kind) for kind in ALL),
        *(("unlock", kind) for kind in ("error", "hang", "die", "fail")),
    ],
)
def test_a_fault_in_a_restore_ends_in_a_cold_start(
    program: GpuProgram, gpus: EmulatedGpus, call: str, kind: str
) -> None:
    """Nothing half restored stays, and the record says why it began anew."""
    program.step()
    save(program, f"{call}.{kind}")
    gpus.fault(call, kind, value=999, nth=1)
    again = engine_launch(program)
    assert again.report["how"] == "cold", again.said
    assert "CUDA" in again.report["cause"], again.report
    gpus.clear_faults()
    until(program.is_up, "it is set up")
    assert program.counters() == [0, 0]
    assert len(copies_of("--processes")) == 3, "the half restored one is gone"


def engine_launch(program: GpuProgram) -> Launched:
    """Start it as a supervisor does: from a checkpoint where there is one, else cold."""
    program.launched = program.engine.launch(
        *program.command, workload=WORKLOAD, options=("--run", "run1")
    )
    assert program.launched.report.get("running"), program.launched.said
    return program.launched
