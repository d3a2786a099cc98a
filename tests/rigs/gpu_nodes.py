"""Two lab nodes with eight emulated GPUs each, and work on the GPUs of the first.

`llm` has a CUDA process on each of them and may move to the second node. `alone` has one on the
first GPU, and no other home.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pitstop.decide.cuda_boundary import proof_of
from pitstop.demo.setup import node_data
from pitstop.images.signing import Keys
from pitstop.model.cuda import CudaAnswer
from pitstop.model.event import Event
from pitstop.node import processes
from pitstop.steps.by_hand import start_by_hand
from pitstop.steps.files import load_site
from pitstop.steps.runs import open_run
from tests.rigs.branches import assert_branches
from tests.rigs.gpu_workload import request, wait_until_it_serves
from tests.rigs.gpus import DEFAULT, EmulatedGpus, build
from tests.rigs.lab import MakeLab
from tests.rigs.maintenance import QUIET
from tests.rigs.site import NODE, SiteRig, in_network

SPARE = "gpu2"
LLM, ALONE = "llm", "alone"
PORTS = {LLM: 8095, ALONE: 8096}
OLD, NEW = "580.105.08", "580.126.09"


@dataclass
class GpuNodes(SiteRig):
    """A site of two nodes with GPUs.

    Attributes:
        machines: the GPUs of each node.
    """

    machines: dict[str, EmulatedGpus] = field(default_factory=dict)

    def look(self, node: str, workload: str = LLM) -> list[dict[str, Any]]:
        """What a workload has on its GPUs, rank by rank."""
        ranks: list[dict[str, Any]] = json.loads(self._ask(node, workload, "/"))["ranks"]
        return ranks

    def memory(self, node: str) -> list[bytes]:
        """The bytes on each GPU of `llm`."""
        return [self._ask(node, LLM, f"/memory/{rank}/0") for rank in range(8)]

    def uuids(self, node: str) -> set[str]:
        return {gpu["uuid"] for rank in self.look(node) for gpu in rank["gpus"]}

    def start_all(self) -> None:
        """Start both, and let `llm` compute three times."""
        site = load_site(self.write())
        node = self.remote()
        try:
            for name, spec in site.workloads.items():
                start_by_hand(site, node, spec, name, lambda _t: None)
        finally:
            node.close()
        for _ in range(3):
            self._ask(NODE, LLM, "/", "POST")

    def upgrade(self, name: str = "upgrade") -> Path:
        """A maintenance that upgrades the driver of the first node, and says so."""
        (self.root / "quiet.md.j2").write_text(QUIET)
        return self.maintenance(
            name,
            runbook="quiet.md.j2",
            variables={"patch_command": EmulatedGpus.command("upgrade", NEW)},
            changes={"driver.version": NEW},
        )

    @contextmanager
    def in_use(self, node: str, gpu: int = 0) -> Iterator[None]:
        """Somebody else's process on a GPU of a node."""
        program = [str(build() / "gpu-workload"), "--port", "8099"]
        environment = {
            **self.machines[node].environment(DEFAULT),
            "CUDA_VISIBLE_DEVICES": str(gpu),
        }
        with self.lab.node(node).popen(program, env=environment) as squatter:
            try:
                in_network(self.lab.node(node), lambda: wait_until_it_serves(8099, squatter))
                yield
            finally:
                tree = processes.tree(squatter.pid)  # nsenter, and what it has started
                os.kill(tree[1].pid, signal.SIGKILL)  # its ranks and nsenter end with it
                assert processes.wait_gone(tree[1:], 20) == []

    def _ask(self, node: str, workload: str, path: str, method: str = "GET") -> bytes:
        return in_network(self.lab.node(node), lambda: request(PORTS[workload], path, method))


def assert_moved_at_one_boundary(rig: GpuNodes, run: str, before: list[bytes]) -> None:
    """`llm` runs on with its content on the GPUs of the other node; `alone` began anew.

    The same under every front end.
    """
    assert_branches(rig, run, "driver upgraded")
    assert rig.memory(SPARE) == before
    assert rig.uuids(SPARE) == set(rig.machines[SPARE].uuids)
    assert [rank["gpus"][0]["counter"] for rank in rig.look(SPARE)] == [3] * 8
    assert [rank["gpus"][0]["counter"] for rank in rig.look(NODE, ALONE)] == [0]
    ctx = open_run(rig.home, run)
    try:
        events = ctx.events()
    finally:
        ctx.close()
    assert_one_boundary(events)
    dumped = {e.subject for e in events if e.kind == "step.started" and e.verb == "checkpoint"}
    assert dumped == {LLM}, "no dump was made in vain"
    # The driver's own record of it says the same.
    order = [t.call for t in rig.machines[NODE].trace() if t.result == 0]
    order = [call for call in order if call in ("lock", "checkpoint")]
    assert order == ["lock"] * 8 + ["checkpoint"] * 8


def assert_one_boundary(events: list[Event]) -> None:
    """The journal proves that nothing was taken before all were locked."""
    [taken] = [e for e in events if e.kind == "step.finished" and e.verb == "checkpoint"]
    gpus: Mapping[str, Any] = taken.data["result"]["gpus"]
    proof = proof_of(CudaAnswer.from_json(call) for call in gpus["trace"])
    assert proof is not None
    assert proof.holds
    assert proof.processes == gpus["processes"] == 8
    assert gpus["one_boundary"] is True


def gpu_workload(rig: GpuNodes, name: str, processes: int) -> dict[str, Any]:
    port = PORTS[name]
    return {
        "placement": {NODE: processes},
        "launch": {
            "command": [
                *(str(build() / "gpu-workload"), "--port", str(port)),
                *("--processes", str(processes)),
            ],
            "cwd": str(rig.root),
            "env": rig.machines[NODE].environment(DEFAULT),
        },
        "ready": {"http": {"url": f"http://127.0.0.1:{port}/"}, "deadline": 60, "interval": 0.05},
        "stop": {"signal": "TERM", "grace": 5},
    }


@pytest.fixture
def gpu_nodes(make_lab: MakeLab, tmp_path: Path) -> GpuNodes:
    """Both nodes trust each other's images; nothing is started yet."""
    machines = {node: EmulatedGpus(tmp_path / f"gpus-{node}", driver=OLD) for node in (NODE, SPARE)}
    lab = make_lab(
        NODE,
        SPARE,
        environments={node: gpus.environment(DEFAULT) for node, gpus in machines.items()},
        mounts={node: gpus.mounts() for node, gpus in machines.items()},
    )
    rig = GpuNodes(lab, tmp_path, machines=machines)
    workloads = {LLM: gpu_workload(rig, LLM, 8), ALONE: gpu_workload(rig, ALONE, 1)}
    workloads[LLM]["spares"] = [{"node": SPARE}]
    answer = {"url": f"http://127.0.0.1:{PORTS[LLM]}/"}
    workloads[LLM]["proof"] = {"http": answer, "field": "ranks.7.gpus.0.digest"}
    rig.site = {
        "schema": "pitstop/site/v1",
        "name": "test",
        "nodes": {node: node_data(lab.node(node)) for node in (NODE, SPARE)},
        "workloads": workloads,
    }
    keys = {node: Keys(lab.node(node).state_dir / "keys") for node in (NODE, SPARE)}
    for node, other in ((NODE, SPARE), (SPARE, NODE)):
        keys[node].directory.mkdir(mode=0o700, exist_ok=True)
        keys[other].trust(node, keys[node].public(make=True) or b"")
    rig.write()
    return rig
