"""What the kill matrix does to a node's connections."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pitstop.lab.node import LabNode
from pitstop.node import processes
from tests.rigs.engine import until

TABLE = "pitstop-matrix"

_RULES = f"""
table inet {TABLE} {{
    counter refused {{ }}
    chain cut {{
        type filter hook input priority -10;
        tcp dport 22 counter name refused reject with tcp reset
    }}
}}
"""

FELT = 3
"""Packets refused that count as a loss which was felt: those of the old connection and a try."""


@contextmanager
def cut(node: LabNode) -> Iterator[None]:
    """End every SSH session of the node, and refuse new ones while the block lasts.

    What such sessions had started lives on in the node, as it does behind a real one.
    """
    _nft(node, "-f", "-", script=_RULES)
    try:
        for session in _sessions(node):
            with suppress(ProcessLookupError):
                os.kill(session.pid, signal.SIGKILL)
        until(lambda: _refused(node) >= FELT, "somebody finds the node unreachable", 90)
        yield
    finally:
        _nft(node, "delete", "table", "inet", TABLE)


def _refused(node: LabNode) -> int:
    found = re.search(r"packets (\d+)", _nft(node, "list", "counter", "inet", TABLE, "refused"))
    assert found is not None
    return int(found.group(1))


def _sessions(node: LabNode) -> list[processes.Identity]:
    """The sshd processes that serve connections: children of the one that listens."""
    found = []
    for process in processes.tree(node.pid):
        with suppress(OSError):
            name = Path(f"/proc/{process.pid}/comm").read_text().strip()
            parent = processes.parent_of(process.pid)
            if name.startswith("sshd") and parent != node.pid:
                found.append(process)
    return found


def _nft(node: LabNode, *arguments: str, script: str = "") -> str:
    done = subprocess.run(
        ["nsenter", f"--net={node.netns}", "nft", *arguments],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
