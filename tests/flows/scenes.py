"""What the runs in these tests have in common: runbooks, commands, and looks at the node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pitstop.journal.store import Journal
from pitstop.model.event import Event
from tests.rigs.site import NODE, PORT, WORKLOAD, SiteRig

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
"""The task runs of a maintenance that keeps its workload."""

QUIET = """---
schema: pitstop/runbook/v1
title: Without a reboot
required: [patch_command]
variables:
  check_command: ["true"]
---
# Without a reboot

```pitstop
step: patch
kind: command
command: "{{ patch_command }}"
timeout: 60
```

```pitstop
step: verify
kind: check
phase: validate
command: "{{ check_command }}"
timeout: 60
```
"""

SQUAT = f"""
import os, socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", {PORT}))
s.listen()
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for n in range(3):
        os.dup2(null, n)
    open(sys.argv[1]).read()
"""
"""Takes the workload's port while that is away, until somebody writes into the FIFO."""

HOLD = """
import pathlib, sys
pathlib.Path(sys.argv[1]).open("a").write("begun\\n")
open(sys.argv[2]).read()
pathlib.Path(sys.argv[1]).open("a").write("ended\\n")
"""
"""A patch that says when it begins and ends, and waits in between for the FIFO."""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def quiet(rig: SiteRig, command: list[str], **changes: Any) -> Path:
    """A maintenance whose runbook does not reboot the node."""
    (rig.root / "quiet.md.j2").write_text(QUIET)
    variables = {"patch_command": command, **changes.pop("variables", {})}
    return rig.maintenance(runbook="quiet.md.j2", variables=variables, **changes)


def fifo(rig: SiteRig, name: str) -> Path:
    path = rig.root / name
    os.mkfifo(path)
    return path


def journal(rig: SiteRig, run: str) -> list[Event]:
    """The run's events; none while there is no such run."""
    found = Journal(rig.home / "journal.db")
    try:
        return found.events(run)
    finally:
        found.close()


def one(data: dict[str, Any]) -> dict[str, Any]:
    """The only workload of a result."""
    [workload] = data["workloads"]
    found: dict[str, Any] = workload
    return found


def look(rig: SiteRig) -> dict[str, Any]:
    """What the node's engine says of itself: quarantine, and the workload's holder."""
    node = rig.remote()
    try:
        found = node.call("inspect", workloads={WORKLOAD: {"probes": {}, "pid_file": None}})
    finally:
        node.close()
    return {
        "quarantine": found["quarantine"],
        "holder": found["workloads"][WORKLOAD]["holder"],
        "running": found["workloads"][WORKLOAD]["running"],
    }


def assert_in_service(rig: SiteRig, count: int) -> None:
    """It runs once, remembers, lets requests in, and nothing holds it or the node."""
    assert rig.copies() == 1
    assert rig.ask("/count")["count"] == count
    assert rig.ask("/")["open"] is True
    assert look(rig) == {"quarantine": None, "holder": "", "running": True}
