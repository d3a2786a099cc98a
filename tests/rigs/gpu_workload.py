"""The test workload on emulated GPUs, as a test starts it and talks to it."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.rigs.gpus import EmulatedGpus, build


def request(port: int, path: str = "/", method: str = "GET", address: str = "127.0.0.1") -> bytes:
    """One request; it takes as long as the GPUs are locked."""
    connection = http.client.HTTPConnection(address, port, timeout=60)
    try:
        connection.request(method, path)
        return connection.getresponse().read()
    finally:
        connection.close()


def wait_until_it_serves(port: int, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until all ranks are set up. The process is who may end instead."""
    deadline = time.monotonic() + 20
    while True:
        try:
            request(port, "/health")
            return
        except OSError:
            assert process is None or process.poll() is None, "the workload ended"
            assert time.monotonic() < deadline, "the workload does not answer"
            time.sleep(0.01)  # nothing tells when another process listens


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [one for child in map(int, children) for one in (child, *_descendants(child))]


class GpuWorkload:
    """A running workload; a context manager that ends it."""

    def __init__(
        self, gpus: EmulatedGpus, *options: str, at: Path | None = None, **environment: str
    ) -> None:
        self.port = _free_port()
        self.process = subprocess.Popen(
            [str(build() / "gpu-workload"), "--port", str(self.port), *options],
            env={**os.environ, **gpus.environment(at), **environment},
        )
        wait_until_it_serves(self.port, self.process)

    def state(self) -> list[dict[str, Any]]:
        """What every rank has on its GPUs."""
        return list(json.loads(request(self.port))["ranks"])

    def step(self) -> list[dict[str, Any]]:
        """Let every rank go one step, and return what it has then."""
        return list(json.loads(request(self.port, method="POST"))["ranks"])

    def memory(self, rank: int = 0, gpu: int = 0) -> bytes:
        """The bytes on a GPU."""
        return request(self.port, f"/memory/{rank}/{gpu}")

    @property
    def pids(self) -> list[int]:
        """Of the CUDA processes, in the order of their ranks."""
        return [int(rank["pid"]) for rank in self.state()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as opened:
            ends = []
            for pid in _descendants(self.process.pid):
                with suppress(ProcessLookupError):
                    ends.append(os.pidfd_open(pid))
                    opened.callback(os.close, ends[-1])
            self.process.kill()
            self.process.wait()
            for end in ends:  # the ranks end with their parent, but not at the same moment
                select.select([end], [], [])
