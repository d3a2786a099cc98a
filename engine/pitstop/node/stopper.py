"""Ending a workload, with the proof that all of it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pitstop.model.errors import Busy, DeadlineExceeded, PermanentError, WorkloadGone
from pitstop.node import processes, subject
from pitstop.node.clock import now
from pitstop.node.locks import held, wait_until_free
from pitstop.node.paths import StateDir
from pitstop.node.processes import Identity
from pitstop.node.record import WorkloadState

KILL_DEADLINE = 60.0


def stop(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """End a workload by its signal, and after its grace by SIGKILL.

    Args:
        state: the node's state.
        arguments: `workload`, `run`, `signal` (name without SIG), `grace` seconds,
            `pid_file`.

    Returns:
        `how`: `signal`, `kill`, or `gone` when it did not run. In each case the workload is
        held for the run, and it is proven that nothing of it runs.

    Raises:
        PermanentError: something of it still runs.
    """
    files = WorkloadState(state, str(arguments["workload"]))
    number = signal.Signals[f"SIG{arguments.get('signal', 'TERM')}"]
    grace = float(arguments.get("grace", 30))
    with held(files.operation_lock, files.name, "another operation on this workload"):
        files.hold(str(arguments.get("run", "")))
        if files.running():
            return {"how": end_launched(files, number, grace), "ended": now()}
        pid_file = arguments.get("pid_file")
        if pid_file is None:
            return {"how": "gone", "ended": now()}
        try:
            tree = processes.tree(processes.read_pid_file(Path(str(pid_file))))
        except WorkloadGone:
            return {"how": "gone", "ended": now()}
        return {"how": _end_tree(tree, number, grace, files.name), "ended": now()}


def end_launched(
    files: WorkloadState, number: signal.Signals = signal.SIGTERM, grace: float = 0.0
) -> str:
    """End a workload under the launcher; its lock being free is the proof."""
    record = files.record()
    if grace > 0:
        try:
            found = subject.find(files, None)
            os.kill(found.root.pid, number)
            wait_until_free(files.lock_path, grace)
            return "signal"
        except (Busy, DeadlineExceeded, ProcessLookupError, WorkloadGone) as left:
            # What is left is killed below, and that is proven.
            print(f"pitstop: {files.name} did not end by its signal: {left}", flush=True)
    for pid in (record.init_pid, record.launcher_pid):
        # pid 1 of the namespace first: with it the kernel ends everything inside.
        _kill_if_ours(pid, files)
    try:
        wait_until_free(files.lock_path, KILL_DEADLINE)
    except DeadlineExceeded as error:
        raise PermanentError(files.name, "killed, but something of it still runs") from error
    return "kill"


def end_all(files: WorkloadState, members: Sequence[Identity]) -> None:
    """Kill a workload, under the launcher or not, and prove that all of it is gone.

    Args:
        files: of the workload.
        members: its processes, also those whose parents have ended.

    Raises:
        PermanentError: something of it still runs.
    """
    if files.running():
        end_launched(files)
    for process in members:
        if process.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    if processes.wait_gone(list(members), KILL_DEADLINE):
        raise PermanentError(files.name, "killed, but something of it still runs")


def _kill_if_ours(pid: int, files: WorkloadState) -> None:
    """Kill a process that holds this workload's lock file open, and no other."""
    if pid > 1 and processes.has_open(pid, files.lock_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_tree(tree: list[Identity], number: signal.Signals, grace: float, name: str) -> str:
    os.kill(tree[0].pid, number)
    left = processes.wait_gone(tree, grace)
    if not left:
        return "signal"
    for process in left:
        if process.alive():
            os.kill(process.pid, signal.SIGKILL)
    if processes.wait_gone(left, KILL_DEADLINE):
        raise PermanentError(name, "killed, but something of it still runs")
    return "kill"
