"""Nodes for tests: real sshd, real pids, real reboots, in namespaces of this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pitstop.lab.errors import LabError
from pitstop.lab.lab import Lab, check_machine
from pitstop.lab.node import LabNode

MakeLab = Callable[..., Lab]


def require_lab() -> None:
    """Skip on a laptop that cannot hold a lab; in CI that is a failure."""
    try:
        check_machine()
    except LabError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with one node, `gpu1`, shared by the tests of a module."""
    require_lab()
    with Lab(tmp_path_factory.mktemp("lab"), ["gpu1"]) as running:
        yield running


@pytest.fixture
def make_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeLab]:
    """Start labs of any nodes; they are closed after the test."""
    require_lab()
    with ExitStack() as stack:

        def make(*names: str, **options: Any) -> Lab:
            root = tmp_path_factory.mktemp("lab")
            return stack.enter_context(Lab(root, names or ["gpu1"], **options))

        yield make


def ssh_command(node: LabNode, directory: Path, host_key: str | None = None) -> list[str]:
    """An ssh command line to a node that trusts one host key only, by default its own."""
    known_hosts = directory / f"known_hosts-{node.name}"
    known_hosts.write_text(f"{node.address} {host_key or node.host_key}\n")
    options = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "ProxyCommand": shlex.join(node.proxy_command).replace("%", "%%"),
    }
    arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", "-i", str(node.identity_file), *arguments, f"root@{node.address}"]


def ssh(
    node: LabNode, directory: Path, command: Sequence[str], host_key: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command on a node the way a person would."""
    return subprocess.run(
        [*ssh_command(node, directory, host_key), shlex.join(command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
