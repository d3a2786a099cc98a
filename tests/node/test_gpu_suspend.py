"""GPU state parked in host memory and brought back: the GPUs are free in between."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from pitstop.model.errors import CheckpointFailed, Refused
from pitstop.node.blockers import needs
from pitstop.node.locks import is_held
from tests.rigs.engine import Engine, until
from tests.rigs.gpu_program import ORDER, PORT, QUICK, GpuProgram, op
from tests.rigs.gpus import EmulatedGpus, build

WORKLOAD = "gpu"


@pytest.fixture
def program(engine: Engine, gpus: EmulatedGpus) -> GpuProgram:
    command = (str(build() / "gpu-workload"), "--processes", "2")
    program = GpuProgram.start(engine, *command, workload=WORKLOAD)
    program.step()
    return program


def test_the_gpus_are_free_until_it_is_back(program: GpuProgram, gpus: EmulatedGpus) -> None:
    before = program.memory()
    parked = op(program, "suspend")["result"]
    assert (parked["processes"], parked["survives_reboot"]) == (2, False)
    assert parked["gpu_bytes"] >= 2 * 65536
    assert [gpus.used(n) for n in (0, 1)] == [0, 0]
    assert program.is_up(), "its CPU threads run on"
    # Asked again it is the same; to anybody else, and to a checkpoint, it is taken.
    assert op(program, "suspend", "suspend2")["result"] == parked
    assert op(program, "suspend", "suspend3", run="run2")["error"]["code"] == "refused"
    with pytest.raises(Refused, match="it is suspended"):
        program.save()
    asked: dict[str, Any] = {WORKLOAD: {"probes": {}, "pid_file": None}}
    found = program.engine.rpc("inspect", workloads=asked)["workloads"][WORKLOAD]
    assert "parked in host memory" in str(found["blockers"])

    back = op(program, "resume")["result"]
    assert back["ready_seconds"] > 0
    assert program.memory() == before
    program.step()
    assert program.counters() == [2, 2]
    assert op(program, "resume", "resume2")["error"]["code"] == "refused"
    assert program.save()["gpus"]["one_boundary"] is True


def test_while_somebody_is_on_its_gpus_it_stays_parked(
    program: GpuProgram, gpus: EmulatedGpus
) -> None:
    """Restored into too little memory it could only be killed (cuda-checkpoint#44)."""
    op(program, "suspend")
    squatter = program.engine.launch(
        str(build() / "gpu-workload"), "--port", str(PORT + 1), workload="squatter"
    )
    assert squatter.report.get("running"), squatter.said
    until(lambda: gpus.used(0) > 0, "it holds memory")
    error = op(program, "resume")["error"]
    assert (error["code"], "is in use by pid" in error["cause"]) == ("refused", True)
    squatter.signal(signal.SIGTERM)
    squatter.wait()
    op(program, "resume", "resume2")
    assert program.counters() == [1, 1]


def test_without_room_in_memory_nothing_is_touched(
    program: GpuProgram, gpus: EmulatedGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card of more memory than the machine has, all of it in use."""
    for gpu in (0, 1):
        huge = gpus.root / "gpus" / gpus.uuids[gpu] / "memory"
        [one] = [path for path in huge.iterdir() if not path.name.startswith(".")][:1]
        os.truncate(one, 1 << 40)
    error = op(program, "suspend")["error"]
    assert error["code"] == "refused"
    assert needs.MEMORY.what in error["cause"]
    assert not [t for t in gpus.trace() if t.call == "lock"]


def test_a_failed_suspend_leaves_it_running(program: GpuProgram, gpus: EmulatedGpus) -> None:
    gpus.fault("checkpoint", "error", value=999, pid=program.launched.tree[-1].pid)
    error = op(program, "suspend")["error"]
    assert error["code"] == CheckpointFailed.code
    assert program.counters() == [1, 1]
    assert op(program, "resume")["error"]["code"] == "refused", "it is not suspended"


@pytest.mark.parametrize(("kind", "comes_back"), [("error", True), ("fail", False)])
def test_a_failed_resume_is_made_good_or_said(
    program: GpuProgram, gpus: EmulatedGpus, kind: str, comes_back: bool
) -> None:
    op(program, "suspend")
    gpus.fault("restore", kind, value=999, nth=1)
    status = op(program, "resume")
    if comes_back:
        assert status["result"]["processes"] == 2
        assert program.counters() == [1, 1]
    else:
        assert status["error"]["code"] == "ended_in_dump"
        assert "GPU memory is lost" in status["error"]["cause"]
        until(lambda: not program.engine.files(WORKLOAD).running(), "it was ended")


def test_a_killed_resume_can_be_asked_for_again(program: GpuProgram, gpus: EmulatedGpus) -> None:
    """What is back already is on the GPUs, and it is its own."""
    engine, before = program.engine, program.memory()
    op(program, "suspend")
    gpus.fault("restore", "hang", pid=program.launched.tree[-1].pid)
    engine.start("killed", "resume", {**ORDER, "gpu_limits": {**QUICK, "move": 60.0}})
    until(lambda: any(gpus.used(n) for n in (0, 1)), "the other one is back")
    os.kill(engine.runner("killed"), signal.SIGKILL)
    until(lambda: not is_held(engine.files(WORKLOAD).operation_lock), "the operation has ended")
    gpus.clear_faults()
    assert op(program, "resume")["result"]["processes"] == 2
    assert program.memory() == before


def test_one_without_gpu_state_is_refused(engine: Engine, gpus: EmulatedGpus) -> None:
    engine.serve()
    error = engine.op("suspend1", "suspend", {"workload": "web", "run": "run1"})["error"]
    assert (error["code"], "no GPU state" in error["cause"]) == ("refused", True)
