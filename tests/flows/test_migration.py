"""GPU workloads over a driver upgrade in a flow run: a task for every step, moves too."""

from __future__ import annotations

import pytest

from pitstop.flows.front_end import drive
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run
from tests.flows import api
from tests.rigs.gpu_nodes import GpuNodes, assert_moved_at_one_boundary
from tests.rigs.site import NODE

pytestmark = pytest.mark.usefixtures("server")

STEPS = {
    *(f"{verb}-llm" for verb in ("drain", "checkpoint", "transfer", "gate", "restore")),
    *(f"{verb}-alone" for verb in ("drain", "stop", "gate", "cold-start")),
    *(f"{verb}-{NODE}" for verb in ("precheck", "maintain", "validate")),
    *("return-to-service-llm", "return-to-service-alone"),
}


def test_a_driver_upgrade_moves_what_fits_elsewhere(gpu_nodes: GpuNodes) -> None:
    rig = gpu_nodes
    rig.start_all()
    before = rig.memory(NODE)
    create_run(rig.home, plan_from_files(rig.site_file, rig.upgrade()), "upgrade", "prefect")
    result = drive(rig.home, "upgrade")
    assert {w.name: str(w.outcome) for w in result.workloads} == {
        "llm": "migrated",
        "alone": "cold-started",
    }
    assert_moved_at_one_boundary(rig, "upgrade", before)
    [flow_run] = api.flow_runs("upgrade")
    assert set(api.task_runs(flow_run["id"], STEPS)) == STEPS
