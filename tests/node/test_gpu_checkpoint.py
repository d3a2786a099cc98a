"""A workload with GPU state: saved at one boundary and brought back, whatever the driver does.

Real processes, a real CRIU and the real cuda-python and nvidia-ml-py; only the driver is emulated.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import State
from pitstop.model.cuda import Call, CudaLimits, CudaRequest
from pitstop.model.errors import CheckpointFailed
from pitstop.node import processes
from pitstop.node.checkpointer import settle
from pitstop.node.cuda.driver import Driver, DriverUnusableError, Guarded
from pitstop.node.cuda.mark import GpuMark, read_mark
from pitstop.node.cuda.parking import ParkedGpus
from pitstop.node.subject import find
from tests.rigs.engine import Engine, Launched, state_letter, until
from tests.rigs.gpu_program import PORT, QUICK, GpuProgram, calls, is_worker
from tests.rigs.gpus import EmulatedGpus, build

WORKLOAD = "gpu"


@pytest.fixture
def program(engine: Engine, gpus: EmulatedGpus) -> GpuProgram:
    """Two CUDA processes on a GPU each, below a parent without CUDA."""
    return start(engine, 2)


def start(engine: Engine, ranks: int, *options: str) -> GpuProgram:
    command = (str(build() / "gpu-workload"), "--processes", str(ranks), *options)
    return GpuProgram.start(engine, *command, workload=WORKLOAD)


def save(program: GpuProgram, checkpoint: str = "ck1", **changes: Any) -> dict[str, Any]:
    return program.save(checkpoint, **{"gpu_limits": QUICK, **changes})


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


def test_work_that_does_not_come_to_a_stop_is_left_alone(
    engine: Engine, gpus: EmulatedGpus
) -> None:
    program = start(engine, 2, "--kernel-ms", "8000")
    program.step()
    with pytest.raises(CheckpointFailed, match="CUDA_ERROR_NOT_READY") as failed:
        save(program, gpu_limits={"lock": 0.5})
    assert failed.value.retryable, "it is worth another try, now that all are seen to run"
    assert program.counters() == [1, 1]
    patient = {"lock": 30.0}
    assert save(program, "ck2", gpu_limits=patient)["gpus"]["one_boundary"] is True


def test_a_process_that_has_only_inherited_cuda_is_no_cuda_process(
    engine: Engine, gpus: EmulatedGpus
) -> None:
    """Its state can be asked for, and it cannot be locked; its devices are nobody's to close."""
    program = start(engine, 2, "--fork-after-init")
    with pytest.raises(CheckpointFailed, match="untouched") as failed:
        save(program)
    assert "left open by a forked child" in failed.value.cause
    assert calls(gpus, "lock") == []
    assert program.counters() == [0, 0]


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


def test_one_that_ends_by_itself_before_the_locks_is_nobodys_loss(
    engine: Engine, gpus: EmulatedGpus
) -> None:
    """A short-lived helper that used a GPU, say, beside the server."""
    one = f"{build() / 'gpu-workload'} --port {PORT}"
    other = f"{build() / 'gpu-workload'} --port {PORT + 1}"
    program = GpuProgram.start(engine, "sh", "-c", f"{other} & {one}; wait", workload=WORKLOAD)
    until(lambda: gpus.used(0) > 2 * (16 << 20), "both hold memory")
    files, tree = engine.files(WORKLOAD), program.launched.tree
    with ParkedGpus(files, find(files, None), CudaLimits(**QUICK), "run1") as parked:
        looked = parked.pids
        assert len(looked) == 2
        gone = next(p for p in tree if str(PORT + 1) in command_of(p.pid) and p != tree[0])
        os.kill(gone.pid, signal.SIGKILL)  # its rank ends with it
        assert processes.wait_gone([p for p in tree if p.pid in looked][:1], 20) == []
        parked.park()
        assert len(parked.pids) == 1
        parked.undo()
    assert program.counters() == [0]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_a_dump_that_fails_on_a_disk_of_its_own(
    engine: Engine, gpus: EmulatedGpus, own_disk: Path
) -> None:
    """Its log is kept on another one, and GPU state is brought back."""
    program = start(engine, 2)
    # The probe is read after the room was looked at: by then there is too little of it.
    fill = ["dd", "if=/dev/zero", f"of={own_disk}/filler", "bs=1M"]
    with pytest.raises(CheckpointFailed, match="No space left") as failed:
        save(program, probes={"engine": {"command": ["sh", "-c", f"{' '.join(fill)}; true"]}})
    assert failed.value.hint.startswith("the workload runs on")
    assert read_mark(engine.files(WORKLOAD)) is None
    assert program.counters() == [0, 0]
    assert (engine.files(WORKLOAD).directory / "failed-ck1.log").exists()


@pytest.fixture
def own_disk(engine: Engine) -> Iterator[Path]:
    """Put the images, and nothing else of the engine, on a small disk."""
    images = engine.state.images(WORKLOAD)
    size = ["-t", "tmpfs", "-o", "size=64m,mode=700"]
    subprocess.run(["mount", *size, "tmpfs", str(images)], check=True)
    yield images
    subprocess.run(["umount", "--lazy", str(images)], check=True)


def test_one_whose_caller_ends_while_it_waits_is_saved(
    program: GpuProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may be wanted during the dump, which takes long."""
    end = ParkedGpus.gone

    def gone(gpus: ParkedGpus) -> None:
        [worker] = [p.pid for p in processes.tree(os.getpid()) if is_worker(p.pid)]
        os.kill(worker, signal.SIGKILL)
        until(lambda: state_letter(worker) in "ZX", "it has ended")
        end(gpus)

    monkeypatch.setattr(ParkedGpus, "gone", gone)
    assert save(program)["gpus"]["processes"] == 2


def test_a_guard_that_does_not_answer_is_none(program: GpuProgram) -> None:
    """Nothing is locked then; its late answer is not taken for that of a call."""
    root, *ranks = program.launched.tree
    asked = [CudaRequest(rank.pid, Call.STATE) for rank in ranks]
    mark = GpuMark("checkpoint", "run1", root, tuple(ranks), False, CudaLimits())
    guarded = Guarded(program.engine.root, WORKLOAD, mark)
    with Driver() as driver:
        assert [answer.value for answer in driver.ask(asked, 30)] == ["running"] * 2
        [worker] = [p.pid for p in processes.tree(os.getpid()) if is_worker(p.pid)]
        os.kill(worker, signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pitstop.node.cuda.driver.START_SECONDS", 0.1)
            with pytest.raises(DriverUnusableError, match=r"within 0\.1 s"):
                driver.guard(guarded)
        assert [answer.value for answer in driver.ask(asked, 30)] == ["running"] * 2


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
