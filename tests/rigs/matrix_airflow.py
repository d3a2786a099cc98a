"""One `airflow standalone` for all Airflow cells, and what can be done to its parts.

Its orphans, of which the cells make many, become children of the test's process: so they are
found by descent as long as they live, and all of them end with the fixture.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pitstop.node import processes
from pitstop.node.processes import Identity
from pitstop.provider.standalone import Standalone
from tests.rigs.engine import until
from tests.rigs.matrix import RUN, Scene
from tests.rigs.site import WORKLOAD

FAST = {
    # Seconds until a silent task counts as dead; Airflow's default is five minutes. On a busy
    # machine a healthy one is silent for many seconds.
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "WORKERS__MAX_FAILED_HEARTBEATS": "10",
    "SCHEDULER__JOB_HEARTBEAT_SEC": "1",
    "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
    "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
}

DAG_FILE = """from datetime import UTC, datetime

from airflow.sdk import DAG

from pitstop.provider.task_group import maintenance_task_group

with DAG(dag_id={name!r}, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    maintenance_task_group(
        maintenance={maintenance!r}, node="gpu1", workloads=["web"], pitstop_conn_id={name!r}
    )
"""

RUN_DEADLINE = 240.0
ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class DagRun:
    """One DAG run, as a person sees and handles it through the REST interface."""

    def __init__(self, airflow: Standalone, dag: str, run: str) -> None:
        self._airflow = airflow
        self._dag = dag
        self._run = run
        self._path = f"/api/v2/dags/{dag}/dagRuns/{run}"

    @property
    def state(self) -> str:
        return str(self._airflow.ask("GET", self._path)["state"])

    def wait(self) -> str:
        return self._airflow.wait_run(self._dag, self._run, RUN_DEADLINE)

    def tasks(self) -> dict[str, str]:
        """The states of all tasks."""
        found = self._airflow.ask("GET", f"{self._path}/taskInstances")["task_instances"]
        return {t["task_id"].removeprefix("maintenance."): str(t["state"]) for t in found}

    def task(self, name: str) -> dict[str, Any]:
        return self._airflow.ask("GET", f"{self._path}/taskInstances/maintenance.{name}")

    def wait_task(self, name: str, good: Callable[[dict[str, Any]], bool], what: str) -> None:
        def look() -> bool:
            with suppress(OSError):
                return good(self.task(name))
            return False

        until(look, f"{name} {what}", RUN_DEADLINE)

    def wait_try(self, name: str, number: int) -> None:
        """Wait until a task is tried for the so-manyth time."""

        def tried(task: dict[str, Any]) -> bool:
            begun = task["state"] in ("running", "deferred", "success", "failed", "up_for_retry")
            return bool(task["try_number"] >= number and begun)

        self.wait_task(name, tried, f"is tried for the {number}. time")

    def mark_failed(self) -> None:
        """Mark the DAG run failed, and wait until none of its tasks is left."""
        self._insist("PATCH", self._path, {"state": "failed"})
        until(lambda: set(self.tasks().values()) <= ENDED, "all tasks have ended", 60)

    def mark_task_failed(self, name: str) -> None:
        """Mark a task failed, and wait until all that follow have come to their end."""
        path = f"{self._path}/taskInstances/maintenance.{name}"
        self._insist("PATCH", path, {"new_state": "failed"})
        assert self.wait() == "failed"

    def clear(self, name: str, downstream: bool) -> None:
        """Clear a task, with all that follow it or alone."""
        body = {
            "dry_run": False,
            "only_failed": False,
            "reset_dag_runs": True,
            "dag_run_id": self._run,
            "task_ids": [f"maintenance.{name}"],
            "include_downstream": downstream,
        }
        self._insist("POST", f"/api/v2/dags/{self._dag}/clearTaskInstances", body)

    def _insist(self, method: str, path: str, body: dict[str, Any]) -> None:
        """Ask for a change, again where the server fails: its SQLite is locked now and then."""

        def ask() -> bool:
            try:
                self._airflow.ask(method, path, body)
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise
                return False
            return True

        until(ask, f"{method} {path}", 30)


class SharedAirflow:
    """The Airflow of a session of cells."""

    def __init__(self) -> None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._airflow = Standalone({}, FAST)
        self._started: list[subprocess.Popen[bytes]] = []
        self._runs = 0
        try:
            self._airflow.wait("/api/v2/monitor/health", _healthy)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def dag_run(self, scene: Scene) -> Iterator[DagRun]:
        """Start a DAG run of the scene's maintenance, with a connection and DAG of its own."""
        for component in ("scheduler", "triggerer"):
            if not self._component(component):
                self.start(component)  # a cell before has failed in between
        self._runs += 1
        name = f"cell_{self._runs}"
        rig = scene.rig
        extra = {"site_file": str(rig.write()), "home": str(rig.home)}
        self._airflow.wait("/api/v2/monitor/health", _healthy)
        self._airflow.ask(
            "POST",
            "/api/v2/connections",
            {"connection_id": name, "conn_type": "pitstop", "extra": json.dumps(extra)},
        )
        path = self._airflow.dags / f"{name}.py"
        draft = path.with_suffix(".draft")
        draft.write_text(DAG_FILE.format(name=name, maintenance=str(scene.maintenance)))
        draft.rename(path)
        run = DagRun(self._airflow, name, self._airflow.trigger(name, {"pitstop_run": RUN}))
        try:
            yield run
        except BaseException:
            print(run.tasks())
            self._print_logs(name)
            raise
        finally:
            if run.state not in ENDED:
                run.mark_failed()  # so that nothing of it disturbs the next cell
            path.unlink()

    def executing(self, scene: Scene) -> Identity:
        """The process of the task that executes the scene's step."""
        directory = scene.rig.home / "runs" / RUN

        def look() -> Identity | None:
            locks = list(directory.glob(f"*.{scene.step}.lock"))
            for process in processes.tree(os.getpid())[1:]:
                if any(processes.has_open(process.pid, lock) for lock in locks):
                    return process
            return None

        found: Identity = until(look, f"a process executes {scene.step}", 5)
        return found

    def kill_component(self, name: str) -> None:
        """SIGKILL of a component with all of its processes."""
        root = self._component(name)
        assert root, f"no {name} runs"
        family = processes.tree(root)
        for process in family:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        assert not processes.wait_gone(family, 20)

    def start(self, name: str) -> None:
        """Start another of a component: nothing in `airflow standalone` does."""
        with (self._airflow.home / f"{name}-{len(self._started)}.log").open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "airflow", name],
                    env=self._airflow.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _component(self, name: str) -> int:
        """The first process of a component; 0 while there is none."""
        parents = {self._airflow.pid, os.getpid()}
        for process in self._family():
            with suppress(OSError):
                command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                ours = processes.parent_of(process.pid) in parents
                if ours and command[-2:-1] == [name.encode()]:
                    return process.pid
        return 0

    def _family(self) -> list[Identity]:
        """All processes of this Airflow: its parts make process groups, but no sessions."""
        sessions = {self._airflow.pid, *(component.pid for component in self._started)}
        below = processes.tree(os.getpid())[1:]
        return [process for process in below if processes.session_of(process.pid) in sessions]

    def _print_logs(self, dag: str) -> None:
        """Show the ends of what its tasks and components have said, for a failed cell."""
        for log in sorted(self._airflow.home.glob(f"logs/dag_id={dag}/**/attempt=*.log")):
            print(f"== {log.parent.name} {log.stem}\n{log.read_text(errors='replace')[-3000:]}")
        for log in (self._airflow.home / "standalone.log", *self._airflow.home.glob("*-*.log")):
            print(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}")

    def close(self) -> None:
        """End it with everything that it has left behind."""
        family = self._family()
        try:
            self._airflow.close()
            for process in (*family, *self._family()):
                if process.alive():
                    os.kill(process.pid, signal.SIGKILL)
            assert not processes.wait_gone(family, 20)
            for component in self._started:
                component.wait()
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            _reap(family)


def _reap(family: list[Identity]) -> None:
    """Collect the orphans that became this process's children."""
    for process in family:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _healthy(found: dict[str, Any]) -> bool:
    return all(found[name]["status"] == "healthy" for name in ("scheduler", "triggerer"))


def task_of(step: str) -> str:
    """The name of a step's task in the graph."""
    return step if step in ("precheck", "maintain", "validate") else f"{step}_{WORKLOAD}"


BEFORE = {
    "drain": "precheck",
    "checkpoint": "drain",
    "maintain": "checkpoint",
    "gate": "validate",
    "restore": "gate",
    "cold_start": "gate",
}
"""The step whose task has finished when a step begins."""
