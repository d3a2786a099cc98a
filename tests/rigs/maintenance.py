"""What whole runs in tests have in common: a runbook without a reboot, and small commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.rigs.site import PORT, SiteRig

QUIET = """---
schema: pitstop/runbook/v1
title: Without a reboot
required: [patch_command]
variables:
  patch_rollback: null
  check_command: ["true"]
---
# Without a reboot

```pitstop
step: patch
kind: command
command: "{{ patch_command }}"
rollback: "{{ patch_rollback }}"
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


def one(data: dict[str, Any]) -> dict[str, Any]:
    """The only workload of a result."""
    [workload] = data["workloads"]
    found: dict[str, Any] = workload
    return found
