"""After a killed operation, and with a driver that cannot be asked: nothing is lost by that."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pitstop.model.errors import EndedInDump, TemporaryError
from pitstop.node import processes
from pitstop.node.checkpointer import settle
from pitstop.node.cuda.boundary import Boundary
from pitstop.node.cuda.mark import read_mark
from pitstop.node.locks import is_held
from tests.rigs.engine import Engine, state_letter, until
from tests.rigs.gpu_program import QUICK, GpuProgram, calls, is_worker, op
from tests.rigs.gpu_workload import wait_until_it_serves
from tests.rigs.gpus import EmulatedGpus, build

WORKLOAD = "gpu"


@pytest.fixture
def program(engine: Engine, gpus: EmulatedGpus) -> GpuProgram:
    command = (str(build() / "gpu-workload"), "--processes", "2")
    return GpuProgram.start(engine, *command, workload=WORKLOAD)


def kill_an_operation(program: GpuProgram, gpus: EmulatedGpus) -> int:
    """Kill a checkpoint when one process is locked; return its guard, stopped."""
    engine = program.engine
    gpus.fault("lock", "slow", value=1000, pid=program.launched.tree[-1].pid)
    engine.start("op1", "checkpoint", engine.order(workload=WORKLOAD, gpu_limits=QUICK))
    until(lambda: "lock" in calls(gpus, "lock"), "one lock has been done")
    [guard] = [p.pid for p in processes.tree(os.getpid()) if is_worker(p.pid)]
    os.kill(guard, signal.SIGSTOP)
    os.kill(engine.runner("op1"), signal.SIGKILL)
    until(lambda: not is_held(engine.files(WORKLOAD).operation_lock), "it is gone")
    gpus.clear_faults()
    return guard


def blockers(program: GpuProgram) -> str:
    asked: dict[str, Any] = {WORKLOAD: {"probes": {}, "pid_file": None}}
    found = program.engine.rpc("inspect", workloads=asked)["workloads"][WORKLOAD]
    return str(found["blockers"])


def go_on(guard: int) -> None:
    os.kill(guard, signal.SIGCONT)
    until(lambda: state_letter(guard) in "ZX", "the guard has ended")


def test_a_driver_that_cannot_be_asked_ends_nobody(program: GpuProgram, gpus: EmulatedGpus) -> None:
    """Such as one that is half upgraded: settling waits for it, and a person is told."""
    engine = program.engine
    guard = kill_an_operation(program, gpus)
    gpus.fault("init", "error", value=803)
    with pytest.raises(TemporaryError, match="the driver cannot be asked"):
        settle(engine.state, WORKLOAD, "ck1")
    assert all(p.alive() for p in program.launched.tree)
    gpus.clear_faults()
    assert "pitstop resume run1" in blockers(program)
    assert settle(engine.state, WORKLOAD, "ck1")["running"] is True
    assert program.counters() == [0, 0]
    assert "parked" not in blockers(program)
    go_on(guard)
    assert program.counters() == [0, 0]


def test_what_is_suspended_stays_so_without_a_driver(
    program: GpuProgram, gpus: EmulatedGpus
) -> None:
    op(program, "suspend")
    gpus.fault("init", "error", value=803)
    error = op(program, "resume")["error"]
    assert (error["code"], "stays suspended" in error["cause"]) == ("refused", True)
    gpus.clear_faults()
    op(program, "resume", "resume2")
    assert program.counters() == [0, 0]


def test_a_guard_that_comes_late_undoes_nobody_elses_work(
    program: GpuProgram, gpus: EmulatedGpus
) -> None:
    """Another operation was faster, has brought all back, and has suspended the workload."""
    guard = kill_an_operation(program, gpus)
    assert op(program, "suspend")["state"] == "done"
    go_on(guard)
    assert [gpus.used(n) for n in (0, 1)] == [0, 0], "it is still suspended"
    op(program, "resume")
    assert program.counters() == [0, 0]


def test_a_guard_whose_call_hangs_holds_nobody_up(program: GpuProgram, gpus: EmulatedGpus) -> None:
    """It gives up after its deadlines, and the mark stays for whoever asks."""
    guard = kill_an_operation(program, gpus)
    gpus.fault("unlock", "hang")
    go_on(guard)
    mark = read_mark(program.engine.files(WORKLOAD))
    assert mark is not None
    stopped = program.engine.op("stop1", "stop", {"workload": WORKLOAD, "run": "run1", "grace": 1})
    assert stopped["result"]["how"] in ("signal", "kill")


def test_what_outlives_its_root_does_not_stay_parked(
    engine: Engine, gpus: EmulatedGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a launcher ranks outlive their root, and a cold start would be a second copy."""
    program = build() / "gpu-workload"
    script = f"{program} --port 8097 & {program} --port 8098; wait"
    with (tmp_path / "output").open("w") as output:
        root = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    for port in (8097, 8098):
        wait_until_it_serves(port, root)
    pid_file = tmp_path / "root.pid"
    pid_file.write_text(str(root.pid))
    tree = processes.tree(root.pid)
    checkpoint = Boundary.checkpoint

    def and_then_it_dies(self: Boundary) -> None:
        checkpoint(self)
        root.kill()
        root.wait()

    monkeypatch.setattr(Boundary, "checkpoint", and_then_it_dies)
    with pytest.raises(EndedInDump):
        engine.save(workload="bypid", pid_file=str(pid_file), gpu_limits=QUICK)
    assert [p for p in tree if p.alive()] == []
    assert read_mark(engine.files("bypid")) is None
