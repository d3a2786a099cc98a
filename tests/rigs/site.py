"""A declared site on a lab node, with a real workload on it, for tests of whole runs."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pitstop.demo.setup import node_data
from pitstop.fleet.node import RemoteNode
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from pitstop.lab.syscalls import CLONE_NEWNET, setns
from pitstop.steps.by_hand import start_by_hand
from pitstop.steps.files import load_site
from tests.rigs.command import Command
from tests.rigs.lab import MakeLab

SERVER = Path(__file__).with_name("counting_server.py")
WORKLOAD = "web"
PORT = 8090
NODE = "gpu1"


@dataclass
class SiteRig:
    """A lab node `gpu1` with the workload `web` declared on it.

    Attributes:
        root: the test's directory; `version` in it is the engine's version.
        site: the data of site.yaml; change it, then call `write`.
    """

    lab: Lab
    root: Path
    site: dict[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> LabNode:
        return self.lab.node(NODE)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def site_file(self) -> Path:
        return self.root / "site.yaml"

    @property
    def version_file(self) -> Path:
        return self.root / "version"

    @property
    def workload(self) -> dict[str, Any]:
        found: dict[str, Any] = self.site["workloads"][WORKLOAD]
        return found

    def write(self) -> Path:
        self.site_file.write_text(json.dumps(self.site, indent=1))
        return self.site_file

    def maintenance(self, name: str = "patch", **changes: Any) -> Path:
        """Write a maintenance file; by default a patch that changes nothing of importance."""
        data: dict[str, Any] = {
            "schema": "pitstop/maintenance/v1",
            "title": name,
            "runbook": "patch-and-restart",
            "nodes": [NODE],
            "variables": {"patch_command": ["touch", str(self.root / "patched")]},
            **changes,
        }
        path = self.root / f"{name}.yaml"
        path.write_text(json.dumps(data, indent=1))
        return path

    def remote(self) -> RemoteNode:
        return RemoteNode(NODE, load_site(self.site_file).nodes[NODE])

    def start(self) -> dict[str, Any]:
        """Cold-start the workload and wait until it is ready."""
        site = load_site(self.write())
        node = self.remote()
        try:
            return start_by_hand(site, node, site.workloads[WORKLOAD], WORKLOAD, lambda _t: None)
        finally:
            node.close()

    def ask(self, path: str) -> dict[str, Any]:
        """Ask the workload from outside of the node, through its network."""

        def get() -> dict[str, Any]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=20) as found:
                    answer: dict[str, Any] = json.load(found)
                    return answer
            except OSError as error:
                raise AssertionError(f"{path}: {error}") from error

        return in_network(self.node, get)

    def count_to(self, number: int) -> int:
        """Count so many times, and return the number the workload is at."""
        last = 0
        for _ in range(number):
            last = int(self.ask("/count")["count"])
        return last

    def copies(self) -> int:
        """How many copies of the workload live on the node: counted, not believed."""
        output = self.node.run([sys.executable, "-c", _COUNT, str(SERVER)])
        return int(output)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `pitstop` as a person would, to its end."""
        with Command(*arguments) as command:
            said = command.stderr.read()
            code = command.wait()
            return subprocess.CompletedProcess(arguments, code, command.output, said)

    def run(self, maintenance: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a maintenance through the CLI; return exit code and result."""
        done = self.cli(
            "run",
            str(maintenance),
            "--site",
            str(self.write()),
            "--home",
            str(self.home),
            "--json",
            *arguments,
        )
        assert done.stdout, done.stderr[-2000:]
        return done.returncode, json.loads(done.stdout)

    def resume(self, run: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Resume a run through the CLI."""
        done = self.cli("resume", run, "--home", str(self.home), "--json", *arguments)
        assert done.stdout, done.stderr[-2000:]
        return done.returncode, json.loads(done.stdout)


T = TypeVar("T")


def in_network(node: LabNode, work: Callable[[], T]) -> T:
    """Do something inside a node's network: a thread of its own enters it, and ends there."""

    def enter() -> T:
        setns(node.netns, CLONE_NEWNET)
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter).result()


# A copy is a process whose interpreter runs the server, not one that merely names it.
_COUNT = """
import pathlib, sys
found = 0
for entry in pathlib.Path('/proc').iterdir():
    if not entry.name.isdigit():
        continue
    try:
        command = (entry / 'cmdline').read_bytes().split(b'\\0')
        state = (entry / 'stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        continue
    found += len(command) > 1 and command[1] == sys.argv[1].encode() and state not in 'ZX'
print(found)
"""


def cli_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pitstop.cli.main", *arguments]


def site_data(node: LabNode, root: Path) -> dict[str, Any]:
    url = f"http://127.0.0.1:{PORT}"
    return {
        "schema": "pitstop/site/v1",
        "name": "test",
        "policy": {
            "retries": {
                verb: {"count": 1, "delay": 0.1}
                for verb in ("precheck", "checkpoint", "restore", "cold_start", "maintain")
            }
        },
        "nodes": {NODE: node_data(node)},
        "workloads": {
            WORKLOAD: {
                "placement": {NODE: 0},
                "launch": {
                    "command": [
                        sys.executable,
                        str(SERVER),
                        "--port",
                        str(PORT),
                        "--break-at",
                        str(root / "broken"),
                        "--let-go",
                        str(root / "let-go"),
                    ],
                    "cwd": str(root),
                },
                "ready": {"http": {"url": f"{url}/"}, "deadline": 20, "interval": 0.02},
                "proof": {"http": {"url": f"{url}/proof"}},
                "drain": {
                    "begin": {"http": {"url": f"{url}/drain"}},
                    "end": {"http": {"url": f"{url}/undrain"}},
                    "in_flight": {"url": f"{url}/inflight", "json_field": "in_flight"},
                    "deadline": 20,
                    "interval": 0.02,
                },
                "engine": {"command": ["cat", str(root / "version")]},
                "stop": {"signal": "TERM", "grace": 5},
            }
        },
    }


@pytest.fixture
def rig(make_lab: MakeLab, tmp_path: Path) -> Iterator[SiteRig]:
    """A lab node with the workload declared and running, counted up to 3."""
    lab = make_lab(NODE)
    (tmp_path / "version").write_text("1.0\n")
    found = SiteRig(lab, tmp_path, site_data(lab.node(NODE), tmp_path))
    found.write()
    found.start()
    assert found.count_to(3) == 3
    yield found


MakeRig = Callable[[], SiteRig]


@pytest.fixture
def idle_rig(make_lab: MakeLab, tmp_path: Path) -> SiteRig:
    """The same with nothing started yet."""
    lab = make_lab(NODE)
    (tmp_path / "version").write_text("1.0\n")
    found = SiteRig(lab, tmp_path, site_data(lab.node(NODE), tmp_path))
    found.write()
    return found
