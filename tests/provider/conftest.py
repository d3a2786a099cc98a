"""An Airflow of its own for these tests: own home, own database, nobody's settings."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

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
    """Airflow's database, migrated."""
    os.makedirs(f"{_HOME.name}/dags", exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=170,
    )
    yield _HOME.name
