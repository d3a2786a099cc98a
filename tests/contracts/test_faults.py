"""What goes wrong, and that no workload is lost by it and none runs twice."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.rigs.branches import assert_branches
from tests.rigs.command import Command
from tests.rigs.maintenance import SQUAT, fifo, one, python, quiet
from tests.rigs.site import NODE, PORT, WORKLOAD, SiteRig


def started(rig: SiteRig, maintenance: Path, *arguments: str) -> Command:
    """A run under way as a person's command, with its progress to be read."""
    files = (str(maintenance), "--site", str(rig.write()), "--home", str(rig.home))
    return Command("run", *files, "--json", *arguments)


BAD_FILES = {
    "unknown key in site": ("site", '"nodes"', '"nodes_"', "nodes_"),
    "wrong type in site": ("site", '"deadline": 20', '"deadline": "soon"', "ready.deadline"),
    "unknown key in maintenance": ("patch", '"runbook"', '"runbok"', "runbok"),
    "node that is not there": ("patch", f'"{NODE}"', '"gpu9"', "gpu9"),
    "not YAML": ("site", "{", "{ [", "not YAML"),
    "no such runbook": ("patch", "patch-and-restart", "burn-it-down", "burn-it-down"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_input_is_named_and_touches_nothing(idle_rig: SiteRig, case: str) -> None:
    which, old, new, named = BAD_FILES[case]
    maintenance = idle_rig.maintenance()
    target = idle_rig.write() if which == "site" else maintenance
    text = target.read_text()
    assert old in text
    target.write_text(text.replace(old, new, 1))
    arguments = ("run", str(maintenance), "--site", str(idle_rig.site_file))
    done = idle_rig.cli(*arguments, "--home", str(idle_rig.home), "--json")
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert named in f"{error['subject']} {error['cause']}"
    if case not in ("node that is not there", "no such runbook"):
        assert error["subject"].startswith(f"{target}:")
    assert not idle_rig.node.state_dir.exists() or not any(idle_rig.node.state_dir.iterdir())


def test_unreachable_node_and_wrong_host_key_are_errors_before_anything(rig: SiteRig) -> None:
    ssh = rig.site["nodes"][NODE]["ssh"]
    kind, key = ssh["host_keys"][0].split()
    ssh["host_keys"] = [f"{kind} {key[:-6]}AAAAAA"]
    code, result = rig.run(rig.maintenance())
    assert (code, result["error"]["code"]) == (1, "host_key")
    assert "SHA256:" in result["error"]["cause"]
    ssh["host_keys"] = [f"{kind} {key}"]
    assert rig.copies() == 1

    rig.node.power_cut()
    code, result = rig.run(rig.maintenance())
    assert (code, result["error"]["code"]) == (1, "node_unreachable")


def test_failing_maintenance_is_rolled_back_and_quarantines(rig: SiteRig) -> None:
    marker = rig.root / "half-done"
    fail = python(
        "import pathlib, sys; pathlib.Path(sys.argv[1]).touch(); sys.exit('no such package')",
        str(marker),
    )
    code, result = rig.run(quiet(rig, fail, variables={"patch_rollback": ["rm", str(marker)]}))
    assert (code, result["state"], result["node_state"]) == (4, "partial", "quarantined")
    assert "no such package" in result["cause"]
    assert not marker.exists()
    assert_branches(rig, result["run"], "maintenance fails")
    assert one(result)["outcome"] == "restored"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)

    # Nothing new is planned on a quarantined node …
    code, refused = rig.run(rig.maintenance("another"))
    assert (code, refused["error"]["code"]) == (3, "refused")
    assert "quarantined" in refused["error"]["cause"]
    # … until a person has looked, and the node passes its validation.
    code, result = rig.resume(result["run"])
    assert (code, result["state"], result["node_state"]) == (0, "done", "in-service")
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 5)


def test_failing_validation_keeps_the_checkpoint_until_a_person_has_mended(rig: SiteRig) -> None:
    mended = rig.root / "mended"
    check = ["test", "-e", str(mended)]
    code, result = rig.run(quiet(rig, ["true"], variables={"check_command": check}))
    assert (code, result["state"], result["node_state"]) == (4, "partial", "quarantined")
    assert_branches(rig, result["run"], "validation fails")
    assert one(result)["outcome"] is None
    assert one(result)["checkpoint"] in one(result)["cause"]
    assert rig.copies() == 0

    code, still = rig.resume(result["run"])
    assert (code, still["state"], rig.copies()) == (4, "partial", 0)

    mended.touch()
    code, result = rig.resume(result["run"])
    assert (code, result["state"], result["node_state"]) == (0, "done", "in-service")
    assert one(result)["outcome"] == "restored"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)


def test_node_that_does_not_reboot_is_not_believed(rig: SiteRig) -> None:
    rig.site["nodes"][NODE]["reboot"] = ["true"]
    rig.site["nodes"][NODE]["reboot_deadline"] = 2
    code, result = rig.run(rig.maintenance())
    assert (code, result["node_state"]) == (4, "quarantined")
    assert "did not reboot" in result["cause"]
    assert one(result)["outcome"] == "restored"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)


