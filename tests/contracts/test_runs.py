"""Whole runs on real parts: SSH, CRIU, a rebooting node, a server with state in memory."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.branches import assert_branches
from tests.rigs.command import Command
from tests.rigs.engine import until
from tests.rigs.site import WORKLOAD, SiteRig, cli_command


def outcome(result: dict[str, Any]) -> str | None:
    [workload] = result["workloads"]
    found: str | None = workload["outcome"]
    return found


def healthy(rig: SiteRig) -> None:
    """The workload runs once, lets requests in, and nothing holds it."""
    assert rig.copies() == 1
    assert rig.ask("/")["open"] is True
    node = rig.remote()
    try:
        assert node.call("holder", workload=WORKLOAD)["holder"] == ""
    finally:
        node.close()


def test_restored_after_a_patch_and_a_reboot(rig: SiteRig) -> None:
    """By the command as it is installed; the other tests run its code in a fork of their own."""
    before = rig.node.boot_id
    files = (str(rig.maintenance()), "--site", str(rig.write()), "--home", str(rig.home))
    done = subprocess.run(
        cli_command("run", *files, "--json"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["state"], outcome(result)) == ("done", "restored")
    assert rig.node.boot_id != before
    assert (rig.root / "patched").exists()
    assert rig.ask("/count")["count"] == 4
    healthy(rig)
    [workload] = result["workloads"]
    assert workload["restore_seconds"] > 0
    assert workload["earlier_cold_start_seconds"] > 0
    assert workload["verdict"] == {"valid": True, "differences": []}
    assert_branches(rig, result["run"], "restored")
    report = Path(result["report"])
    assert "restored" in report.read_text()
    assert json.loads(report.with_suffix(".json").read_text())["schema"] == "pitstop/report/v1"


def test_declared_change_means_no_dump_and_a_cold_start(rig: SiteRig) -> None:
    maintenance = rig.maintenance(
        variables={"patch_command": ["cp", str(_version(rig, "2.0")), str(rig.version_file)]},
        changes={"engine.version": "2.0"},
    )
    code, result = rig.run(maintenance)
    assert (code, outcome(result)) == (0, "cold-started")
    [workload] = result["workloads"]
    assert workload["checkpoint"] is None
    [difference] = workload["verdict"]["differences"]
    assert (difference["field"], difference["saved"], difference["present"]) == (
        "engine.version",
        "1.0",
        "2.0",
    )
    assert_branches(rig, result["run"], "declared change")
    assert not list((rig.node.state_dir / "images").glob("*/*"))
    assert rig.ask("/count")["count"] == 1
    healthy(rig)


def test_undeclared_change_is_refused_by_the_gate(rig: SiteRig) -> None:
    """Nobody said that the engine would change: dumped, refused, started cold."""
    maintenance = rig.maintenance(
        variables={"patch_command": ["cp", str(_version(rig, "9.9")), str(rig.version_file)]}
    )
    code, result = rig.run(maintenance)
    assert (code, outcome(result)) == (0, "cold-started")
    [workload] = result["workloads"]
    assert workload["checkpoint"] is not None
    assert "engine.version: 1.0 -> 9.9" in workload["cause"]
    assert rig.ask("/count")["count"] == 1
    healthy(rig)


@pytest.mark.parametrize(
    ("verb", "moment"),
    [
        *(
            (verb, "while the node works")
            for verb in ("drain", "checkpoint", "maintain", "restore")
        ),
        # Answered directly: the node has no work of its own then. All else that can be killed,
        # and when: docs/kill-matrix.md.
        ("gate", "at once"),
    ],
)
def test_controller_killed_then_resumed(rig: SiteRig, verb: str, moment: str) -> None:
    run = "killed"
    files = (str(rig.maintenance()), "--site", str(rig.site_file), "--home", str(rig.home))
    with Command("run", *files, "--run", run) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.rstrip().endswith(f": {verb}"):
                break
        else:
            pytest.fail(f"the run never came to {verb}: {''.join(said)}")
        if moment == "while the node works":
            operations = rig.node.state_dir / "ops"
            until(lambda: list(operations.glob(f"{run}.*.{verb}*")), "the node has begun")
        process.send_signal(signal.SIGKILL)

    code, result = rig.resume(run)
    assert (code, result["state"], outcome(result)) == (0, "done", "restored"), result
    assert rig.ask("/count")["count"] == 4
    healthy(rig)
    assert (rig.root / "patched").exists()
    report = json.loads(rig.cli("report", run, "--home", str(rig.home), "--json").stdout)
    assert report["chain_faults"] == []


def _version(rig: SiteRig, version: str) -> Path:
    path = rig.root / f"version-{version}"
    path.write_text(version + "\n")
    return path
