"""A whole Airflow of its own, for `--on airflow`: `airflow standalone` in a temporary home."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pitstop.model.errors import DeadlineExceeded, Unexpected
from pitstop.node.processes import tree, wait_gone

START_DEADLINE = 300.0
"""Seconds for all components to come up; a small machine needs more than a minute."""

_STOP_GRACE = 20.0


class Standalone:
    """A running `airflow standalone`, on loopback, for this process alone.

    :param connections: Airflow connections by id, as the JSON that Airflow reads.
    :param settings: Airflow settings over its own, as `SECTION__NAME`.
    """

    def __init__(
        self,
        connections: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="pitstop-airflow-")
        self.home = Path(self._directory.name)
        self.dags = self.home / "dags"
        self.dags.mkdir()
        # Its workers are forked from the scheduler: so not every task has to load the provider
        # anew. The other components read this too, and have no use for it.
        (self.home / "config").mkdir()
        (self.home / "config" / "airflow_local_settings.py").write_text(
            'import sys\nif "scheduler" in sys.argv:\n    import pitstop.provider.task_group\n'
        )
        self._port = _free_port()
        self._token = ""
        self.environment = self._environment(connections, settings or {})
        """What its components are started with; another one of this home needs the same."""
        with (self.home / "standalone.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "standalone"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process that its components descend from."""
        return self._process.pid

    def _environment(
        self, connections: Mapping[str, Mapping[str, Any]], over: Mapping[str, str]
    ) -> dict[str, str]:
        settings = {
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_FOLDER": str(self.dags),
            # Each is a process that is started at once; the default is 32.
            "CORE__PARALLELISM": "4",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # Whoever reaches this loopback port may do what this user may do anyway.
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self._port),
            "API__BASE_URL": self.url,
            "API__WORKERS": "1",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "2",
            # A new or changed file is seen at once; to parse one again costs seconds of CPU.
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            **over,
        }
        # It starts its components as `airflow`, which is beside this interpreter.
        here = str(Path(sys.executable).parent)
        # The user's own settings stay out: they may name a database that others use.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")}
        return {
            **inherited,
            "PATH": os.pathsep.join((here, os.environ.get("PATH", os.defpath))),
            "AIRFLOW_HOME": str(self.home),
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            **{
                f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection)
                for name, connection in connections.items()
            },
        }

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Start a DAG run once the DAG is known, and return its id.

        :raises DeadlineExceeded: Airflow did not come up, or does not know the DAG.
        """
        self.wait(f"/api/v2/dags/{dag_id}", lambda found: not found.get("is_paused", True))
        answer = self.ask(
            "POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": dict(conf)}
        )
        return str(answer["dag_run_id"])

    def wait_run(self, dag_id: str, run_id: str, deadline: float) -> str:
        """Wait for a DAG run to end and return its state."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"
        ended = ("success", "failed")
        return str(self.wait(path, lambda found: found["state"] in ended, deadline)["state"])

    def wait(
        self,
        path: str,
        good: Callable[[dict[str, Any]], bool],
        deadline: float = START_DEADLINE,
    ) -> dict[str, Any]:
        """Ask for a page of its REST interface until the answer is good, and return it.

        :raises DeadlineExceeded: it was not within `deadline` seconds.
        """
        end = time.monotonic() + deadline
        last = "it was not asked yet"
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise Unexpected("airflow standalone", f"ended: {self._log_tail()}")
            try:
                found = self.ask("GET", path)
            except (OSError, ValueError) as error:
                last = str(error)
            else:
                if good(found):
                    return found
                last = str({k: found.get(k) for k in ("state", "is_paused")})
            time.sleep(0.5)  # its API has no event to wait for
        raise DeadlineExceeded("airflow", f"{path}: {last}; {self._log_tail()}")

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Ask its REST interface and return the answer.

        :raises OSError: no answer, or one that is an error.
        """
        if not self._token and path != "/auth/token":
            self._token = str(self.ask("GET", "/auth/token")["access_token"])
        request = urllib.request.Request(  # noqa: S310  # our own server on loopback
            self.url + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"content-type": "application/json"}
            | ({"authorization": f"Bearer {self._token}"} if self._token else {}),
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _log_tail(self) -> str:
        text = (self.home / "standalone.log").read_text(errors="replace")
        return text.strip()[-1500:]

    def close(self) -> None:
        """End it with all its components, and remove its home."""
        # Components make process groups and titles of their own, so they are found by
        # descent, while the parent is still there.
        family = [] if self._process.poll() is not None else tree(self._process.pid)
        for number in (signal.SIGINT, signal.SIGKILL):
            if self._process.poll() is not None:
                break  # its number may be another process's by now
            os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_GRACE)
        for process in family:
            if process.alive():
                os.kill(process.pid, signal.SIGKILL)
        wait_gone(family, _STOP_GRACE)
        self._directory.cleanup()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
