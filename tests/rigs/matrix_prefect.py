"""A Prefect server for the Prefect cells: own home, own database, nobody's settings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.rigs.engine import until

STARTUP = 180
"""Seconds for the server's start, most of which is the migration of its new database."""


@contextmanager
def prefect_server() -> Iterator[dict[str, str]]:
    """Run a server; the environment that a client of it needs."""
    with tempfile.TemporaryDirectory(prefix="pitstop-prefect-") as home:
        port = _free_port()
        url = f"http://127.0.0.1:{port}/api"
        environment = {
            "PREFECT_HOME": home,
            "PREFECT_API_URL": url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_CLI_COLORS": "false",
        }
        log = Path(home) / "server.log"
        command = ["server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", *command],
                env={**_without_prefect(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            until(lambda: _healthy(process, log, url), "the Prefect server", STARTUP)
            yield environment
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _without_prefect() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}


def _healthy(process: subprocess.Popen[bytes], log: Path, url: str) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")[-2000:]
    with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