FLIP = """
import pathlib, sys
[path] = pathlib.Path(sys.argv[1]).glob(sys.argv[2])
raw = bytearray(path.read_bytes())
raw[len(raw) // 2] ^= 1
path.write_bytes(raw)
"""


@pytest.mark.parametrize(
    ("pattern", "named"),
    [("*/*/images/pages-1.img", "pages-1.img"), ("*/*/manifest.json", "manifest")],
)
def test_damaged_checkpoint_is_never_restored(rig: SiteRig, pattern: str, named: str) -> None:
    images = str(rig.node.state_dir / "images")
    code, result = rig.run(quiet(rig, python(FLIP, images, pattern)))
    assert (code, one(result)["outcome"]) == (0, "cold-started")
    assert named in one(result)["cause"]
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 1)


def test_restored_server_that_never_gets_ready_is_ended_and_started_cold(rig: SiteRig) -> None:
    broken = rig.root / "broken"
    rig.workload["ready"]["deadline"] = 3
    # Whatever broke it is mended by a fresh start, as so often.
    rig.workload["launch"]["command"] = python(
        "import os, sys, pathlib; pathlib.Path(sys.argv[1]).unlink(missing_ok=True); "
        "os.execv(sys.argv[2], sys.argv[2:])",
        str(broken),
        *rig.workload["launch"]["command"],
    )
    code, result = rig.run(quiet(rig, ["touch", str(broken)]))
    assert (code, one(result)["outcome"]) == (0, "cold-started")
    assert "not ready" in one(result)["cause"]
    assert "503" in one(result)["cause"]
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 1)


def test_taken_port_is_waited_for(rig: SiteRig) -> None:
    squat = python(SQUAT, fifo(rig, "leave"))
    rig.site["policy"]["retries"]["restore"] = {"count": 2, "delay": 1}
    with started(rig, quiet(rig, squat)) as process:
        for line in process.stderr:
            if "restore failed" in line:
                (rig.root / "leave").write_text("go\n")
                assert "already in use" in line
        assert process.wait() == 0, process.output
        result = json.loads(process.output)
    assert one(result)["outcome"] == "restored"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)


def test_known_blocker_refuses_or_starts_cold_as_the_policy_says(idle_rig: SiteRig) -> None:
    rig = idle_rig
    rig.workload["launch"]["command"].append("--ring")
    rig.start()
    assert rig.count_to(3) == 3
    code, result = rig.run(rig.maintenance())
    assert (code, result["error"]["code"]) == (3, "refused")
    assert "io_uring" in result["error"]["cause"]
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)
    assert not (rig.root / "patched").exists()

    rig.workload["policy"] = {"on_checkpoint_failure": "cold-start"}
    code, result = rig.run(quiet(rig, ["true"]))
    assert (code, one(result)["outcome"]) == (0, "cold-started")
    assert "io_uring" in one(result)["cause"]
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 1)

    # The same server with io_uring kept away from it can be saved.
    rig.workload["launch"]["command"].remove("--ring")
    rig.workload["launch"]["io_uring"] = "deny"


def test_workload_that_ends_by_itself_is_left(rig: SiteRig) -> None:
    record = rig.node.state_dir / "workloads" / WORKLOAD / "record.json"
    ending = python(
        "import json, os, signal, sys; "
        "os.kill(json.load(open(sys.argv[1]))['init_pid'], signal.SIGTERM)",
        str(record),
    )
    rig.workload["drain"] = {"begin": {"command": ending}, "deadline": 10}
    code, result = rig.run(quiet(rig, ["touch", str(rig.root / "patched")]))
    assert (code, one(result)["outcome"]) == (0, "untouched"), result
    assert "ended" in one(result)["cause"]
    assert (rig.root / "patched").exists()
    assert rig.copies() == 0


def test_requests_that_do_not_end_stop_the_run_and_admission_opens_again(rig: SiteRig) -> None:
    rig.workload["drain"]["deadline"] = 0.5
    rig.site["policy"]["retries"]["drain"] = {"count": 0}
    slow = rig.node.popen_net(
        python(f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/slow')"),
        stdin=subprocess.DEVNULL,
    )
    try:
        while not rig.ask("/inflight")["in_flight"]:
            assert slow.poll() is None
        code, result = rig.run(rig.maintenance())
    finally:
        (rig.root / "let-go").touch()
        slow.wait(timeout=60)
    assert (code, result["state"], one(result)["outcome"]) == (1, "failed", "untouched")
    assert "in flight" in result["cause"]
    assert not (rig.root / "patched").exists()
    assert (rig.copies(), rig.ask("/")["open"]) == (1, True)
    code, again = rig.resume(result["run"])
    assert (code, again["error"]["code"]) == (3, "refused")


def test_interrupted_controller_says_how_to_go_on(rig: SiteRig) -> None:
    said = ""
    with started(rig, rig.maintenance(), "--run", "stopped") as process:
        for line in process.stderr:
            said += line
            if line.rstrip().endswith(": checkpoint"):
                process.send_signal(signal.SIGINT)  # once: a second one ends it at once
                break
        said += process.stderr.read()
        assert process.wait() == 130, said
    assert "pitstop resume stopped" in said
    code, result = rig.resume("stopped")
    assert (code, one(result)["outcome"]) == (0, "restored")
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)
