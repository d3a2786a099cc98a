"""Two lab nodes that trust each other's images, and two workloads on the first.

`web` may move to the second node. `api` names it as a spare too, but its engine's version is
another one there: so it never fits.
"""

from __future__ import annotations

import copy
import json
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pitstop.demo.setup import node_data
from pitstop.fleet.node import RemoteNode
from pitstop.images.signing import Keys
from pitstop.lab.node import LabNode
from pitstop.steps.by_hand import start_by_hand
from pitstop.steps.files import load_site
from tests.rigs.lab import MakeLab
from tests.rigs.maintenance import QUIET
from tests.rigs.site import _COUNT, NODE, PORT, SERVER, WORKLOAD, SiteRig, in_network, site_data

SPARE = "gpu2"
STAYS = "api"
PORTS = {WORKLOAD: PORT, STAYS: PORT + 1}
KERNEL = {"host.kernel": "6.99"}
"""A declared change that makes every checkpoint invalid on the node."""


@dataclass
class TwoNodes(SiteRig):
    """A site of `gpu1` and `gpu2`."""

    def at(self, node: str) -> LabNode:
        return self.lab.node(node)

    def ask_on(self, node: str, path: str, workload: str = WORKLOAD) -> dict[str, Any]:
        """Ask a workload from inside a node's network."""

        def get() -> dict[str, Any]:
            url = f"http://127.0.0.1:{PORTS[workload]}{path}"
            try:
                with urllib.request.urlopen(url, timeout=20) as found:
                    answer: dict[str, Any] = json.load(found)
                    return answer
            except OSError as error:
                raise AssertionError(f"{node}: {url}: {error}") from error

        return in_network(self.at(node), get)

    def copies_on(self, node: str) -> int:
        """How many copies of both workloads live on a node: counted, not believed."""
        return int(self.at(node).run([sys.executable, "-c", _COUNT, str(SERVER)]))

    def engine_on(self, node: str) -> RemoteNode:
        return RemoteNode(node, load_site(self.site_file).nodes[node])

    def said_by(self, node: str, call: str, **arguments: Any) -> dict[str, Any]:
        engine = self.engine_on(node)
        try:
            return engine.call(call, **arguments)
        finally:
            engine.close()

    def checkpoints(self, node: str, workload: str = WORKLOAD) -> list[str]:
        """The states of a workload's checkpoints on a node."""
        found = self.said_by(node, "images.list", workload=workload)["images"]
        return [str(entry["state"]) for entry in found]

    def streaming(self, end: str) -> int | None:
        """The PID of an end of a transfer (`send`, `receive`) on a node of this lab."""
        place = {str(node.state_dir).encode() for node in self.lab.nodes}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            is_end = {b"images", end.encode()} <= set(words) and bool(place & set(words))
            if is_end and words[0] == sys.executable.encode():
                return int(entry.name)
        return None

    def start_all(self, *names: str) -> None:
        """Start what the site declares, or only these; `web` is counted up to 3."""
        workloads = self.site["workloads"]
        self.site["workloads"] = {n: workloads[n] for n in names or workloads}
        site = load_site(self.write())
        engine = self.engine_on(NODE)
        try:
            for name, spec in site.workloads.items():
                start_by_hand(site, engine, spec, name, lambda _t: None)
        finally:
            engine.close()
        assert self.count_to(3) == 3

    def changes_kernel(self, name: str = "kernel", node: str = NODE) -> Path:
        """A maintenance without a reboot that declares another kernel."""
        (self.root / "quiet.md.j2").write_text(QUIET)
        return self.maintenance(
            name,
            runbook="quiet.md.j2",
            nodes=[node],
            variables={"patch_command": ["touch", str(self.root / "patched")]},
            changes=KERNEL,
        )


def moving_site(rig: TwoNodes) -> dict[str, Any]:
    site = site_data(rig.at(NODE), rig.root)
    site["nodes"][SPARE] = node_data(rig.at(SPARE))
    site["workloads"][WORKLOAD]["spares"] = [{"node": SPARE}]
    text = json.dumps(site["workloads"][WORKLOAD])
    for old, new in ((str(PORT), str(PORTS[STAYS])), ("/broken", "/broken-api")):
        text = text.replace(old, new)
    site["workloads"][STAYS] = {**json.loads(text), "engine": {"command": ["uname", "-n"]}}
    return copy.deepcopy(site)


@pytest.fixture
def two_nodes(make_lab: MakeLab, tmp_path: Path) -> TwoNodes:
    """Nothing is started yet."""
    lab = make_lab(NODE, SPARE)
    (tmp_path / "version").write_text("1.0\n")
    rig = TwoNodes(lab, tmp_path)
    rig.site = moving_site(rig)
    keys = {node: Keys(rig.at(node).state_dir / "keys") for node in (NODE, SPARE)}
    for node, other in ((NODE, SPARE), (SPARE, NODE)):
        keys[node].directory.mkdir(mode=0o700, exist_ok=True)
        keys[other].trust(node, keys[node].public(make=True) or b"")
    return rig
