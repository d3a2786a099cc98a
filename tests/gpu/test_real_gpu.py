"""The same as tests/node/test_gpu_checkpoint.py, on a real GPU with a real torch program.

`scripts/test gpu` runs it, in an environment that has torch. What was measured is printed, and
written to the file that PITSTOP_MEASURED names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.model.errors import CheckpointFailed
from pitstop.node.gpus import read_inventory
from tests.rigs.engine import Engine
from tests.rigs.gpu_program import PORT, GpuProgram

SERVER = str(Path(__file__).with_name("torch_workload.py"))
WORKLOAD = "gpu"
INVENTORY = read_inventory()
READY = {"http": {"url": f"http://127.0.0.1:{PORT}/"}, "deadline": 120.0, "interval": 0.01}

pytestmark = [
    pytest.mark.skipif(not INVENTORY.has_gpus, reason=f"no GPU: {INVENTORY.words}"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed here"
    ),
]


@pytest.fixture(scope="module")
def measured() -> Iterator[dict[str, Any]]:
    """Figures by name, beside the GPU and driver that they are of."""
    gpu = INVENTORY.gpus[0]
    found: dict[str, Any] = {"gpu": str(gpu.name), "driver": str(INVENTORY.driver)}
    yield found
    print(json.dumps(found, indent=1))
    target = os.environ.get("PITSTOP_MEASURED")
    if target:
        Path(target).write_text(json.dumps(found, indent=1))


def start(engine: Engine, *options: str) -> GpuProgram:
    return GpuProgram.start(engine, sys.executable, SERVER, *options, workload=WORKLOAD)


def test_content_comes_back(engine: Engine, measured: dict[str, Any]) -> None:
    began = time.monotonic()
    program = start(engine)
    cold = time.monotonic() - began
    for _ in range(3):
        program.step()
    before = program.memory()
    began = time.monotonic()
    saved = program.save()
    taken = time.monotonic() - began
    began = time.monotonic()
    assert program.restore().report.get("running"), program.launched.said
    assert program.memory() == before
    measured["checkpoint"] = {
        "gpu_bytes": saved["gpus"]["bytes"],
        "image_bytes": saved["image_bytes"],
        "checkpoint_seconds": round(taken, 3),
        "frozen_seconds": saved["frozen_seconds"],
        "restore_to_answer_seconds": round(time.monotonic() - began, 3),
        "cold_start_to_answer_seconds": round(cold, 3),
    }
    assert saved["gpus"]["one_boundary"] is True
    program.step()
    assert program.counters() == [4]


def test_two_processes_on_one_gpu(engine: Engine) -> None:
    program = start(engine, "--processes", "2", "--shared")
    program.step()
    before = program.memory()
    assert program.save()["gpus"]["processes"] == 2
    assert program.restore().report.get("running"), program.launched.said
    assert program.memory() == before


def test_suspended_and_resumed(engine: Engine, measured: dict[str, Any]) -> None:
    program = start(engine, "--bytes", str(4 << 30))
    before = program.memory()
    asked = {"workload": WORKLOAD, "run": "run1", "ready": READY}
    parked = engine.op("suspend", "suspend", asked)["result"]
    free = read_inventory().gpus[0].memory_used
    back = engine.op("resume", "resume", asked)["result"]
    assert program.memory() == before
    measured["suspend"] = {
        "gpu_bytes": parked["gpu_bytes"],
        "suspend_seconds": parked["seconds"],
        "resume_to_ready_seconds": back["ready_seconds"],
        "used_while_suspended": str(free),
    }


def test_a_lock_has_a_deadline_under_load(engine: Engine, measured: dict[str, Any]) -> None:
    program = start(engine, "--kernel-ms", "6000")
    program.step()
    began = time.monotonic()
    with pytest.raises(CheckpointFailed, match="CUDA lock"):
        program.save(gpu_limits={"lock": 1.0})
    measured["lock"] = {
        "deadline_seconds": 1.0,
        "gave_up_after": round(time.monotonic() - began, 3),
    }
    assert program.counters() == [1]
    program.save("ck2", gpu_limits={"lock": 60.0})
