"""Leases: how a node notices that nobody looks after a run any more.

Each contact of a run's controller renews the run's lease. When it lapses, nothing is undone
here: only `pitstop reconcile`, which also sees the journal, can tell what is safe. What the
node does is to raise the site's alarm, once, and to say so to whoever asks.

Time is counted by the clock that runs since boot, which nobody sets. After a reboot a lease
has its full length from the boot on.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitstop.images.durable import make_directory, read_json, write_json
from pitstop.model.errors import PitstopError
from pitstop.node import processes
from pitstop.node.clock import now, running_seconds
from pitstop.node.detached import spawn
from pitstop.node.locks import Lock
from pitstop.node.paths import StateDir, boot_id, checked

ENVIRONMENT = "PITSTOP_ALARM"
"""The variable in which the alarm's command finds what it is about, as JSON."""


class Lease:
    """The lease of one run on this node."""

    def __init__(self, state: StateDir, run: str) -> None:
        self.run = checked(run)
        self._state = state
        self._directory = state.root / "leases"
        self._file = self._directory / f"{self.run}.json"
        self._lock = self._directory / f"{self.run}.lock"
        self._log = self._directory / f"{self.run}.log"

    def begin(self, order: Mapping[str, Any], drained: str = "") -> None:
        """Begin or renew it, and see that somebody watches it.

        Args:
            order: `seconds`, `controller`, the `node` as the site calls it, and the site's
                `alarm` (`model.workload.Action`).
            drained: a workload that the run now keeps new work away from.
        """
        make_directory(self._directory)
        before = read_json(self._file) or {}
        write_json(
            self._file,
            {
                "run": self.run,
                "controller": str(order.get("controller", "")),
                "node": str(order.get("node", "")),
                "seconds": float(order["seconds"]),
                "alarm": order.get("alarm"),
                "drained": sorted({*before.get("drained", ()), drained} - {""}),
                "boot_id": boot_id(),
                "renewed": running_seconds(),
                "time": now(),
            },
        )
        lock = Lock(self._lock)
        if lock.try_acquire():  # else it is watched
            try:
                watcher = spawn(self._state, ["lease-watch", self.run], lock, self._log)
                self._lock.write_text(str(watcher))
            finally:
                lock.release()  # the watcher has inherited it

    def renew(self, order: Mapping[str, Any]) -> None:
        """Renew it if it is there; see `begin`. Who asks after the run's end begins nothing."""
        if self._file.exists():
            self.begin(order)

    def admitted(self, workload: str) -> None:
        """Note that new work is let in again."""
        lease = read_json(self._file)
        if lease is not None and workload in lease["drained"]:
            left = [name for name in lease["drained"] if name != workload]
            write_json(self._file, {**lease, "drained": left})

    def end(self) -> None:
        """End it, and its watcher. One that is not there has ended."""
        self._file.unlink(missing_ok=True)
        watcher = self._read_watcher()
        if watcher is not None and processes.has_open(watcher, self._lock):
            os.kill(watcher, signal.SIGTERM)
        self._lock.unlink(missing_ok=True)

    def look(self) -> dict[str, Any] | None:
        """Say how it stands.

        Returns:
            `run`, `controller`, `time` of the last contact, `seconds_left`, `lapsed`, the
            workloads `drained` under it, and the `alarm` that was raised; None without one.
        """
        lease = read_json(self._file)
        if lease is None:
            return None
        left = _left(lease)
        return {
            "run": self.run,
            "controller": lease["controller"],
            "time": lease["time"],
            "seconds_left": round(left, 3),
            "lapsed": left <= 0,
            "drained": lease["drained"],
            "alarm": lease.get("raised"),
        }

    def watch(self) -> None:
        """Wait for it to lapse, then raise the alarm; in the watcher only."""
        while (lease := read_json(self._file)) is not None:
            left = _left(lease)
            if left <= 0:
                self.check()
                return
            # What is waited for is the time itself; the end of the lease ends this process.
            time.sleep(left)

    def check(self) -> dict[str, Any] | None:
        """Raise the alarm if it is due, then say how the lease stands; see `look`."""
        lease = read_json(self._file)
        if lease is not None and _left(lease) <= 0:
            self._raise_alarm(lease)
        return self.look()

    def _raise_alarm(self, lease: dict[str, Any]) -> None:
        """Raise the site's alarm, once per lapse, and note how that went."""
        if lease.get("raised") is not None:
            return
        node = lease.get("node") or os.uname().nodename
        message = {
            "run": self.run,
            "controller": lease["controller"],
            "last_heard": lease["time"],
            "silent_seconds": lease["seconds"],
            "node": node,
            "message": f"nobody looks after run {self.run}; on a controller: "
            f"pitstop reconcile {node}",
        }
        text = json.dumps(message, ensure_ascii=False)
        print(text, flush=True)
        failure = ""
        if lease["alarm"] is not None:
            try:
                _act(lease["alarm"], text, self._log)
            except PitstopError as error:
                failure = str(error)
        # Read anew: a controller that came back meanwhile has made it a living lease again.
        current = read_json(self._file)
        if current is not None and current["renewed"] == lease["renewed"]:
            write_json(self._file, {**current, "raised": {"time": now(), "failure": failure}})

    def _read_watcher(self) -> int | None:
        try:
            return int(self._lock.read_text())
        except (FileNotFoundError, ValueError):
            return None


def all_leases(state: StateDir) -> list[Lease]:
    """Return the leases of this node, by run."""
    files = sorted((state.root / "leases").glob("*.json"))
    return [Lease(state, file.stem) for file in files if not file.name.startswith(".")]


def check_all(state: StateDir) -> list[dict[str, Any]]:
    """Raise the alarms that are due, and say how every lease stands.

    For a timer, or the boot of a node: a watcher does not outlive a reboot.
    """
    return [found for lease in all_leases(state) if (found := lease.check()) is not None]


def _left(lease: Mapping[str, Any]) -> float:
    """Seconds until it lapses; not positive once it has."""
    begun = float(lease["renewed"]) if lease["boot_id"] == boot_id() else 0.0
    return begun + float(lease["seconds"]) - running_seconds()


def _act(alarm: Mapping[str, Any], message: str, output: Path) -> None:
    from pitstop.node.execute import action

    os.environ[ENVIRONMENT] = message  # which the command inherits
    http = alarm.get("http")
    if http is not None and http.get("method") != "GET" and http.get("body") is None:
        headers = {"content-type": "application/json", **(http.get("headers") or {})}
        alarm = {**alarm, "http": {**http, "body": message, "headers": headers}}
    action(alarm, output)
