"""Asking a server by HTTP, with patience for one that is being started."""

from __future__ import annotations

import time
import urllib.request


def get(url: str, patience: float, body: bytes | None = None) -> bytes:
    """The answer to GET, or to POST where there is a body.

    Args:
        url: of the resource.
        patience: seconds to ask again while nobody listens.
        body: of a POST.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(url, body, timeout=60) as response:
                content: bytes = response.read()
                return content
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
