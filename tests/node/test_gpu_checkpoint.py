"""A workload with GPU state: saved at one boundary and brought back, whatever the driver does.

Real processes, a real CRIU and the real cuda-python and nvidia-ml-py; only the driver is emulated.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import State
from pitstop.model.errors import CheckpointFailed, EndedInDump
from pitstop.node import processes
from pitstop.node.checkpointer import settle
from pitstop.node.cuda.mark import read_mark
from tests.rigs.engine import Engine, Launched, copies_of, state_letter, until
from tests.rigs.gpu_program import GpuProgram
from tests.rigs.gpus import EmulatedGpus, build

WORKLOAD = "gpu"
QUICK = {"lock": 5.0, "call": 3.0, "move": 3.0}
"""Deadlines of the driver's calls: what hangs is to be given up soon."""


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
    assert program.engine.store(WORKLOAD).all() == []
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
    how = ended_or_running(program, lambda: save(program))
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
    how = ended_or_running(program, lambda: save(program))
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
    save(program)
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


def test_work_that_does_not_come_to_a_stop_is_left_alone(
    engine: Engine, gpus: EmulatedGpus
) -> None:
    program = start(engine, 2, "--kernel-ms", "2500")
    program.step()
    how = ended_or_running(program, lambda: save(program, gpu_limits={"lock": 0.5}))
    assert "CUDA_ERROR_NOT_READY" in how
    patient = {"lock": 30.0}
    assert save(program, "ck2", gpu_limits=patient)["gpus"]["one_boundary"] is True


def test_a_process_that_has_only_inherited_cuda_is_no_cuda_process(
    engine: Engine, gpus: EmulatedGpus
) -> None:
    """Its state can be asked for, and it cannot be locked; its devices are nobody's to close."""
    program = start(engine, 2, "--fork-after-init")
    assert ended_or_running(program, lambda: save(program)).startswith("runs: ")
    assert calls(gpus, "lock") in ([], ["lock"] * 2), "the child was not asked to lock"


@pytest.mark.parametrize("also_the_guard", [False, True])
@pytest.mark.parametrize("moment", ["lock", "checkpoint"])
def test_a_killed_operation_leaves_no_gpu_parked(
    program: GpuProgram, gpus: EmulatedGpus, moment: str, also_the_guard: bool
) -> None:
    """Its guard brings back what it had parked; without one, whoever asks what became of it."""
    engine = program.engine
    gpus.fault(moment, "slow", value=1500, pid=program.launched.tree[-1].pid)
    order = engine.order(workload=WORKLOAD, gpu_limits=QUICK)
    engine.start("op1", "checkpoint", order)
    until(lambda: moment in calls(gpus, "lock", "checkpoint"), f"one {moment} has been done")
    [guard] = [p.pid for p in processes.tree(os.getpid()) if is_worker(p.pid)]
    os.kill(engine.runner("op1"), signal.SIGKILL)
    if also_the_guard:
        os.kill(guard, signal.SIGKILL)
        assert settle(engine.state, WORKLOAD, "ck1")["running"] is True
    else:
        until(lambda: state_letter(guard) in "ZX", "the guard has done its work")
    gpus.clear_faults()
    assert program.counters() == [0, 0]
    save(program, "ck2")
    assert program.restore("ck2").report.get("running"), program.launched.said
    assert program.counters() == [0, 0]


def is_worker(pid: int) -> bool:
    try:
        return b"pitstop.node.cuda.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended


def test_cancelled_before_the_dump(program: GpuProgram, gpus: EmulatedGpus) -> None:
    engine = program.engine
    gpus.fault("checkpoint", "slow", value=1000)
    engine.start("op1", "checkpoint", engine.order(workload=WORKLOAD, gpu_limits=QUICK))
    until(lambda: "lock" in calls(gpus, "lock"), "it is being locked")
    assert engine.rpc("op.cancel", id="op1")["error"]["code"] == "cancelled"
    assert program.counters() == [0, 0]
    assert "checkpoint" in calls(gpus, "checkpoint")
    assert engine.criu("dump") == []


class TestOtherGpus:
    """The state goes to other GPUs where they can take it, and nowhere else."""

    @pytest.fixture
    def saved(self, program: GpuProgram) -> GpuProgram:
        program.step()
        self.before = program.memory()
        save(program)
        return program

    def test_of_the_same_kind(self, saved: GpuProgram, gpus: EmulatedGpus) -> None:
        other = exchange(gpus)
        assert saved.restore().report.get("running"), saved.launched.said
        assert saved.memory() == self.before
        assert set(saved.uuids()) <= set(other.uuids)
        assert not set(saved.uuids()) & set(gpus.uuids)

    @pytest.mark.parametrize(
        ("other", "why"),
        [
            ({"model": "NVIDIA H200"}, "gpu.0.name: NVIDIA H100 80GB HBM3 -> NVIDIA H200"),
            ({"gpus": 2}, "gpu.count: 4 -> 2"),
            ({"topology": "SYS"}, "gpu.links"),
            ({"driver": "580.126.09"}, "driver.version: 580.105.08 -> 580.126.09"),
            ({"memory": 1 << 20}, "gpu.0.memory"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_of_another_kind(
        self, saved: GpuProgram, gpus: EmulatedGpus, other: dict[str, Any], why: str
    ) -> None:
        exchange(gpus, **other)
        failed = saved.restore().report["failed"]
        assert failed["code"] == "refused"
        assert why in failed["cause"], failed
        assert saved.engine.checkpoint("ck1", WORKLOAD).state() is State.SEALED

    def test_in_use_by_somebody_else(self, saved: GpuProgram, gpus: EmulatedGpus) -> None:
        """Out of memory would leave a process that can only be killed (cuda-checkpoint#44).

        Three of four GPUs are taken, and it needs two; then it needs no more than are free.
        """
        squatter = squat(saved, gpus, processes=3)
        failed = saved.restore().report["failed"]
        assert failed["code"] == "refused"
        assert "2 GPUs are needed, and 1 of 4 may be used" in failed["cause"]
        assert f"{gpus.uuids[0]} is in use by pid" in failed["cause"]
        squatter.signal(signal.SIGTERM)
        squatter.wait()
        squat(saved, gpus, processes=2)
        assert saved.restore().report.get("running"), saved.launched.said
        assert saved.memory() == self.before
        assert set(saved.uuids()) == set(gpus.uuids[2:])


def squat(saved: GpuProgram, gpus: EmulatedGpus, processes: int) -> Launched:
    """Somebody else's processes on the first GPUs."""
    command = (str(build() / "gpu-workload"), "--processes", str(processes))
    squatter = saved.engine.launch(*command, "--port", "8097", workload=f"squatter{processes}")
    assert squatter.report.get("running"), squatter.said
    until(lambda: gpus.used(processes - 1) > 0, "all of it holds memory")
    return squatter


def exchange(before: EmulatedGpus, **changes: Any) -> EmulatedGpus:
    """Put other GPUs into the machine, at the place where a restored process looks for them."""
    before.root.rename(before.root.with_name("before"))
    return EmulatedGpus(before.root, **{"gpus": 4, **changes})
