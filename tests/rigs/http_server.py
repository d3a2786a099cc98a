"""A small HTTP server on loopback whose answers a test writes down."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
"""A status, and a body: text as it is, else as JSON."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    body: Any
    token: str


@dataclass
class Served:
    """A server under way."""

    url: str
    asked: list[Asked] = field(default_factory=list)

    def changes(self) -> list[tuple[str, str, Any]]:
        """What it was asked to do, without the looks."""
        return [(a.method, a.path, a.body) for a in self.asked if a.method != "GET"]


@contextmanager
def serve(answer: Callable[[Asked], Reply]) -> Iterator[Served]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            asked = Asked(
                self.command,
                self.path,
                json.loads(raw) if raw else None,
                self.headers.get("authorization", ""),
            )
            served.asked.append(asked)
            status, body = answer(asked)
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("location", data.decode())
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Served(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
