"""The flow on real parts: each branch, and what Prefect shows of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from pydantic import SecretStr

from pitstop.flows import PitstopSite, SshCredentials
from pitstop.flows.front_end import drive
from pitstop.flows.maintain_node import maintain_node
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run, has_run
from tests.flows import api
from tests.flows.scenes import (
    SQUAT,
    assert_in_service,
    fifo,
    journal,
    look,
    one,
    python,
    quiet,
)
from tests.rigs.engine import until
from tests.rigs.site import NODE, SiteRig

pytestmark = pytest.mark.usefixtures("server")

RESTORED = [
    f"precheck-{NODE}",
    "drain-web",
    "checkpoint-web",
    f"maintain-{NODE}",
    f"validate-{NODE}",
    "gate-web",
    "restore-web",
    "return-to-service-web",
]


def flow(**parameters: Any) -> State[Any]:
    state: State[Any] = maintain_node(**parameters, return_state=True)
    return state


def test_restored_through_a_block_with_a_retry(rig: SiteRig) -> None:
    """Site and key are stored; the port is taken once, so the restore is tried again."""
    leave = fifo(rig, "leave")
    rig.site["policy"]["retries"]["restore"] = {"count": 2, "delay": 0.5, "factor": 3}
    secret = Path(rig.site["nodes"][NODE]["ssh"].pop("identity_file")).read_text()
    store(rig, secret)

    def let_go() -> None:
        def failed() -> bool:
            return any(e.kind == "step.failed" for e in journal(rig, "blocked"))

        until(failed, "a failed restore", 60)
        leave.write_text("go\n")

    watcher = threading.Thread(target=let_go)
    watcher.start()
    try:
        state = flow(
            maintenance=str(quiet(rig, python(SQUAT, leave))), site="block:lab", run_id="blocked"
        )
    finally:
        watcher.join()
    assert state.is_completed(), state
    result = asyncio.run(state.aresult())
    assert (result["state"], one(result)["outcome"]) == ("done", "restored")
    assert state.message == "web: restored"
    assert_in_service(rig, 4)

    tasks = api.task_runs(str(state.state_details.flow_run_id), RESTORED)
    assert set(tasks) == set(RESTORED)
    assert {t["state_type"] for t in tasks.values()} == {"COMPLETED"}
    counts = {name: t["run_count"] for name, t in tasks.items()}
    assert counts == {name: 2 if name == "restore-web" else 1 for name in RESTORED}
    policy = tasks["restore-web"]["empirical_policy"]
    assert (policy["retries"], policy["retry_delay"]) == (2, [0.5, 1.5])
    assert tasks["gate-web"]["empirical_policy"]["retries"] == 2  # the default of that verb

    check_artifacts(rig, "blocked")
    check_secret(rig, state, secret)

    # Started again, it has nothing to do but to say how it ended.
    before = len(journal(rig, "blocked"))
    again = flow(site="block:lab", run_id="blocked")
    assert (again.is_completed(), again.message) == (True, state.message)
    assert len(journal(rig, "blocked")) == before


def store(rig: SiteRig, secret: str) -> None:
    SshCredentials(private_key=SecretStr(secret)).save("lab-key")
    credentials = SshCredentials.load("lab-key")
    assert isinstance(credentials, SshCredentials)
    site = PitstopSite(site_yaml=json.dumps(rig.site), home=str(rig.home), credentials=credentials)
    site.save("lab")
    assert PitstopSite.load("lab") == site


def check_artifacts(rig: SiteRig, run: str) -> None:
    found = api.artifacts(run)
    assert set(found) == {"plan", "verdicts", "timings", "report"}
    assert all(re.fullmatch(r"[a-z0-9-]+", a["key"]) for a in found.values())
    assert "checkpoint-restore" in found["plan"]["data"]
    assert found["plan"]["description"] == "patch"
    assert json.loads(found["verdicts"]["data"]) == [
        {"workload": "web", "field": "-", "reason": "nothing differs"}
    ]
    [timing] = json.loads(found["timings"]["data"])
    assert timing["outcome"] == "restored"
    assert timing["restore to ready (s)"] > 0
    assert timing["cold start to ready (s)"] > 0
    assert timing["image (bytes)"] > 0
    [link] = re.findall(r"\(file://(.*?)\)", found["report"]["data"])
    assert Path(link) == rig.home / "runs" / run / "report.html"
    assert "restored" in Path(link).read_text()


def check_secret(rig: SiteRig, state: State[Any], secret: str) -> None:
    """The key is in its file alone, and on the server only encrypted."""
    [key] = (rig.home / "keys").iterdir()
    assert key.read_text() == secret
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    lines = [line for line in secret.splitlines() if line and not line.startswith("--")]
    assert lines
    flow_run = str(state.state_details.flow_run_id)
    shown = json.dumps(
        [
            api.ask("flow_runs/filter", {}),
            api.task_runs(flow_run),
            api.artifacts("blocked"),
            api.logs(flow_run, "if this is cut off"),
            api.ask("block_documents/filter", {}),
        ]
    )
    assert "block:lab" in shown
    assert str(key) not in shown
    kept = [p for top in (rig.home, Path(os.environ["PREFECT_HOME"])) for p in top.rglob("*")]
    for text in (shown, *(p.read_bytes().decode("latin-1") for p in kept if p.is_file())):
        if text != secret:
            assert not any(line in text for line in lines)


def test_changes_take_the_cold_start_branch(rig: SiteRig) -> None:
    """A declared change: no dump at all. One that nobody declared: the gate says no."""

    def upgrade(version: str, **changes: Any) -> str:
        (rig.root / "next").write_text(f"{version}\n")
        copy = ["cp", str(rig.root / "next"), str(rig.version_file)]
        return str(quiet(rig, copy, **changes))

    async def called(maintenance: str) -> State[Any]:
        # From a coroutine, and under the id of its own flow run.
        return flow(maintenance=maintenance, site=str(rig.write()), home=str(rig.home))

    state = asyncio.run(called(upgrade("2.0", changes={"engine.version": "2.0"})))
    assert (state.is_completed(), state.message) == (True, "web: cold-started"), state
    assert_in_service(rig, 1)
    flow_run = str(state.state_details.flow_run_id)
    cold = {*RESTORED, "stop-web", "cold-start-web"} - {"checkpoint-web", "restore-web"}
    assert set(api.task_runs(flow_run, cold)) == cold
    [row] = json.loads(api.artifacts(f"prefect-{flow_run}")["verdicts"]["data"])
    assert (row["field"], row["saved"], row["present"]) == ("engine.version", "1.0", "2.0")

    plan = plan_from_files(rig.write(), Path(upgrade("9.9")))
    create_run(rig.home, plan, "undeclared", "prefect")
    result = drive(rig.home, "undeclared")
    assert (result.exit_code, result.workloads[0].outcome) == (0, "cold-started")
    assert "engine.version: 2.0 -> 9.9" in result.workloads[0].cause
    assert_in_service(rig, 1)
    [refused] = api.flow_runs("undeclared")
    cold = {*RESTORED, "cold-start-web"} - {"restore-web"}
    tasks = api.task_runs(refused["id"], cold)
    assert set(tasks) == cold
    assert tasks["gate-web"]["state_type"] == "COMPLETED"  # its no is an answer, no failure


def test_failed_validation_then_recovery(rig: SiteRig) -> None:
    """Failed with its cause, the node in quarantine, exit 4; then a person mends it."""
    mended = rig.root / "mended"
    maintenance = quiet(rig, ["true"], variables={"check_command": ["ls", str(mended)]})
    create_run(rig.home, plan_from_files(rig.site_file, maintenance), "unfit", "prefect")
    result = drive(rig.home, "unfit")
    assert (result.exit_code, result.state, result.node_state) == (4, "partial", "quarantined")
    assert "No such file" in result.cause
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
    state = flow(home=str(rig.home), run_id="unfit")
    assert (state.is_completed(), state.message) == (True, "web: restored"), state
    assert_in_service(rig, 4)
    tasks = api.task_runs(str(state.state_details.flow_run_id), ["return-to-service-web"])
    assert tasks[f"validate-{NODE}"]["state_name"] == "Completed"  # made anew, not `Cached`
    assert f"maintain-{NODE}" not in tasks


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
