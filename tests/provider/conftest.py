"""An Airflow of its own for these tests: own home, own database, nobody's settings."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from pitstop.node import kernel, processes

# Before anything imports airflow: it reads its settings once.
_HOME = tempfile.TemporaryDirectory(prefix="pitstop-airflow-")
os.environ.update(
    AIRFLOW_HOME=_HOME.name,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__CORE__DAGS_FOLDER=f"{_HOME.name}/dags",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME.name}/airflow.db",
)

_PR_SET_CHILD_SUBREAPER = 36


def pytest_configure(config: pytest.Config) -> None:
    # Warnings that Airflow and its dependencies raise about themselves.
    for rule in (
        "ignore::DeprecationWarning",
        "ignore::ResourceWarning",
        "ignore::UserWarning",
        "ignore::FutureWarning",
        "ignore::PendingDeprecationWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "ignore::SyntaxWarning",
    ):
        config.addinivalue_line("filterwarnings", rule)


@pytest.fixture(scope="session")
def airflow_db() -> Iterator[str]:
    """Airflow's database, migrated; its path's directory."""
    os.makedirs(f"{_HOME.name}/dags", exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=170,
    )
    _keep_the_api()
    yield _HOME.name


def _keep_the_api() -> None:
    """Let `dag.test()` make its API once, as Airflow 3.3 does: 3.2 makes it for every task."""
    from airflow.sdk.execution_time import supervisor

    supervisor.in_process_api_server = functools.cache(supervisor.in_process_api_server)


LeftOver = Callable[[], list[processes.Identity]]


@pytest.fixture
def left_over() -> Iterator[LeftOver]:
    """What still runs of all that a test has started, whatever became of its parents.

    It is found by descent alone: daemons leave their process group, and Airflow's components
    rewrite their titles and environment. What is left after the test is ended.
    """
    kernel.adopt_orphans()
    before = set(processes.tree(os.getpid()))

    def look() -> list[processes.Identity]:
        return [p for p in processes.tree(os.getpid()) if p not in before and p.alive()]

    yield look
    for process in look():
        with suppress(ProcessLookupError):  # it ended with the one before
            os.kill(process.pid, signal.SIGKILL)
    processes.wait_gone(look(), 20)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
