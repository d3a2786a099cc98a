"""A small HTTP server with state in memory, for tests that need a workload. Standard library.

`GET /` says how often `/count` was asked, `GET /count` counts, `/slow` does once the file
`--let-go` exists, `/slow/SECONDS` after that time, `/drain` and `/undrain` close and open
admission, `/inflight` is the gauge, `/proof` answers the same as long as the memory is the
same. `--break-at FILE`: while that file exists, every request is answered with 503 and
`/proof` lies.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import threading
from pathlib import Path


class State:
    lock = threading.Lock()
    count = 0
    in_flight = 0
    open = True
    born = os.urandom(8).hex()


class Handler(http.server.BaseHTTPRequestHandler):
    arguments: argparse.Namespace

    def do_GET(self) -> None:
        broken = self.arguments.break_at and Path(self.arguments.break_at).exists()
        if broken and self.path != "/inflight":
            self.answer({"broken": True}, 503)
        elif self.path in ("/count", "/slow") or self.path.startswith("/slow/"):
            self.count()
        elif self.path in ("/drain", "/undrain"):
            State.open = self.path == "/undrain"
            self.answer({"open": State.open})
        elif self.path == "/inflight":
            self.answer({"in_flight": State.in_flight})
        elif self.path == "/proof":
            self.answer({"born": State.born, "count": State.count})
        else:
            self.answer({"count": State.count, "pid": os.getpid(), "open": State.open})

    def count(self) -> None:
        if not State.open:
            self.answer({"open": False}, 503)
            return
        with State.lock:
            State.in_flight += 1
            State.count += 1
            count = State.count
        if self.path == "/slow":
            let_go = Path(self.arguments.let_go)
            for _ in range(6000):
                if let_go.exists():
                    break
                threading.Event().wait(0.01)
        elif self.path.startswith("/slow/"):
            threading.Event().wait(float(self.path.removeprefix("/slow/")))
        with State.lock:
            State.in_flight -= 1
        print(f"count {count}", flush=True)
        self.answer({"count": count, "port": self.arguments.port})

    def answer(self, data: dict[str, object], status: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--let-go", default="/dev/null", help="/slow answers once this exists")
    parser.add_argument("--break-at", default="")
    parser.add_argument("--ring", action="store_true", help="hold an io_uring open")
    parser.add_argument("--memory", type=int, default=0, help="MiB of memory to hold")
    arguments = parser.parse_args()
    Handler.arguments = arguments
    ballast = bytearray(os.urandom(1 << 20) * arguments.memory)
    ring = open_ring() if arguments.ring else None
    print("up", len(ballast), ring, flush=True)
    http.server.ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


def open_ring() -> int:
    """Open an io_uring the way a library would, and keep it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(120)
    descriptor = int(libc.syscall(425, 8, parameters))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    return descriptor


if __name__ == "__main__":
    main()
