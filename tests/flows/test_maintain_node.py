"""The flow on real parts: each branch, and what Prefect shows of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from pitstop.flows.front_end import drive
from pitstop.flows.maintain_node import maintain_node
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run, has_run
from tests.flows import api
from tests.flows.scenes import RESTORED, assert_in_service, look
from tests.rigs.branches import assert_branches
from tests.rigs.maintenance import quiet
from tests.rigs.site import NODE, SiteRig

pytestmark = pytest.mark.usefixtures("server")


def flow(**parameters: Any) -> State[Any]:
    state: State[Any] = maintain_node(**parameters, return_state=True)
    return state


def test_declared_change_takes_the_cold_start_branch(rig: SiteRig) -> None:
    """Called from a coroutine, and under the id of its own flow run."""
    (rig.root / "next").write_text("2.0\n")
    copy = ["cp", str(rig.root / "next"), str(rig.version_file)]
    maintenance = quiet(rig, copy, changes={"engine.version": "2.0"})

    async def called() -> State[Any]:
        return flow(maintenance=str(maintenance), site=str(rig.write()), home=str(rig.home))

    state = asyncio.run(called())
    assert (state.is_completed(), state.message) == (True, "web: cold-started"), state
    assert_in_service(rig, 1)
    flow_run = str(state.state_details.flow_run_id)
    assert_branches(rig, f"prefect-{flow_run}", "declared change")
    cold = {*RESTORED, "stop-web", "cold-start-web"} - {"checkpoint-web", "restore-web"}
    assert set(api.task_runs(flow_run, cold)) == cold
    [row] = json.loads(api.artifacts(f"prefect-{flow_run}")["verdicts"]["data"])
    assert (row["field"], row["saved"], row["present"]) == ("engine.version", "1.0", "2.0")


def test_failed_validation_then_recovery_and_a_refusal_by_the_gate(rig: SiteRig) -> None:
    """Failed with its cause, the node in quarantine, exit 4; then a person mends it.

    The person has changed the engine as well, and told nobody: so the gate says no.
    """
    mended = rig.root / "mended"
    maintenance = quiet(rig, ["true"], variables={"check_command": ["ls", str(mended)]})
    create_run(rig.home, plan_from_files(rig.site_file, maintenance), "unfit", "prefect")
    result = drive(rig.home, "unfit")
    assert (result.exit_code, result.state, result.node_state) == (4, "partial", "quarantined")
    assert "No such file" in result.cause
    assert_branches(rig, "unfit", "validation fails")
    assert rig.copies() == 0
    assert look(rig)["quarantine"]["run"] == "unfit"
    [failed] = api.flow_runs("unfit")
    assert failed["state_type"] == "FAILED"
    assert failed["state"]["message"] == f"partial: {result.cause}"
    tasks = api.task_runs(failed["id"], [f"quarantine-{NODE}"])
    assert tasks[f"validate-{NODE}"]["state_type"] == "FAILED"
    assert tasks[f"validate-{NODE}"]["run_count"] == 1  # a check that says no is an answer
    assert "restore-web" not in tasks

    mended.touch()
    rig.version_file.write_text("9.9\n")
    result = drive(rig.home, "unfit")
    assert (result.exit_code, result.workloads[0].outcome) == (0, "cold-started")
    assert "engine.version: 1.0 -> 9.9" in result.workloads[0].cause
    assert_in_service(rig, 1)
    [_, recovered] = api.flow_runs("unfit")
    assert (recovered["state_type"], recovered["state"]["message"]) == (
        "COMPLETED",
        "web: cold-started",
    )
    back = {f"validate-{NODE}", "gate-web", "cold-start-web", "return-to-service-web"}
    tasks = api.task_runs(recovered["id"], back)
    assert set(tasks) == back
    # Made anew, not `Cached`; and the gate's no is an answer, no failure.
    assert {t["state_name"] for t in tasks.values()} == {"Completed"}


def test_failed_maintenance_is_rolled_back_and_quarantines(rig: SiteRig) -> None:
    state = flow(
        maintenance=str(quiet(rig, ["false"])),
        site=str(rig.write()),
        home=str(rig.home),
        run_id="broke",
    )
    assert state.is_failed()
    assert_branches(rig, "broke", "maintenance fails")
    assert look(rig)["quarantine"]["run"] == "broke"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)
    tasks = api.task_runs(str(state.state_details.flow_run_id), ["return-to-service-web"])
    assert {"rollback-gpu1", "quarantine-gpu1", "restore-web"} <= set(tasks)


def test_refusals_touch_nothing_and_are_not_retried(idle_rig: SiteRig) -> None:
    rig = idle_rig
    rig.workload["launch"]["command"].append("--ring")
    rig.workload["policy"] = {"on_checkpoint_failure": "cold-start"}
    rig.start()
    assert rig.count_to(3) == 3
    maintenance = rig.maintenance()

    # Planned as possible; then somebody quarantines the node.
    create_run(rig.home, plan_from_files(rig.site_file, maintenance), "late", "prefect")
    node = rig.remote()
    try:
        node.call("quarantine", run="other", cause="a person said so")
        state = flow(home=str(rig.home), run_id="late")
        assert look(rig)["quarantine"]["run"] == "other"
        node.call("unquarantine", run="other")
    finally:
        node.close()
    assert state.is_failed()
    assert "refused: gpu1: quarantined by run other: a person said so" in str(state.message)
    tasks = api.task_runs(str(state.state_details.flow_run_id), [f"precheck-{NODE}"])
    assert list(tasks) == [f"precheck-{NODE}"]
    precheck = tasks[f"precheck-{NODE}"]
    assert (precheck["run_count"], precheck["empirical_policy"]["retries"]) == (1, 1)

    # Refused by its plan, which is shown: an io_uring cannot be saved.
    rig.workload["policy"] = {}
    state = flow(
        maintenance=str(maintenance), site=str(rig.write()), home=str(rig.home), run_id="ring"
    )
    assert state.is_failed()
    assert "io_uring" in str(state.message)
    assert not has_run(rig.home, "ring")
    assert set(api.artifacts("ring")) == {"plan"}
    assert "io_uring" in api.artifacts("ring")["plan"]["data"]
    assert not (rig.root / "patched").exists()
    assert_in_service(rig, 4)
