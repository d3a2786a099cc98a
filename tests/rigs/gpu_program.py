"""A program with memory on GPUs, as a test asks it: the same for emulated and real ones."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rigs.engine import Engine, Launched, until
from tests.rigs.gpus import EmulatedGpus

PORT = 8095
QUICK = {"lock": 5.0, "call": 5.0, "move": 5.0}
"""Deadlines of the driver's calls: what hangs is to be given up soon."""
READY = {"http": {"url": f"http://127.0.0.1:{PORT}/"}, "deadline": 20.0, "interval": 0.02}
ORDER = {"workload": "gpu", "run": "run1", "ready": READY, "gpu_limits": QUICK}


@dataclass
class GpuProgram:
    """One that runs under the launcher.

    Attributes:
        command: what is started; it serves HTTP as `emulated_driver/workload.c` says.
        launched: its newest start.
    """

    engine: Engine
    command: tuple[str, ...]
    workload: str
    launched: Launched

    @classmethod
    def start(
        cls, engine: Engine, *command: str, workload: str = "gpu", options: Sequence[str] = ()
    ) -> GpuProgram:
        """Launch it, with options of the launcher, and wait until it is set up."""
        words = (*command, "--port", str(PORT))
        launched = engine.launch(*words, workload=workload, options=options)
        program = cls(engine, words, workload, launched)
        report = program.launched.report
        assert report.get("running"), (report, program.launched.said)
        until(program.is_up, f"it is set up ({program.said})", 120, pause=0.02)
        return program

    @property
    def said(self) -> str:
        """What it wrote to its stderr."""
        return self.engine.files(self.workload).stderr.read_text(errors="replace")

    def is_up(self) -> bool:
        try:
            return self._get("/health", timeout=5) == b"ok\n"
        except OSError:
            return False

    def look(self) -> list[dict[str, Any]]:
        """What is on its GPUs, rank by rank; read back from them now."""
        ranks: list[dict[str, Any]] = json.loads(self._get("/"))["ranks"]
        return ranks

    def step(self) -> list[dict[str, Any]]:
        """Compute once on every GPU."""
        ranks: list[dict[str, Any]] = json.loads(self._get("/", b""))["ranks"]
        return ranks

    def counters(self) -> list[int]:
        """The counters that lie on the GPUs; all their content must fit to them."""
        gpus = [gpu for rank in self.look() for gpu in rank["gpus"]]
        assert all(gpu["intact"] for gpu in gpus), gpus
        return [gpu["counter"] for gpu in gpus]

    def uuids(self) -> list[str]:
        """The GPUs it is on."""
        return [gpu["uuid"] for rank in self.look() for gpu in rank["gpus"]]

    def memory(self) -> dict[tuple[int, int], bytes]:
        """The bytes on each GPU of each rank."""
        shape = [(r, g) for r, rank in enumerate(self.look()) for g in range(len(rank["gpus"]))]
        return {(r, g): self._get(f"/memory/{r}/{g}") for r, g in shape}

    def save(self, checkpoint: str = "ck1", **changes: Any) -> dict[str, Any]:
        """Take a checkpoint; returns its summary."""
        return self.engine.save(checkpoint, workload=self.workload, **changes)

    def restore(self, checkpoint: str = "ck1") -> Launched:
        """Restore it; returns once it runs, or could not."""
        self.launched = self.engine.restore(checkpoint, workload=self.workload)
        return self.launched

    def _get(self, path: str, body: bytes | None = None, timeout: float = 60) -> bytes:
        url = f"http://127.0.0.1:{PORT}{path}"
        with urllib.request.urlopen(url, body, timeout=timeout) as response:
            content: bytes = response.read()
            return content


def calls(gpus: EmulatedGpus, *wanted: str) -> list[str]:
    """The calls that the driver saw succeed, in the order of their ends."""
    return [t.call for t in gpus.trace() if t.result == 0 and t.call in wanted]


def is_worker(pid: int) -> bool:
    try:
        return b"pitstop.node.cuda.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended


def op(program: GpuProgram, kind: str, identifier: str = "", **changes: Any) -> dict[str, Any]:
    return program.engine.op(identifier or f"{kind}1", kind, {**ORDER, **changes})
