"""A torch program with memory on real GPUs, as `emulated_driver/workload.c` serves it.

A parent without CUDA serves HTTP; one process for every rank holds a tensor and computes on it.
It imports nothing of the tests, so that it can run wherever torch is.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import json
import multiprocessing.connection
import os
import threading
from typing import Any


def run_rank(rank: int, arguments: argparse.Namespace, orders: Any) -> None:
    """Hold a tensor that follows from a counter, and do what is ordered."""
    import torch

    device = torch.device("cuda", 0 if arguments.shared else rank)
    words = arguments.bytes // 4
    pattern = torch.arange(words, device=device, dtype=torch.int32)
    state = pattern.clone()
    counter = 0
    torch.cuda.synchronize(device)
    orders.send(b"up")
    while True:
        order = orders.recv()
        if order == "step":
            counter += 1
            state = state * 3 + pattern + counter
            if arguments.kernel_ms:
                # Submitted, and not waited for: a lock has to.
                torch.cuda._sleep(int(arguments.kernel_ms * 1.7e6))
            else:
                torch.cuda.synchronize(device)
        content = (
            state.cpu().numpy().tobytes() if order != "step" or not arguments.kernel_ms else b""
        )
        if order == "memory":
            orders.send(content)
            continue
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        digest = hashlib.sha256(content).hexdigest()[:16]
        gpus = [{"uuid": uuid, "counter": counter, "digest": digest, "intact": True}]
        orders.send({"rank": rank, "pid": os.getpid(), "gpus": gpus})


class Ranks:
    """The processes, each asked by one thread at a time."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.turns = [threading.Lock() for _ in range(arguments.processes)]
        self.ends: list[multiprocessing.connection.Connection] = []
        for rank in range(arguments.processes):
            ours, theirs = context.Pipe()
            context.Process(target=run_rank, args=(rank, arguments, theirs), daemon=True).start()
            self.ends.append(ours)
        for end in self.ends:
            end.recv()

    def ask(self, rank: int, order: str) -> Any:
        """Give one an order and return its answer."""
        with self.turns[rank]:
            self.ends[rank].send(order)
            return self.ends[rank].recv()


def serve(arguments: argparse.Namespace) -> None:
    """Serve until killed."""
    ranks = Ranks(arguments)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self.answer(b"ok\n")
            elif self.path.startswith("/memory/"):
                self.answer(ranks.ask(int(self.path.split("/")[2]), "memory"))
            else:
                self.describe("look")

        def do_POST(self) -> None:
            self.describe("step")

        def describe(self, order: str) -> None:
            found = [ranks.ask(rank, order) for rank in range(arguments.processes)]
            self.answer(json.dumps({"ranks": found}).encode())

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    http.server.ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=1 << 28)
    parser.add_argument("--kernel-ms", type=int, default=0)
    parser.add_argument("--shared", action="store_true", help="all ranks on one GPU")
    serve(parser.parse_args())


if __name__ == "__main__":
    main()
