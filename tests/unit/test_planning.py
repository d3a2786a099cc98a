"""Making a plan: the real engine on this machine looks at real processes, and only looks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.durable import write_json
from pitstop.model.errors import BadInput, NodeUnreachable, Refused
from pitstop.model.maintenance import Maintenance
from pitstop.model.plan import Plan
from pitstop.model.site import Site
from pitstop.model.words import Shape, Strategy
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState
from pitstop.steps.planning import make_plan
from pitstop.steps.runs import create_run, has_run
from pitstop.templates import runbook_source

RUNBOOK = runbook_source("patch-and-restart")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Path]:
    """The PID file of a process that can be saved."""
    running = subprocess.Popen(
        ["sleep", "1000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    path = tmp_path / "pid"
    path.write_text(f"{running.pid}\n")
    yield path
    running.kill()
    running.wait()


def workload(placement: dict[str, int], pid_file: Path | None, **more: Any) -> dict[str, Any]:
    return {
        "placement": placement,
        "launch": {"command": ["serve"]},
        "ready": {"command": ["true"]},
        "engine": {"value": "1.0"},
        "pid_file": str(pid_file) if pid_file else None,
        **more,
    }


def site(tmp_path: Path, **workloads: dict[str, Any]) -> Site:
    here = {
        "engine": [sys.executable, "-m", "pitstop.node.main"],
        "state_dir": str(tmp_path / "state"),
    }
    return Site.model_validate(
        {
            "schema": "pitstop/site/v1",
            "name": "test",
            "nodes": {"here": here, "there": {**here, "engine": ["/not/asked"]}},
            "workloads": workloads,
        }
    )


def maintenance(**changes: Any) -> Maintenance:
    return Maintenance.model_validate(
        {
            "schema": "pitstop/maintenance/v1",
            "title": "patch",
            "runbook": "patch-and-restart",
            "nodes": ["here"],
            "variables": {"patch_command": ["apply", "--all"]},
            **changes,
        }
    )


def planned(site_: Site, **changes: Any) -> Plan:
    return make_plan(site_, maintenance(**changes), RUNBOOK, "patch-and-restart.md.j2")


def files(root: Path) -> set[str]:
    """Its empty directories may be made already."""
    return {str(path) for path in root.rglob("*") if not path.is_dir()}


def test_running_workload_is_to_be_saved_and_nothing_is_touched(
    tmp_path: Path, process: Path
) -> None:
    plan = planned(site(tmp_path, web=workload({"here": 1}, process)))
    [web] = plan.workloads
    assert (web.strategy, web.shape, web.running) == (Strategy.RESTORE, Shape.SINGLE_GPU, True)
    assert web.fingerprint["engine.version"]["value"] == "1.0"
    assert web.predicted["valid"] is True
    assert (plan.go, plan.no_go) == (True, ())
    assert plan.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert files(tmp_path / "state") == set()
    os.kill(int(process.read_text()), 0)


def test_multi_node_workload_refuses_the_plan_and_no_run_of_it_is_made(
    tmp_path: Path, process: Path
) -> None:
    spread = workload({"here": 4, "there": 4}, process)
    plan = planned(site(tmp_path, train=spread, web=workload({"here": 1}, process)))
    assert {w.name: w.strategy for w in plan.workloads} == {
        "train": Strategy.REFUSE,
        "web": Strategy.RESTORE,
    }
    assert plan.workloads[0].shape is Shape.MULTI_NODE
    assert not plan.go
    assert len(plan.no_go) == 1
    assert plan.no_go[0].startswith("train: its GPUs sit in several machines")
    with pytest.raises(Refused, match="several machines") as caught:
        create_run(tmp_path / "home", plan, "r1", "steps")
    assert caught.value.exit_code == 3
    assert not has_run(tmp_path / "home", "r1")


def test_placement_elsewhere_is_not_planned(tmp_path: Path, process: Path) -> None:
    plan = planned(site(tmp_path, other=workload({"there": 1}, process)))
    assert plan.workloads == ()
    assert plan.go


def test_what_does_not_run_is_left(tmp_path: Path) -> None:
    [web] = planned(site(tmp_path, web=workload({"here": 1}, None))).workloads
    assert (web.strategy, web.running) == (Strategy.LEAVE, False)


@pytest.mark.parametrize("content", ["", "0\n", "1\n", "-1\n", "x", "999999999\n"])
def test_pid_file_that_names_no_workload_is_no_running_workload(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "pid"
    path.write_text(content)
    [web] = planned(site(tmp_path, web=workload({"here": 1}, path))).workloads
    assert web.strategy is Strategy.LEAVE
    assert "it does not run: " in web.reason


def test_declared_change_predicts_the_gate_and_saves_the_dump(
    tmp_path: Path, process: Path
) -> None:
    one = site(tmp_path, web=workload({"here": 1}, process))
    [web] = planned(one, changes={"engine.version": "2.0"}).workloads
    assert web.strategy is Strategy.COLD_START
    [difference] = web.predicted["differences"]
    assert (difference["field"], difference["saved"], difference["present"]) == (
        "engine.version",
        "1.0",
        "2.0",
    )
    # Changed to what it is already: nothing changes.
    [web] = planned(one, changes={"engine.version": "1.0"}).workloads
    assert web.strategy is Strategy.RESTORE


def test_spare_that_is_not_taken_is_named_with_its_reason(tmp_path: Path, process: Path) -> None:
    one = site(tmp_path, web=workload({"here": 1}, process, spares=[{"node": "there"}]))
    plan = planned(one, changes={"engine.version": "2.0"})
    [web] = plan.workloads
    assert (web.strategy, web.target, plan.go) == (Strategy.COLD_START, None, True)
    assert "engine.version: 1.0 -> 2.0" in web.reason
    assert "there: cannot be asked: " in web.reason
    # Valid here: then nobody is asked, and nothing moves.
    [web] = planned(one).workloads
    assert (web.strategy, "there" in web.reason) == (Strategy.RESTORE, False)


def test_what_is_a_spare_here_is_planned_only_while_it_runs_here(
    tmp_path: Path, process: Path
) -> None:
    spare = {"spares": [{"node": "here"}]}
    assert planned(site(tmp_path, web=workload({"there": 1}, None, **spare))).workloads == ()
    [web] = planned(site(tmp_path, web=workload({"there": 1}, process, **spare))).workloads
    assert (web.strategy, web.spec.placement) == (Strategy.RESTORE, {"here": 1})


def test_quarantined_node_and_held_workload_are_a_no_go_each(tmp_path: Path, process: Path) -> None:
    state = StateDir.at(str(tmp_path / "state"))
    held = WorkloadState(state, "web")
    held.hold("r0")
    write_json(state.quarantine, {"run": "r0", "cause": "burnt", "time": ""})
    plan = planned(site(tmp_path, web=workload({"here": 1}, process)))
    assert not plan.go
    assert len(plan.no_go) == 2
    assert "quarantined by r0: burnt" in plan.no_go[0]
    assert plan.no_go[1] == "web: held by run r0"


def test_digest_is_of_all_that_was_planned(tmp_path: Path, process: Path) -> None:
    one = site(tmp_path, web=workload({"here": 1}, process))
    plan = planned(one)
    assert planned(one).digest == plan.digest
    others = [
        planned(one, title="another"),
        planned(one, reason="why"),
        planned(one, variables={"patch_command": ["apply"]}),
        planned(one, changes={"engine.version": "2.0"}),
        planned(site(tmp_path, web=workload({"here": 2}, process))),
        planned(site(tmp_path, web=workload({"here": 1}, process, stop={"grace": 31}))),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == len(others) + 1
    assert Plan.model_validate_json(plan.model_dump_json(by_alias=True)).digest == plan.digest


def test_errors_before_anything(tmp_path: Path, process: Path) -> None:
    one = site(tmp_path, web=workload({"here": 1}, process))
    with pytest.raises(BadInput, match="gpu9: no such node"):
        planned(one, nodes=["gpu9"])
    with pytest.raises(BadInput, match="patch_command"):
        planned(one, variables={})
    with pytest.raises(NodeUnreachable):
        planned(one, nodes=["there"])
