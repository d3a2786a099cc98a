"""Processes of the engine that outlive whoever starts them, each alive as long as its lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pitstop.node.locks import Lock
from pitstop.node.paths import StateDir


def spawn(state: StateDir, arguments: list[str], lock: Lock, log: Path) -> int:
    """Start `pitstop-node` with these arguments and return its PID.

    It inherits the lock, which the caller has taken and gives back afterwards; what it prints
    is appended to the log.
    """
    assert lock.descriptor is not None  # noqa: S101  # the caller has taken it
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "pitstop.node.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={**os.environ, "PITSTOP_STATE_DIR": str(state.root)},
            # Out of the caller's session: a hang-up of the connection must not reach it.
            start_new_session=True,
            pass_fds=(lock.descriptor,),
        ).pid
    finally:
        os.close(output)
