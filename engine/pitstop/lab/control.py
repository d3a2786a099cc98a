"""How a process talks to a node's supervisor: one JSON line each way over a Unix socket.

The socket lies in the node's directory, which is often deeper than a socket's name may be
long, so it is addressed through a descriptor of that directory.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitstop.lab.errors import LabError

SOCKET = "power.sock"


@dataclass(frozen=True, slots=True)
class Power:
    """A node as its supervisor sees it; `pid` is 0 while it is off or booting."""

    on: bool
    pid: int
    boot_id: str
    boots: int


@contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """Give the socket a name short enough for an address."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def ask(directory: Path, verb: str, timeout: float, **details: Any) -> Power:
    """Send one request and return where it left the node.

    Raises:
        LabError: the supervisor is gone, refuses, or did not answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            with short_path(directory) as path:
                connection.connect(path)
            connection.sendall(json.dumps({"verb": verb, **details}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = stream.readline()
        except TimeoutError:
            raise LabError(directory.name, f"'{verb}' not done within {timeout:g} s") from None
        except OSError as error:
            raise LabError(directory.name, f"its supervisor is gone: {error}") from error
    if not answer:
        raise LabError(directory.name, f"its supervisor ended during '{verb}'")
    data = json.loads(answer)
    if "error" in data:
        raise LabError(directory.name, data["error"])
    return Power(**data)
