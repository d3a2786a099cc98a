"""Where a site wants its alarms: an HTTP server on loopback that remembers what it was told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append(json.loads(body))  # type: ignore[attr-defined]
        self.send_response(self.server.answer)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiver(answer: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A site's alarm receiver: its address and what it was told."""
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.answer, server.received = answer, []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?token=s3cret", server.received  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
