"""The flow's process dies, again and again; the node's work goes on, and nothing is done twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pitstop.flows.front_end import drive
from pitstop.flows.maintain_node import maintain_node
from pitstop.model.errors import Refused
from tests.flows import api
from tests.flows.scenes import HOLD, assert_in_service, journal, look
from tests.rigs.engine import until
from tests.rigs.maintenance import fifo, python, quiet
from tests.rigs.site import NODE, SiteRig, cli_command

RUN = "killed"


@contextmanager
def driven(rig: SiteRig, *command: str) -> Iterator[subprocess.Popen[str]]:
    """`pitstop … --on prefect` as a process, killed at the end if it still lives."""
    with subprocess.Popen(
        cli_command(*command, "--home", str(rig.home), "--on", "prefect"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until_says(process: subprocess.Popen[str], text: str) -> None:
    """Wait until the process logs that a step begins."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.rstrip().endswith(text):
            return
    pytest.fail(f"it never said {text!r}: {''.join(said)}")


def kill(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    assert process.stderr is not None
    process.stderr.read()  # to its end, or a full pipe would keep it from ending
    assert process.wait(timeout=60) != 0


@pytest.mark.timeout(400)
def test_killed_in_checkpoint_maintain_and_restore(rig: SiteRig, server: str) -> None:
    patched, go_on, broken = rig.root / "log", fifo(rig, "go-on"), rig.root / "broken"
    rig.workload["ready"]["deadline"] = 120  # so that a restore can be kept waiting
    maintenance = quiet(rig, python(HOLD, patched, go_on))

    with driven(rig, "run", str(maintenance), "--site", str(rig.write()), "--run", RUN) as process:
        until_says(process, "web: checkpoint")
        kill(process, signal.SIGKILL)

    with driven(rig, "resume", RUN) as process:
        until_says(process, f"{NODE}: maintain")
        until(patched.exists, "the patch begins", 60)
        second_driver_is_refused(rig)
        kill(process, signal.SIGTERM)
    check_in_the_middle(rig)
    broken.touch()
    go_on.write_text("go\n")

    with driven(rig, "resume", RUN) as process:
        until_says(process, "web: restore")
        until(lambda: rig.copies() == 1, "the restored processes", 60)
        kill(process, signal.SIGTERM)
    assert rig.copies() == 1
    broken.unlink()

    resume_with_a_server_of_its_own(rig)
    assert_in_service(rig, 4)
    assert patched.read_text() == "begun\nended\n"
    with pytest.raises(Refused, match="it has ended: done"):
        drive(rig.home, RUN)
    check_journal(rig)
    check_flow_runs()


def second_driver_is_refused(rig: SiteRig) -> None:
    """A flow run beside the one that drives must not take its busy step for a failed one."""
    before = len(journal(rig, RUN))
    state: Any = maintain_node(home=str(rig.home), run_id=RUN, return_state=True)
    assert state.is_failed()
    assert "driver" in state.message
    assert len(journal(rig, RUN)) == before


def check_in_the_middle(rig: SiteRig) -> None:
    """Nothing was undone: neither undrained nor restored, and the patch goes on."""
    assert rig.copies() == 0
    assert (rig.root / "log").read_text() == "begun\n"
    assert look(rig) == {"quarantine": None, "holder": RUN, "running": False}
    operations = {p.name for p in (rig.node.state_dir / "ops").iterdir() if p.name.startswith(RUN)}
    assert {name.split(".")[2] for name in operations} == {"drain", "checkpoint", "maintain"}
    verbs = {e.verb for e in journal(rig, RUN) if e.kind == "step.started"}
    assert verbs == {"precheck", "drain", "checkpoint", "maintain"}


def resume_with_a_server_of_its_own(rig: SiteRig) -> None:
    """The last time with Prefect's temporary server, which knows nothing of the run.

    Its database is migrated already (a copy of the server's), which saves a quarter minute.
    """
    home = rig.root / "prefect"
    home.mkdir()
    with (
        sqlite3.connect(Path(os.environ["PREFECT_HOME"]) / "prefect.db") as source,
        sqlite3.connect(home / "prefect.db") as target,
    ):
        source.backup(target)
    source.close()
    target.close()
    environment = {**os.environ, "PREFECT_HOME": str(home)}
    del environment["PREFECT_API_URL"]
    done = subprocess.run(
        cli_command("resume", RUN, "--home", str(rig.home), "--on", "prefect"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "temporary server" in done.stderr
    assert "restored" in done.stdout


def check_journal(rig: SiteRig) -> None:
    """Every step came to one end."""
    events = journal(rig, RUN)
    finished = Counter((e.verb, e.subject) for e in events if e.kind == "step.finished")
    assert set(finished.values()) == {1}
    assert not [e for e in events if e.kind == "step.failed"]
    resumed = [e.data for e in events if e.kind == "run.resumed"]
    assert resumed == [{"recover": False}] * 3


def check_flow_runs() -> None:
    """Prefect shows what it could see; what was done before is `Cached`, not done again."""
    found = api.flow_runs(RUN)
    states = [f["state_type"] for f in found]
    # Of a process that was killed nobody tells; where it has the automation, and takes its time,
    # the server itself finds out.
    assert states[0] in ("RUNNING", "CRASHED")
    assert states[1:] == ["CRASHED", "FAILED", "CRASHED"]
    tasks = api.task_runs(found[-1]["id"], [f"maintain-{NODE}", f"validate-{NODE}"])
    cached = {name for name, task in tasks.items() if task["state_name"] == "Cached"}
    assert {f"precheck-{NODE}", "drain-web", "checkpoint-web"} <= cached
    assert not [t for t in tasks.values() if t["state_name"] == "RolledBack"]
