"""Our checkpoint against a bare `criu dump` and sync of the same process.

    .venv-core/bin/python -m benchmarks.checkpoint_vs_criu [--rounds N] [--sizes MIB,...] [--json]

The bare side is what a script would do: enter the namespaces, `criu dump`, sync the files.
Ours does the same and besides, while the process is frozen, digests every file, writes and
signs the manifest, and afterwards proves that the original is gone. Both are timed around
the call, in turn, in one run; process and memory content are the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import median, show, spread
from pitstop.images.checkpoint import sync_images
from pitstop.images.store import Store
from pitstop.model.words import Connections
from pitstop.node import criu, subject
from pitstop.node.answers import wait_ready
from pitstop.node.checkpointer import Order, take
from pitstop.node.locks import wait_until_free
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState

SERVER = Path(__file__).resolve().parent.parent / "tests" / "rigs" / "counting_server.py"
NAME = "bench"
PORT = 18999


def start(state: StateDir, mebibytes: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pitstop.node.main",
            "launch",
            "--workload",
            NAME,
            "--start",
            "cold",
            "--",
            sys.executable,
            str(SERVER),
            "--port",
            str(PORT),
            "--memory",
            str(mebibytes),
        ],
        env={**os.environ, "PITSTOP_STATE_DIR": str(state.root)},
        stdin=subprocess.DEVNULL,
    )
    ready = {"http": {"url": f"http://127.0.0.1:{PORT}/"}, "deadline": 60, "interval": 0.02}
    wait_ready(ready, lambda: process.poll() is None)
    return process


def ours(state: StateDir, number: int) -> dict[str, float]:
    begun = time.monotonic()
    found = take(state, Order(NAME, f"ours-{number}", "", "here", "single-node"))
    return {
        "seconds": time.monotonic() - begun,
        "frozen": found["frozen_seconds"],
        "bytes": found["image_bytes"],
    }


def bare(state: StateDir, number: int) -> dict[str, float]:
    files = WorkloadState(state, NAME)
    found = subject.find(files, None)
    draft = Store(state.images(NAME)).begin(f"bare-{number}")
    command = criu.dump_command(
        draft, found.root_pid, criu.shared_options(Connections.CLOSE), None, found.init_pid
    )
    begun = time.monotonic()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    sync_images(draft.images)
    seconds = time.monotonic() - begun
    wait_until_free(files.lock_path, 60)
    return {"seconds": seconds, "frozen": seconds, "bytes": 0.0}


def measure(state: StateDir, size: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"ours": [], "bare": []}
    for number in range(rounds):
        for name, way in (("bare", bare), ("ours", ours)):
            process = start(state, size)
            found[name].append(way(state, number))
            process.wait(60)
            shutil.rmtree(state.images(NAME))
    return {"mebibytes": size, **found}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="16,256,1024")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="pitstop-bench-", dir="/var/tmp") as directory:
        state = StateDir.at(directory)
        measured = [measure(state, size, arguments.rounds) for size in sizes]
    rows = []
    for entry in measured:
        own = [r["seconds"] for r in entry["ours"]]
        frozen = [r["frozen"] for r in entry["ours"]]
        peer = [r["seconds"] for r in entry["bare"]]
        rows.append(
            {
                "memory (MiB)": str(entry["mebibytes"]),
                "image (MiB)": f"{median([r['bytes'] for r in entry['ours']]) / 2**20:.0f}",
                "criu dump + sync (s)": spread(peer),
                "ours, frozen (s)": spread(frozen),
                "ours, whole (s)": spread(own),
                "frozen : bare": f"{median(frozen) / median(peer):.2f}",
                "whole : bare": f"{median(own) / median(peer):.2f}",
            }
        )
    show("Checkpoint against bare criu dump and sync", rows, {"measured": measured})


if __name__ == "__main__":
    main()
