"""Whole runs on a node of Kubernetes: the API is emulated, node, launcher and CRIU are real."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pitstop.fleet.kubernetes.records import CONDITION, CORDON
from pitstop.lab.errors import LabError
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.model.words import Outcome, Strategy
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run, drive, open_run
from tests.rigs.engine import until
from tests.rigs.kubernetes import NODE as KUBE_NODE
from tests.rigs.kubernetes import SPACE, Cluster
from tests.rigs.lab import MakeLab
from tests.rigs.maintenance import QUIET
from tests.rigs.site import NODE, PORT, SERVER, SiteRig, site_data

WORKLOAD = "web"
BUDGET = {"app": "web"}


class Kubelet:
    """Runs the container of one pod on the lab's node, and again when it ends."""

    def __init__(self, rig: SiteRig, kube: Cluster) -> None:
        self._rig = rig
        self._kube = kube
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()
        until(self._answers, "the pod serves", pause=0.2)

    def close(self) -> None:
        self._over.set()
        self._end()
        self._thread.join()

    def _run(self) -> None:
        evictions = threading.Thread(target=self._obey)
        evictions.start()
        while not self._over.is_set():
            with self._rig.node.popen(self.command, stdin=-3, stdout=-3, stderr=-3) as container:
                container.wait()
            self._over.wait(0.3)  # as a kubelet backs off
        evictions.join()

    def _obey(self) -> None:
        until(lambda: self._over.is_set() or self._kube.evicted, "an eviction, or the end", 100)
        if not self._over.is_set():
            self._end()

    def _end(self) -> None:
        """Ask the container to end; one that is not there has ended."""
        record = self._rig.node.state_dir / "workloads" / WORKLOAD / "record.json"
        if record.exists():
            pid = json.loads(record.read_text())["launcher_pid"]
            with suppress(LabError):
                self._rig.node.run(["kill", "-TERM", str(pid)])

    def _answers(self) -> bool:
        with suppress(AssertionError):
            return bool(self._rig.ask("/"))
        return False

    @property
    def command(self) -> list[str]:
        launcher = [sys.executable, "-m", "pitstop.node.main", "--state-dir"]
        return [
            *(*launcher, str(self._rig.node.state_dir), "launch", "--workload", WORKLOAD),
            *("--cwd", "/", "--", sys.executable, str(SERVER), "--port", str(PORT)),
        ]


class KubeRig:
    """A lab node that a pod's launcher runs on, and its cluster's API."""

    def __init__(self, rig: SiteRig, kube: Cluster, kubeconfig: Path) -> None:
        self.rig = rig
        self.kube = kube
        self.scheduler: dict[str, Any] = {
            "kind": "kubernetes",
            "kubeconfig": str(kubeconfig),
            "names": {NODE: KUBE_NODE},
            "eviction_deadline": 20,
            "start_deadline": 20,
        }
        self.kubelet = Kubelet(rig, kube)
        kube.add_pod(
            "web-1",
            command=["pitstop-node", "launch", "--workload", WORKLOAD, "--", "serve"],
            labels=BUDGET,
            selector={"kubernetes.io/hostname": KUBE_NODE},
        )
        kube.add_pod("exporter", owner=("DaemonSet", "exporter"))

    def plan(self) -> Plan:
        site = {**self.rig.site, "workloads": {}, "scheduler": self.scheduler}
        self.rig.site_file.write_text(json.dumps(site))
        (self.rig.root / "quiet.md.j2").write_text(QUIET)
        command = {"patch_command": ["touch", str(self.rig.root / "patched")]}
        path = self.rig.maintenance(runbook="quiet.md.j2", variables=command)
        return plan_from_files(self.rig.site_file, path)

    def run(self, plan: Plan) -> RunResult:
        create_run(self.rig.home, plan, "run", "steps")
        with closing(open_run(self.rig.home, "run")) as ctx:
            return drive(ctx)

    @property
    def node(self) -> dict[str, Any]:
        return self.kube.nodes[KUBE_NODE]


