"""Prefect for these tests: a home, a database and a server of their own, never the user's.

The environment is set before anything imports Prefect, which reads it once; commands that
the tests start inherit it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.maintenance import QUIET

STARTUP = 180
"""Seconds for the server's start, most of which is the migration of its new database."""

_before: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    _before.update(os.environ)
    for name in [n for n in os.environ if n.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ.update(
        PREFECT_HOME=tempfile.mkdtemp(prefix="pitstop-prefect-"),
        PREFECT_API_URL=f"http://127.0.0.1:{_free_port()}/api",
        PREFECT_SERVER_ANALYTICS_ENABLED="false",
        PREFECT_CLI_COLORS="false",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(os.environ["PREFECT_HOME"])
    os.environ.clear()
    os.environ.update(_before)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A running Prefect server; its API's address, which every process here uses already."""
    url = os.environ["PREFECT_API_URL"]
    port = url.rpartition(":")[2].removesuffix("/api")
    log = Path(os.environ["PREFECT_HOME"]) / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "prefect", "server", "start"),
                *("--host", "127.0.0.1", "--port", port, "--no-ui"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _wait_healthy(url, process, log)
        yield url
        _send_what_waits()
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _send_what_waits() -> None:
    """Let Prefect's threads send their logs and events while somebody takes them."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.instance().drain()
    EventsWorker.drain_all()


def _wait_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)  # it says nothing when it is up
    pytest.fail(f"no server after {STARTUP} s: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A site of this machine alone, without workloads, and a maintenance that does nothing."""
    root = tmp_path_factory.mktemp("site")
    node = {
        "engine": [sys.executable, "-m", "pitstop.node.main"],
        "state_dir": str(root / "state"),
    }
    site = {
        "schema": "pitstop/site/v1",
        "name": "here",
        "policy": {"retries": {"drain": {"count": 3, "delay": 1}, "stop": {"count": 0}}},
        "nodes": {"here": node},
    }
    (root / "quiet.md.j2").write_text(QUIET)
    maintenance = {
        "schema": "pitstop/maintenance/v1",
        "title": "nothing",
        "runbook": "quiet.md.j2",
        "nodes": ["here"],
        "variables": {"patch_command": ["true"]},
    }
    (root / "site.yaml").write_text(json.dumps(site))
    (root / "nothing.yaml").write_text(json.dumps(maintenance))
    return root / "site.yaml", root / "nothing.yaml"
