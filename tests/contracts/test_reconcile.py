"""After a disaster: what is true, and the safe way on, from node, journal and lease."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from typing import Any

import pytest

from tests.rigs.command import Command
from tests.rigs.engine import until
from tests.rigs.maintenance import fifo, one, python, quiet
from tests.rigs.site import NODE, PORT, WORKLOAD, SiteRig

RUN = "lost"
LEASE = 12.0
"""Seconds; longer than it takes to ask right after the controller's death."""


def reconcile(rig: SiteRig, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = rig.cli(
        *("reconcile", NODE, "--site", str(rig.write()), "--home", str(rig.home), "--json"),
        *arguments,
    )
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


def lapsed(rig: SiteRig) -> bool:
    node = rig.remote()
    try:
        return any(lease["lapsed"] for lease in node.call("leases")["leases"])
    finally:
        node.close()


def killed_in(rig: SiteRig, step: str, *command: str) -> None:
    """Start a run, kill its controller once a step has begun on the node."""
    with Command("run", *command, "--home", str(rig.home), "--run", RUN) as process:
        said = ""
        for line in process.stderr:
            said += line
            if line.rstrip().endswith(step):
                break
        else:
            pytest.fail(said)
        subject, _, verb = step.partition(": ")
        pattern = f"{RUN}.{subject}.{verb}*"
        until(lambda: list((rig.node.state_dir / "ops").glob(pattern)), f"its {verb} begins")
        process.send_signal(signal.SIGKILL)


def with_lease(rig: SiteRig, seconds: float = 2) -> None:
    """Let silence be noticed soon, and told to a file."""
    tell = ["sh", "-c", 'echo "$PITSTOP_ALARM" > "$0"', str(rig.root / "alarm")]
    rig.site["policy"]["lease"] = {"seconds": seconds, "alarm": {"command": tell}}


def in_service(rig: SiteRig, count: int) -> None:
    assert rig.copies() == 1
    assert rig.ask("/count")["count"] == count
    assert rig.ask("/")["open"] is True
    assert reconcile(rig) == (
        0,
        {"schema": "pitstop/reconcile/v1", "node": NODE, "done": [], "findings": []},
    )


def test_controller_that_died_in_the_maintenance(rig: SiteRig) -> None:
    """The node raises the alarm; reconcile says where the run stands, and goes on with it."""
    with_lease(rig, LEASE)
    go_on = fifo(rig, "go-on")
    hold = python("import sys; open(sys.argv[1]).read()", go_on)
    maintenance = quiet(rig, hold)
    killed_in(rig, f"{NODE}: maintain", str(maintenance), "--site", str(rig.write()))
    # Somebody who was heard of a moment ago is left alone, dead or not.
    code, said = reconcile(rig, "--apply")
    assert (code, [f["act"] for f in said["findings"]]) == (0, ["wait"]), said
    until((rig.root / "alarm").exists, "the alarm", 30)
    until(lambda: "}" in (rig.root / "alarm").read_text(), "all of the alarm", 30)
    assert json.loads((rig.root / "alarm").read_text())["run"] == RUN
    code, said = reconcile(rig)
    [finding] = said["findings"]
    assert (code, finding["act"], finding["run"]) == (4, "resume", RUN)
    assert f"in maintain of {NODE}" in finding["fact"]
    assert rig.copies() == 0
    go_on.write_text("go\n")
    code, said = reconcile(rig, "--apply")
    assert (code, [f["act"] for f in said["done"]]) == (0, ["resume"]), said
    in_service(rig, 4)
    report = json.loads(rig.cli("report", RUN, "--home", str(rig.home), "--json").stdout)
    assert (report["result"]["state"], report["chain_faults"]) == ("done", [])


def test_run_whose_journal_is_lost_too(rig: SiteRig) -> None:
    """Nobody knows how far it was: a person has to say that its checkpoint may come back."""
    with_lease(rig)
    maintenance = quiet(rig, ["true"], variables={"check_command": ["false"]})
    killed_in(rig, f"{NODE}: validate", str(maintenance), "--site", str(rig.write()))
    shutil.rmtree(rig.home)
    until(lambda: lapsed(rig), "the lease lapses", 30)
    code, said = reconcile(rig, "--apply")
    [finding] = said["findings"]
    assert (code, finding["act"], finding["safe"]) == (4, "bring back", False)
    assert rig.copies() == 0
    code, said = reconcile(rig, "--apply", "--take-over", RUN)
    assert (code, said["findings"]) == (0, []), said
    assert [f["act"] for f in said["done"]] == ["bring back", "end lease"]
    in_service(rig, 4)


def test_workload_that_was_only_drained_is_let_in_again(rig: SiteRig) -> None:
    with_lease(rig)
    with rig.node.popen_net(
        python(f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/slow')"),
        stdin=subprocess.DEVNULL,
    ) as slow:
        try:
            until(lambda: rig.ask("/inflight")["in_flight"], "a request in flight")
            killed_in(rig, f"{WORKLOAD}: drain", str(rig.maintenance()), "--site", str(rig.write()))
            until(lambda: rig.ask("/")["open"] is False, "it is drained")
        finally:
            (rig.root / "let-go").touch()
            slow.wait(timeout=60)
    shutil.rmtree(rig.home)
    until(lambda: lapsed(rig), "the lease lapses", 30)
    assert rig.ask("/")["open"] is False
    code, said = reconcile(rig, "--apply")
    assert (code, [f["act"] for f in said["done"]]) == (0, ["release", "end lease"]), said
    in_service(rig, 5)  # what was in flight counts


def test_node_that_waits_for_repair_and_workload_that_is_down(rig: SiteRig) -> None:
    code, result = rig.run(quiet(rig, ["false"]), "--run", RUN)
    assert (code, result["node_state"]) == (4, "quarantined")
    assert one(result)["outcome"] == "restored"
    rig.node.run(["pkill", "-KILL", "-f", "counting_server.py"])
    until(lambda: rig.copies() == 0, "it is down", 30)
    code, said = reconcile(rig, "--apply")
    assert code == 4
    assert said["done"] == []
    assert {(f["subject"], f["act"]) for f in said["findings"]} == {
        (RUN, "person"),
        (WORKLOAD, "person"),
    }
    assert f"pitstop start {WORKLOAD}" in {f["way"] for f in said["findings"]}
    shown = rig.cli("reconcile", NODE, "--site", str(rig.site_file), "--home", str(rig.home))
    assert shown.returncode == 4
    assert f"pitstop resume {RUN}" in shown.stdout


def test_unknown_node_is_bad_input(idle_rig: SiteRig) -> None:
    done = idle_rig.cli("reconcile", "no-such", "--site", str(idle_rig.write()))
    assert done.returncode == 2
    assert NODE in done.stderr