@pytest.fixture
def pods(make_lab: MakeLab, tmp_path: Path, kube: Cluster, kubeconfig: Path) -> Iterator[KubeRig]:
    lab = make_lab(NODE)
    rig = SiteRig(lab, tmp_path, site_data(lab.node(NODE), tmp_path))
    found = KubeRig(rig, kube, kubeconfig)
    found.kubelet.start()
    assert rig.count_to(3) == 3
    try:
        yield found
    finally:
        found.kubelet.close()


def test_what_runs_in_a_pod_is_saved_before_its_eviction(pods: KubeRig) -> None:
    plan = pods.plan()
    assert plan.go, plan.no_go
    [planned] = plan.jobs
    assert (planned.name, planned.strategy) == (f"pod-{WORKLOAD}", Strategy.RESTORE)
    assert plan.scheduler is not None
    actions = {pod.key.rpartition("/")[2]: pod.action for pod in plan.scheduler.pods}
    assert actions == {"web-1": "checkpoint", "exporter": "leave"}
    result = pods.run(plan)
    assert (result.state, result.cause) == ("done", "")
    [workload] = result.workloads
    assert workload.outcome is Outcome.RESTORED
    assert workload.restore_seconds is not None
    assert pods.kube.evicted == ["web-1"]
    assert pods.kube.names() == ["exporter"]
    assert pods.rig.ask("/count")["count"] == 4
    assert not pods.node["spec"].get("unschedulable")
    assert CORDON not in pods.node["metadata"]["annotations"]
    assert CONDITION not in [c["type"] for c in pods.node["status"]["conditions"]]
    assert any("pitstop:run" in event["message"] for event in pods.kube.events)
    assert (pods.rig.root / "patched").exists()


def test_a_budget_that_never_frees_gives_everything_back(pods: KubeRig) -> None:
    pods.scheduler["eviction_deadline"] = 1
    pods.kube.add_budget("at-least-one", BUDGET, 1)
    plan = pods.plan()
    assert plan.go  # a budget may free itself until then
    assert plan.scheduler is not None
    [web] = [pod for pod in plan.scheduler.pods if pod.action == "checkpoint"]
    assert "now held back" in web.reason
    result = pods.run(plan)
    assert result.state == "failed"
    assert "not allowed in time" in result.cause
    [workload] = result.workloads
    assert workload.outcome is Outcome.RESTORED  # in its old pod
    assert pods.kube.evicted == []
    assert pods.rig.ask("/count")["count"] == 4
    assert not pods.node["spec"].get("unschedulable")
    assert not (pods.rig.root / "patched").exists()


def test_what_may_not_be_lost_is_refused_at_planning(pods: KubeRig) -> None:
    pods.kube.add_pod("cache-1", volumes=[{"name": "scratch", "emptyDir": {}}])
    pods.kube.cordon(KUBE_NODE, True, "kubectl-cordon")
    plan = pods.plan()
    assert not plan.go
    assert "emptyDir scratch" in plan.no_go[0]
    assert plan.scheduler is not None
    assert plan.scheduler.claim == "foreign"
    assert pods.kube.evicted == []
    pods.scheduler["allow_empty_dir"] = True
    result = pods.run(pods.plan())
    assert (result.state, result.cause) == ("done", "")
    assert sorted(pods.kube.evicted) == ["cache-1", "web-1"]
    assert pods.node["spec"]["unschedulable"] is True  # somebody else's cordon


def test_a_checkpoint_on_one_node_and_a_pod_that_may_go_to_another(pods: KubeRig) -> None:
    """It would start cold there, and find its old past when it came back one day."""
    pods.kube.pods[SPACE, "web-1"]["spec"]["nodeSelector"] = {}
    plan = pods.plan()
    assert not plan.go
    assert "may start elsewhere, cold" in plan.no_go[0]
    pods.scheduler["shared_state"] = True
    assert pods.plan().go


def test_a_pod_that_came_after_the_plan(pods: KubeRig) -> None:
    plan = pods.plan()
    pods.kube.add_pod("late-1")
    result = pods.run(plan)
    assert result.state == "failed"
    assert "late-1" in result.cause
    assert pods.kube.evicted == []
    assert not pods.node["spec"].get("unschedulable")
    assert pods.rig.ask("/count")["count"] == 4
