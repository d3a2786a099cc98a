"""A process with the real CUDA and NVML bindings, to make calls from: the bindings load a driver
once for good, which a test process must not do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.rigs.gpus import VARIABLE, EmulatedGpus


class CallFailed(Exception):
    """What the driver answered, such as `CUDA_ERROR_ILLEGAL_STATE` or `NVMLError_GpuIsLost`."""


class GpuCalls:
    """Makes one call after the other; a context manager. It runs in the machine's namespaces."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__).with_name("gpu_calls_main.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )

    @property
    def pid(self) -> int:
        """Of the process that makes the calls."""
        return self._process.pid

    def cuda(self, gpus: EmulatedGpus, pid: int, name: str, *arguments: Any) -> Any:
        """Use a member of `cuda.core.checkpoint.Process(pid)`.

        Raises:
            CallFailed: the driver refused.
            EOFError: the call ended this process.
        """
        return self._ask(gpus, "cuda", pid, name, *arguments)

    def nvml(self, gpus: EmulatedGpus, name: str, *arguments: Any) -> Any:
        """Initialise NVML, call one of its functions and shut it down.

        An argument `gpu:N` becomes the handle of that index.

        Raises:
            CallFailed: NVML refused.
            EOFError: the call ended this process.
        """
        return self._ask(gpus, "nvml", name, *arguments)

    def beside(self, gpus: EmulatedGpus, pid: int, name: str, fault: str) -> int:
        """Have one thread hang in a call by a fault, then count to a thousand in another."""
        return int(self._ask(gpus, "beside", pid, name, fault))

    def _ask(self, gpus: EmulatedGpus, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {VARIABLE: str(gpus.root), "words": words}
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"the caller ended with {self._process.wait()}")
        answer = json.loads(line)
        if "failed" in answer:
            raise CallFailed(answer["failed"])
        return answer["done"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
