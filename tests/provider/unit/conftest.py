"""A site of this machine alone, asked by the real engine: no lab, no other machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pitstop.fleet.node import RemoteNode
from pitstop.journal.store import Journal
from pitstop.model.event import Event
from pitstop.provider.operators import PlanOperator, StepOperator
from pitstop.steps.files import load_site
from tests.rigs.maintenance import QUIET

RUN = "run"
NODE = "here"
WORKLOAD = "sleeper"


@dataclass
class Here:
    """A node `here` with the workload `sleeper`, and a run of its maintenance.

    Draining and maintaining both read from a FIFO: each takes until somebody lets it go.
    """

    root: Path
    context: Any

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def site_file(self) -> Path:
        return self.root / "site.yaml"

    def begin(self) -> None:
        """Make the plan and begin the run, as the DAG does."""
        plan = PlanOperator(task_id="plan", maintenance=str(self.root / "maintenance.yaml"))
        assert plan.execute(self.context) == RUN

    def step(self, verb: str, subject: str = WORKLOAD) -> StepOperator:
        return StepOperator(task_id=f"{verb}_{subject}", verb=verb, subject=subject)

    def let_go(self, name: str) -> None:
        (self.root / name).write_text("go\n")

    def events(self) -> list[Event]:
        journal = Journal(self.home / "journal.db")
        try:
            return journal.events(RUN)
        finally:
            journal.close()

    def kinds(self, verb: str) -> list[str]:
        return [e.kind for e in self.events() if e.verb == verb]

    def operation(self, verb: str, subject: str, part: str = "") -> str:
        """The state of a step's first work on the node."""
        identifier = ".".join(filter(None, (RUN, subject, verb, part, "1")))
        node = RemoteNode(NODE, load_site(self.site_file).nodes[NODE])
        try:
            return str(node.call("op.status", id=identifier)["state"])
        finally:
            node.close()


@pytest.fixture
def here(tmp_path: Path, left_over: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    process = subprocess.Popen(
        ["sleep", "1000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    (tmp_path / "pid").write_text(f"{process.pid}\n")
    for name in ("drained", "maintained"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "quiet.md.j2").write_text(QUIET)
    _write(tmp_path / "site.yaml", _site(tmp_path))
    _write(
        tmp_path / "maintenance.yaml",
        {
            "schema": "pitstop/maintenance/v1",
            "title": "November patches",
            "runbook": "quiet.md.j2",
            "nodes": [NODE],
            "variables": {"patch_command": ["head", "-n1", str(tmp_path / "maintained")]},
        },
    )
    extra = {"site_file": str(tmp_path / "site.yaml"), "home": str(tmp_path / "home")}
    connection = {"conn_type": "pitstop", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PITSTOP_DEFAULT", json.dumps(connection))
    dag_run = SimpleNamespace(dag_id="dag", run_id="manual", conf={"pitstop_run": RUN})
    yield Here(tmp_path, {"dag_run": dag_run})
    process.kill()
    process.wait()


def _site(root: Path) -> dict[str, Any]:
    return {
        "schema": "pitstop/site/v1",
        "name": "here",
        "nodes": {
            NODE: {
                "engine": [sys.executable, "-m", "pitstop.node.main"],
                "state_dir": str(root / "state"),
            }
        },
        "workloads": {
            WORKLOAD: {
                "placement": {NODE: 0},
                "launch": {"command": ["sleep", "1000"]},
                "ready": {"command": ["true"]},
                "engine": {"value": "1.0"},
                "pid_file": str(root / "pid"),
                "drain": {"begin": {"command": ["head", "-n1", str(root / "drained")]}},
            }
        },
    }


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1))
