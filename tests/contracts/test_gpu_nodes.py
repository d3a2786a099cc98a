"""GPU workloads over a driver upgrade: moved at one boundary, or begun anew with the reason."""

from __future__ import annotations

import json

from pitstop.model.words import Strategy
from pitstop.steps.files import plan_from_files
from tests.rigs.gpu_nodes import ALONE, LLM, NEW, OLD, SPARE, GpuNodes, assert_moved_at_one_boundary
from tests.rigs.site import NODE

CHANGE = f"driver.version: {OLD} -> {NEW}"


def test_a_driver_upgrade_moves_what_fits_elsewhere(gpu_nodes: GpuNodes) -> None:
    rig = gpu_nodes
    rig.start_all()
    before = rig.memory(NODE)
    maintenance = rig.upgrade()

    # The doctor of each node, over SSH: one is well, on the other NVML ends who asks it.
    rig.machines[SPARE].fault("nvmlInit", "die_caller")
    said = {node: checks(rig, node) for node in (NODE, SPARE)}
    rig.machines[SPARE].clear_faults()
    assert (said[NODE]["gpu-driver"], said[NODE]["gpu-state"]) == ("ok", "ok")
    assert said[SPARE]["gpu-driver"] == "failed"
    assert said[SPARE]["gpu-state"] != "ok"

    # Said beforehand: with the other node's GPUs in use there is nowhere to go.
    with rig.in_use(SPARE):
        plan = {w.name: w for w in plan_from_files(rig.site_file, maintenance).workloads}
        assert plan[LLM].strategy is Strategy.COLD_START
        assert f"invalid here: {CHANGE}" in plan[LLM].reason
        assert "8 GPUs are needed, and 7 of 8 may be used" in plan[LLM].reason
    plan = {w.name: w for w in plan_from_files(rig.site_file, maintenance).workloads}
    assert plan[LLM].strategy is Strategy.MIGRATE, plan[LLM].reason
    assert CHANGE in plan[LLM].reason
    assert (plan[ALONE].strategy, CHANGE in plan[ALONE].reason) == (Strategy.COLD_START, True)

    code, result = rig.run(maintenance, "--run", "upgrade")
    assert (code, result["state"]) == (0, "done"), result
    outcomes = {w["name"]: w["outcome"] for w in result["workloads"]}
    assert outcomes == {LLM: "migrated", ALONE: "cold-started"}
    assert_moved_at_one_boundary(rig, "upgrade", before)
    report = rig.home / "runs" / "upgrade" / "report.html"
    assert "at one boundary" in report.read_text()


def checks(rig: GpuNodes, node: str) -> dict[str, str]:
    """What `pitstop doctor` says of each thing on a node."""
    done = rig.cli("doctor", node, "--site", str(rig.site_file), "--no-trial", "--json")
    return {check["id"]: check["state"] for check in json.loads(done.stdout)["checks"]}
