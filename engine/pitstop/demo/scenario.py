"""The main job from end to end: a server with a client's state lives through maintenance.

Two runs over SSH on the same node. The first patches and reboots it: the server is restored
and its conversation goes on. The second declares a new engine version: no dump is made in
vain, the server starts cold, and the report names the field with both values.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pitstop.demo.setup import NODE, PORT, WORKLOAD, DemoSite, write_site
from pitstop.fleet.node import RemoteNode
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from pitstop.model.errors import Unexpected
from pitstop.model.result import RunResult
from pitstop.steps.by_hand import start_by_hand
from pitstop.steps.files import load_site, plan_from_files
from pitstop.steps.runs import create_run, new_run_id

Progress = Callable[[str], None]
Drive = Callable[[Path, str], RunResult]

TURNS = 3


@dataclass(frozen=True, slots=True)
class Act:
    """One of the two runs.

    Attributes:
        turn_before: the conversation's turn before the run; `turn_after`: the next one.
    """

    run: str
    title: str
    strategy: str
    outcome: str | None
    cause: str
    restore_seconds: float | None
    cold_start_seconds: float | None
    differences: list[dict[str, str]]
    turn_before: int
    turn_after: int
    report: str
    exit_code: int


def play(home: Path, front_end: str, drive: Drive, progress: Progress) -> dict[str, Any]:
    """Play both acts and return what came of them.

    Everything but the reports and the journal under `home` is removed again.

    Raises:
        PitstopError: a part of it did not work.
    """
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pitstop-demo-")))
        progress("booting a node made of namespaces, with its own sshd")
        lab = stack.enter_context(Lab(root / "lab", [NODE]))
        files = write_site(root, lab)
        started = _start(files, progress)
        progress(f"the server was ready {started:.2f} s after its cold start")
        talk = Conversation(lab.node(NODE))
        acts = [
            _act(home, front_end, drive, files.site, maintenance, talk, progress)
            for maintenance in (files.patch, files.upgrade)
        ]
        return {
            "front_end": front_end,
            "first_cold_start_seconds": started,
            "runs": [asdict(act) for act in acts],
        }


def _start(files: DemoSite, progress: Progress) -> float:
    site = load_site(files.site)
    node = RemoteNode(NODE, site.nodes[NODE])
    try:
        found = start_by_hand(site, node, site.workloads[WORKLOAD], WORKLOAD, progress)
    finally:
        node.close()
    return float(found["ready_seconds"])


def _act(
    home: Path,
    front_end: str,
    drive: Drive,
    site: Path,
    maintenance: Path,
    talk: Conversation,
    progress: Progress,
) -> Act:
    before = talk.turns(TURNS)
    plan = plan_from_files(site, maintenance)
    run = new_run_id()
    create_run(home, plan, run, front_end)
    strategy = plan.workload(WORKLOAD).strategy.value
    progress(f"run {run}: {plan.title}; planned for {WORKLOAD}: {strategy}")
    result = drive(home, run)
    [workload] = result.workloads
    return Act(
        run=run,
        title=plan.title,
        strategy=strategy,
        outcome=workload.outcome.value if workload.outcome else None,
        cause=workload.cause or result.cause,
        restore_seconds=workload.restore_seconds,
        cold_start_seconds=workload.cold_start_seconds or workload.earlier_cold_start_seconds,
        differences=(workload.verdict or {}).get("differences", []),
        turn_before=before,
        turn_after=talk.turns(1),
        report=str(home / "runs" / run / "report.html"),
        exit_code=result.exit_code,
    )


class Conversation:
    """A client on another machine, as it were: in the node's network, outside of the node."""

    def __init__(self, node: LabNode) -> None:
        self._node = node

    def turns(self, count: int) -> int:
        """Say something so many times and return the last turn's number."""
        command = [
            sys.executable,
            "-m",
            "pitstop.demo.client",
            f"http://127.0.0.1:{PORT}",
            "--session",
            "demo",
            "--turns",
            str(count),
        ]
        process = self._node.popen_net(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        output, failure = process.communicate(timeout=180)
        if process.returncode != 0:
            raise Unexpected("the demo's client", failure.strip()[-500:])
        return int(json.loads(output.splitlines()[-1])["turn"])
