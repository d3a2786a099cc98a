"""The official client against an emulated API server: real requests, an emulated cluster."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from pitstop.fleet.kubernetes.api import Api
from pitstop.fleet.kubernetes.choice import Action, PodChoice
from pitstop.fleet.kubernetes.connection import connect
from pitstop.fleet.kubernetes.errors import (
    AccessRefused,
    ApiUnavailable,
    Conflict,
    CordonGone,
    NoDryRun,
    NotThere,
    NotTrusted,
    NotUnderstood,
    RequestRefused,
)
from pitstop.fleet.kubernetes.evacuation import Evacuation
from pitstop.fleet.kubernetes.records import CONDITION, CORDON, UNSCHEDULABLE_BEFORE
from pitstop.fleet.kubernetes.scheduler import Kubernetes
from pitstop.fleet.scheduler import Claim
from pitstop.model.errors import (
    BadInput,
    ConnectionLost,
    DeadlineExceeded,
    NodeUnreachable,
    PermanentError,
    PitstopError,
    Refused,
)
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.words import Shape
from tests.rigs.kubernetes import (
    NODE,
    SPACE,
    TOKEN,
    Cluster,
    Reply,
    Request,
    serving,
    write_kubeconfig,
)

RUN = "run-7"
MARK = f"pitstop:{RUN}"
LLM = {"app": "llm"}


class Rig:
    """A cluster, and pitstop's view of it."""

    def __init__(self, kube: Cluster, kubeconfig: Path) -> None:
        self.kube = kube
        self.kubeconfig = kubeconfig
        self.api = self.connect()
        self.scheduler = Kubernetes(self.api)
        self.told: list[str] = []

    def spec(self, **given: Any) -> KubernetesSpec:
        return KubernetesSpec(kind="kubernetes", kubeconfig=str(self.kubeconfig), **given)

    def connect(self, page: int = 500, **given: Any) -> Api:
        return Api(connect(self.spec(**given)), page)

    def evacuation(self, **given: Any) -> Evacuation:
        return Evacuation(self.api, self.spec(**given), poll=0.02, retry=0.02)

    def empty(
        self, deadline: float = 10, saved: tuple[str, ...] = (), **given: Any
    ) -> tuple[str, ...]:
        """Cordon, plan and evict, as a step does; return what went."""
        self.scheduler.drain(NODE, RUN)
        work = self.evacuation(**given)
        plan = work.plan_pods(NODE)
        return work.evict(NODE, RUN, plan, deadline, self.told.append, saved).gone

    def plan(self, **given: Any) -> dict[str, PodChoice]:
        return {c.pod.name: c for c in self.evacuation(**given).plan_pods(NODE)}


@pytest.fixture
def rig(kube: Cluster, kubeconfig: Path) -> Iterator[Rig]:
    rig = Rig(kube, kubeconfig)
    yield rig
    rig.api.close()


def at(
    number: int, verb: str, resource: str, act: Callable[[], object], dry: bool = False
) -> Callable[[Request], Reply | None]:
    """Have something happen just before the nth such request is answered, once."""
    seen = [0]

    def fault(request: Request) -> Reply | None:
        if (request.verb, request.resource, request.dry) == (verb, resource, dry):
            seen[0] += 1
            if seen[0] == number:
                act()
        return None

    return fault


EVICTION = ("create", "pods/eviction")


# --- cordon and give back


def test_a_cordon_says_whose_it_is_and_is_undone(rig: Rig) -> None:
    kube = rig.kube
    before = {**kube.nodes[NODE]["metadata"]["annotations"]}
    assert rig.scheduler.look(NODE, RUN).claim is Claim.NOBODY
    standing = rig.scheduler.drain(NODE, RUN)
    assert (standing.claim, standing.reason) == (Claim.OURS, MARK)
    assert (standing.drained, standing.reachable) == (True, True)
    assert standing.state == "Ready,SchedulingDisabled"
    node = kube.nodes[NODE]
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"][CORDON] == MARK
    assert node["metadata"]["annotations"][UNSCHEDULABLE_BEFORE] == "false"
    [ready, ours] = node["status"]["conditions"]
    assert (ready["type"], ours["type"], ours["message"]) == ("Ready", CONDITION, MARK)
    writes = len(kube.seen("patch", "nodes")) + len(kube.seen("patch", "nodes/status"))
    assert rig.scheduler.drain(NODE, RUN) == standing  # once is enough
    assert len(kube.seen("patch", "nodes")) + len(kube.seen("patch", "nodes/status")) == writes
    assert rig.scheduler.give_back(NODE, "another-run") is False
    assert rig.scheduler.look(NODE, "another-run").claim is Claim.FOREIGN
    assert rig.scheduler.give_back(NODE, RUN) is True
    assert rig.scheduler.look(NODE, RUN).claim is Claim.NOBODY
    assert "unschedulable" not in node["spec"]
    assert node["metadata"]["annotations"] == before
    assert [c["type"] for c in node["status"]["conditions"]] == ["Ready"]
    assert rig.scheduler.give_back(NODE, RUN) is False
    reasons = [(event["reason"], MARK in event["message"]) for event in kube.events]
    assert reasons == [("PitstopCordoned", True), ("PitstopUncordoned", True)]
    assert {event["involvedObject"]["uid"] for event in kube.events} == {node["metadata"]["uid"]}


def test_what_somebody_else_has_cordoned_stays_so(rig: Rig) -> None:
    rig.kube.cordon(NODE, True, "kubectl-cordon")
    standing = rig.scheduler.drain(NODE, RUN)
    assert (standing.claim, standing.reason) == (Claim.FOREIGN, "cordoned through kubectl-cordon")
    assert standing.drained
    assert rig.scheduler.give_back(NODE, RUN) is False
    assert rig.scheduler.look(NODE, RUN) == standing
    assert not rig.kube.seen("patch", "nodes")
    assert not rig.kube.seen("patch", "nodes/status")
    assert not rig.kube.events


def test_somebody_cordons_anew_what_was_ours(rig: Rig) -> None:
    """The annotation is still there, but the API server knows whose the field is now."""
    rig.scheduler.drain(NODE, RUN)
    rig.kube.cordon(NODE, False, "kubectl-uncordon")
    assert rig.scheduler.look(NODE, RUN).claim is Claim.NOBODY
    rig.kube.cordon(NODE, True, "kubectl-cordon")
    assert rig.scheduler.look(NODE, RUN).claim is Claim.FOREIGN
    assert rig.scheduler.give_back(NODE, RUN) is False
    node = rig.kube.nodes[NODE]
    assert node["spec"]["unschedulable"] is True
    assert CORDON not in node["metadata"]["annotations"]  # that one was ours
    assert [c["type"] for c in node["status"]["conditions"]] == ["Ready"]


def test_somebody_takes_our_annotation_away(rig: Rig) -> None:
    rig.scheduler.drain(NODE, RUN)
    del rig.kube.nodes[NODE]["metadata"]["annotations"][CORDON]
    assert rig.scheduler.give_back(NODE, RUN) is False
    assert rig.kube.nodes[NODE]["spec"]["unschedulable"] is True


def test_an_api_that_names_no_managers(rig: Rig) -> None:
    """Some proxies strip managedFields: the annotation alone decides then."""
    rig.scheduler.drain(NODE, RUN)
    del rig.kube.nodes[NODE]["metadata"]["managedFields"]
    assert rig.scheduler.look(NODE, RUN).claim is Claim.OURS
    assert rig.scheduler.give_back(NODE, RUN) is True


def test_a_conflict_is_decided_anew(rig: Rig) -> None:
    node = rig.kube.nodes[NODE]
    rig.kube.faults.append(at(1, "patch", "nodes", lambda: rig.kube.touch(node)))
    assert rig.scheduler.drain(NODE, RUN).claim is Claim.OURS
    assert len(rig.kube.seen("patch", "nodes")) == 2


def test_somebody_is_faster(rig: Rig) -> None:
    """Between our look and our cordon a person cordons: theirs it is."""
    rig.kube.faults.append(
        at(1, "patch", "nodes", lambda: rig.kube.cordon(NODE, True, "kubectl-cordon"))
    )
    assert rig.scheduler.drain(NODE, RUN).claim is Claim.FOREIGN
    assert CORDON not in rig.kube.nodes[NODE]["metadata"]["annotations"]


def test_a_node_that_never_holds_still_is_given_up(rig: Rig) -> None:
    def restless(request: Request) -> Reply | None:
        if request.verb == "patch":
            rig.kube.touch(rig.kube.nodes[NODE])
        return None

    rig.kube.faults.append(restless)
    with pytest.raises(Conflict, match=r"patch nodes \(node gpu001\).*has been modified"):
        rig.scheduler.drain(NODE, RUN)
    assert "unschedulable" not in rig.kube.nodes[NODE]["spec"]


def test_two_runs_at_once(rig: Rig) -> None:
    rig.kube.add_pod("llm-0")
    found: dict[str, Any] = {}

    def drain(run: str) -> None:
        api = rig.connect()
        found[run] = Kubernetes(api).drain(NODE, run)
        api.close()

    threads = [threading.Thread(target=drain, args=(f"run-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [run for run, standing in found.items() if standing.claim is Claim.OURS]
    assert len(winners) == 1
    assert {s.reason for s in found.values()} == {f"pitstop:{winners[0]}"}
    [loser, *_] = [run for run in found if run not in winners]
    with pytest.raises(Refused, match=f"drained by another run: pitstop:{winners[0]}"):
        rig.evacuation().evict(NODE, loser, rig.evacuation().plan_pods(NODE), 5)
    assert rig.kube.evicted == []


def test_an_event_that_cannot_be_written_changes_nothing(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.kube.faults.append(lambda r: Reply(403, b"{}") if r.resource == "events" else None)
    with caplog.at_level(logging.WARNING):
        assert rig.scheduler.drain(NODE, RUN).claim is Claim.OURS
    assert "no event PitstopCordoned was written" in caplog.text


def test_a_second_try_ends_what_a_first_began(rig: Rig) -> None:
    """The condition could not be set: the cordon is ours all the same, and it is set later."""
    denied = [True]
    rig.kube.faults.append(
        lambda r: Reply(403, b"{}") if r.resource == "nodes/status" and denied else None
    )
    with pytest.raises(AccessRefused, match="`patch` on `nodes/status`"):
        rig.scheduler.drain(NODE, RUN)
    denied.clear()
    assert rig.scheduler.drain(NODE, RUN).claim is Claim.OURS
    assert rig.kube.nodes[NODE]["status"]["conditions"][-1]["message"] == MARK


# --- drained means drained


def test_drained_is_more_than_the_flag(rig: Rig) -> None:
    rig.kube.add_pod("llm-0")
    rig.kube.add_pod("dcgm-x", owner=("DaemonSet", "dcgm"))
    rig.kube.add_pod(
        "proxy", owner=("Node", NODE), annotations={"kubernetes.io/config.mirror": "h"}
    )
    rig.kube.add_pod("done-9", owner=("Job", "etl"), phase="Succeeded")
    rig.kube.add_pod("elsewhere-0", node="gpu002")
    standing = rig.scheduler.drain(NODE, RUN)
    assert (standing.drained, standing.jobs) == (False, ("inf/llm-0",))
    assert rig.empty() == ("inf/llm-0",)
    assert rig.scheduler.look(NODE, RUN).drained
    assert rig.kube.names() == ["dcgm-x", "done-9", "elsewhere-0", "proxy"]
    rig.kube.add_pod("late-0")  # somebody gave it the node's name
    standing = rig.scheduler.look(NODE, RUN)
    assert (standing.drained, standing.jobs) == (False, ("inf/late-0",))


def test_a_node_that_does_not_report_is_not_taken_for_empty(rig: Rig) -> None:
    rig.scheduler.drain(NODE, RUN)
    rig.kube.nodes[NODE]["status"]["conditions"][0]["status"] = "Unknown"
    standing = rig.scheduler.look(NODE, RUN)
    assert (standing.drained, standing.reachable, standing.jobs) == (False, False, ())


def test_hundreds_of_pods_are_read_in_pages(rig: Rig) -> None:
    for number in range(230):
        rig.kube.add_pod(f"web-{number:03}")
        rig.kube.add_pod(f"other-{number:03}", node="gpu002")
    api = rig.connect(page=50)
    assert len(api.pods_on(NODE)) == 230
    asked = rig.kube.seen("list", "pods")
    assert [request.query["limit"] for request in asked] == ["50"] * 5
    assert asked[0].query["fieldSelector"] == f"spec.nodeName={NODE}"
    # A page is too old to be read on: the list is begun anew, not cut short.
    rig.kube.faults.append(lambda r: rig.kube.pages.clear() if "continue" in r.query else None)
    with pytest.raises(PitstopError, match="continue parameter is too old"):
        api.pods_on(NODE)
    rig.kube.faults.pop()
    stale = [True]

    def expire(request: Request) -> Reply | None:
        if "continue" in request.query and stale:
            stale.clear()
            rig.kube.pages.clear()
        return None

    rig.kube.faults.append(expire)
    assert len(api.pods_on(NODE)) == 230
    api.close()


# --- evictions


def test_a_budget_blocks_and_then_frees(rig: Rig) -> None:
    rig.kube.add_pod("llm-0", labels=LLM)
    rig.kube.add_pod("etl-0")
    rig.kube.add_budget("llm", LLM, at_least=1)
    # Pods are tried dry in the order of their names, so every second is llm-0.
    rig.kube.faults.append(
        at(6, *EVICTION, lambda: rig.kube.add_pod("llm-1", node="gpu002", labels=LLM), dry=True)
    )
    assert sorted(rig.empty()) == ["inf/etl-0", "inf/llm-0"]
    assert "The disruption budget llm needs 1 healthy pods and has 1 currently" in rig.told[0]
    assert [r.dry for r in rig.kube.seen(*EVICTION)] == [True] * 6 + [False] * 2
    assert rig.scheduler.look(NODE, RUN).drained
    assert not rig.kube.seen("delete", "pods")


def test_a_budget_that_never_frees_leaves_all_as_it_was(rig: Rig) -> None:
    rig.kube.add_pod("llm-0", labels=LLM)
    rig.kube.add_pod("etl-0")
    rig.kube.add_budget("llm", LLM, at_least=1)
    with pytest.raises(DeadlineExceeded) as failed:
        rig.empty(deadline=0.3)
    assert failed.value.subject == NODE
    assert "no pod was touched: inf/llm-0: Cannot evict pod" in failed.value.cause
    assert "budget llm needs 1 healthy pods and has 1" in failed.value.cause
    assert rig.kube.evicted == []
    assert rig.kube.names() == ["etl-0", "llm-0"]
    assert rig.scheduler.give_back(NODE, RUN) is True
    assert "unschedulable" not in rig.kube.nodes[NODE]["spec"]


def test_a_budget_for_one_at_a_time(rig: Rig) -> None:
    """Tried dry both would go; in earnest the second waits for a replacement of the first."""
    for number in range(2):
        rig.kube.add_pod(f"llm-{number}", labels=LLM)
    rig.kube.add_budget("llm", LLM, at_least=1)
    rig.kube.faults.append(
        at(3, *EVICTION, lambda: rig.kube.add_pod("llm-2", node="gpu002", labels=LLM))
    )
    rig.kube.retry_after = 1
    begun = time.monotonic()
    assert sorted(rig.empty()) == ["inf/llm-0", "inf/llm-1"]
    assert rig.kube.evicted == ["llm-0", "llm-1", "llm-1"]
    assert time.monotonic() - begun >= 1  # not sooner than the server has said
    assert rig.kube.names() == ["llm-2"]


def test_the_server_says_when_to_try_again(rig: Rig) -> None:
    rig.kube.add_pod("llm-0", labels=LLM)
    rig.kube.add_budget("llm", LLM, at_least=1)
    rig.kube.retry_after = 1
    rig.kube.faults.append(at(2, *EVICTION, rig.kube.budgets.clear, dry=True))
    begun = time.monotonic()
    rig.empty()
    assert time.monotonic() - begun >= 1
    assert len([r for r in rig.kube.seen("create", "pods/eviction") if r.dry]) == 2


def test_what_would_block_is_known_at_the_plan(rig: Rig) -> None:
    rig.kube.add_pod("llm-0", labels=LLM)
    rig.kube.add_pod("crash-0", labels={"app": "crash"}, ready="False")
    rig.kube.add_budget("llm", LLM, at_least=1)
    work = rig.evacuation()
    blocked = work.rehearse(work.plan_pods(NODE))
    assert list(blocked) == ["inf/llm-0"]
    assert "needs 1 healthy pods and has 1" in blocked["inf/llm-0"]
    rig.kube.faults.append(lambda r: Reply(503, b"away") if r.dry else None)
    with pytest.raises(ApiUnavailable, match="away"):
        work.rehearse(work.plan_pods(NODE))
    assert rig.kube.evicted == []


def test_a_cluster_that_cannot_try_evictions_dry(rig: Rig) -> None:
    """Some admission webhooks have side effects: the API refuses what would call them dry."""
    rig.kube.add_pod("web-0")
    words = b'{"message": "admission webhook \\"audit.example.com\\" does not support dry run"}'
    rig.kube.faults.append(lambda r: Reply(400, words) if r.dry else None)
    work = rig.evacuation()
    with pytest.raises(NoDryRun, match="does not support dry run"):
        work.rehearse(work.plan_pods(NODE))
    assert rig.empty() == ("inf/web-0",)
    assert "cannot be tried dry: inf/web-0: admission webhook" in rig.told[0]


def test_another_run_takes_the_node_over(rig: Rig) -> None:
    rig.kube.add_pod("held-0", finalizers=["example.com/backup"])

    def take() -> None:
        rig.kube.nodes[NODE]["metadata"]["annotations"][CORDON] = "pitstop:run-8"

    rig.kube.faults.append(at(1, *EVICTION, take))
    with pytest.raises(CordonGone, match=r"drained by another run: pitstop:run-8.*inf/held-0"):
        rig.empty(deadline=5)


def test_a_pod_that_serves_nobody_may_block_as_well(rig: Rig) -> None:
    rig.kube.add_pod("crash-0", labels=LLM, ready="False")
    rig.kube.add_budget("crash", LLM, at_least=1)
    with pytest.raises(DeadlineExceeded, match=r"has 0 currently; it is not ready.*AlwaysAllow"):
        rig.empty(deadline=0.1)


def test_two_budgets_are_refused_at_once(rig: Rig) -> None:
    rig.kube.add_pod("llm-0", labels=LLM)
    rig.kube.add_pod("etl-0")
    rig.kube.add_budget("a", LLM, at_least=0)
    rig.kube.add_budget("b", LLM, at_least=0)
    with pytest.raises(RequestRefused, match=r"inf/llm-0.*HTTP 500.*more than one PodDisruption"):
        rig.empty(deadline=5)
    assert rig.kube.evicted == []


def test_local_data_is_lost_by_consent_only(rig: Rig) -> None:
    rig.kube.add_pod("scratch-1", volumes=[{"name": "tmp", "emptyDir": {}}])
    rig.kube.add_pod("web-1")
    with pytest.raises(
        Refused, match=r"no pod was touched: inf/scratch-1: the data of emptyDir tmp"
    ):
        rig.empty()
    assert rig.kube.seen("create", "pods/eviction") == []
    assert sorted(rig.empty(allow_empty_dir=True)) == ["inf/scratch-1", "inf/web-1"]


def test_shared_memory_is_not_a_disk(rig: Rig) -> None:
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    rig.kube.add_pod("train-0", volumes=[memory], mounts=[{"name": "shm", "mountPath": "/dev/shm"}])
    rig.kube.add_pod("cache-0", volumes=[memory], mounts=[{"name": "shm", "mountPath": "/cache"}])
    assert {n: c.action for n, c in rig.plan().items()} == dict.fromkeys(
        ["train-0", "cache-0"], Action.REFUSE
    )
    plan = rig.plan(allow_shared_memory=True)
    assert (plan["train-0"].action, plan["cache-0"].action) == (Action.EVICT, Action.REFUSE)


def test_nobody_makes_a_bare_pod_again(rig: Rig) -> None:
    bare = rig.kube.add_pod("hand-made", owner=None)
    rig.kube.add_pod("etcd-2", owner=("EtcdCluster", "etcd"))
    with pytest.raises(Refused, match=r"inf/hand-made: no controller makes it again"):
        rig.empty()
    bare["metadata"]["annotations"]["pitstop.dev/evict"] = "allow"
    assert sorted(rig.empty()) == ["inf/etcd-2", "inf/hand-made"]


def test_a_job_on_several_nodes_is_one(rig: Rig) -> None:
    labels = {"training.kubeflow.org/job-name": "llama"}
    for number, node in enumerate([NODE, NODE, "gpu002"]):
        limits = {"nvidia.com/gpu": "4"}
        rig.kube.add_pod(
            f"llama-{number}",
            node=node,
            labels=labels,
            limits=limits,
            owner=("PyTorchJob", "llama"),
        )
    rig.kube.add_pod("llama-0", node="gpu003", labels=labels, space="other")
    choice = rig.plan()["llama-0"]
    assert (choice.action, choice.shape) == (Action.REFUSE, Shape.MULTI_NODE)
    assert choice.placement == {NODE: 8, "gpu002": 4}
    assert "inf/llama, which runs on 2 nodes at once (gpu001, gpu002)" in choice.reason
    rig.kube.pods[SPACE, "llama-2"]["status"]["phase"] = "Failed"
    choice = rig.plan()["llama-0"]
    assert (choice.action, choice.shape) == (Action.EVICT, Shape.SINGLE_NODE)


def test_what_the_launcher_runs_is_saved_first(rig: Rig) -> None:
    rig.kube.add_pod(
        "embed-0",
        limits={"nvidia.com/gpu": "1"},
        command=["pitstop-node", "launch", "--workload", "embed", "--", "serve"],
    )
    choice = rig.plan()["embed-0"]
    assert (choice.action, choice.workloads) == (Action.CHECKPOINT, ("embed",))
    assert choice.shape is Shape.SINGLE_GPU
    with pytest.raises(Refused, match="inf/embed-0: embed is not saved yet"):
        rig.empty()
    assert rig.kube.evicted == []
    assert rig.empty(saved=("embed",)) == ("inf/embed-0",)


def test_a_pod_that_does_not_end_is_reported_with_what_holds_it(rig: Rig) -> None:
    stuck = rig.kube.add_pod("held-0", finalizers=["example.com/backup"])
    rig.kube.end(stuck, grace=-100)
    rig.kube.add_pod("web-0")
    with pytest.raises(DeadlineExceeded) as failed:
        rig.empty(deadline=0.3)
    assert "1 of 2 pods are gone; inf/held-0: stuck in Terminating" in failed.value.cause
    assert failed.value.evidence == {"gone": ["inf/web-0"], "left": ["inf/held-0"]}
    assert "held by finalizers example.com/backup" in failed.value.cause
    assert "web-0" not in failed.value.cause
    assert rig.kube.names() == ["held-0"]
    assert rig.kube.evicted == ["web-0"]
    stuck["metadata"]["finalizers"].clear()
    assert rig.empty() == ()
    assert rig.scheduler.look(NODE, RUN).drained


def test_a_kubelet_that_does_not_report_holds_its_pods(rig: Rig) -> None:
    pod = rig.kube.add_pod("web-0")
    rig.kube.end(pod, grace=-100)
    rig.kube.nodes[NODE]["status"]["conditions"][0]["status"] = "Unknown"
    with pytest.raises(
        DeadlineExceeded, match=r"0 of 1 pods.*the kubelet of gpu001 does not report"
    ):
        rig.empty(deadline=0.1)
    assert not rig.scheduler.look(NODE, RUN).drained


def test_another_pod_of_the_same_name(rig: Rig) -> None:
    """A StatefulSet makes it again under its name: the old one is gone, the new one is new."""
    rig.kube.add_pod("db-0", owner=("StatefulSet", "db"))
    rig.scheduler.drain(NODE, RUN)
    work = rig.evacuation()
    plan = work.plan_pods(NODE)
    rig.kube.ending_takes = 3600  # so that nothing but the uid tells them apart

    def replace(request: Request) -> Reply | None:
        pod = rig.kube.pods[SPACE, "db-0"]
        if request.verb == "list" and "deletionTimestamp" in pod["metadata"]:
            rig.kube.add_pod("db-0", owner=("StatefulSet", "db"))
        return None

    rig.kube.faults.append(replace)
    assert work.evict(NODE, RUN, plan, 5).gone == ("inf/db-0",)
    standing = rig.scheduler.look(NODE, RUN)
    assert (standing.drained, standing.jobs) == (False, ("inf/db-0",))
    # And an eviction by the old plan does not touch it.
    found = work.evict(NODE, RUN, plan, 5)
    assert (found.gone, found.gone_before) == ((), ("inf/db-0",))
    assert rig.kube.evicted == ["db-0"]


def test_another_pod_of_the_same_name_between_plan_and_eviction(rig: Rig) -> None:
    rig.kube.add_pod("db-0", owner=("StatefulSet", "db"))

    def replace() -> None:
        rig.kube.add_pod("db-0", owner=("StatefulSet", "db"))

    rig.kube.faults.append(at(1, *EVICTION, replace))
    assert rig.empty() == ("inf/db-0",)
    assert rig.kube.evicted == ["db-0"]  # and was refused: the precondition on the uid held
    assert "deletionTimestamp" not in rig.kube.pods[SPACE, "db-0"]["metadata"]


def test_a_pod_that_is_gone_by_itself(rig: Rig) -> None:
    rig.kube.add_pod("web-0")
    rig.kube.faults.append(at(1, *EVICTION, rig.kube.pods.clear))
    assert rig.empty() == ("inf/web-0",)


def test_the_grace_period_is_the_pods_own_unless_the_site_says_another(rig: Rig) -> None:
    rig.kube.add_pod("web-0")
    rig.kube.add_pod("web-1")
    rig.empty()
    options = [r.body["deleteOptions"] for r in rig.kube.seen("create", "pods/eviction")]
    assert all("gracePeriodSeconds" not in found for found in options)
    assert all("uid" in found["preconditions"] for found in options)
    rig.kube.add_pod("web-2")
    rig.empty(grace_period=7)
    last = rig.kube.seen("create", "pods/eviction")[-1]
    assert last.body["deleteOptions"]["gracePeriodSeconds"] == 7


def test_nothing_is_evicted_from_a_node_that_fills_again(rig: Rig) -> None:
    rig.kube.add_pod("web-0")
    work = rig.evacuation()
    with pytest.raises(Refused, match="not cordoned"):
        work.evict(NODE, RUN, work.plan_pods(NODE), 5)
    assert rig.kube.seen("create", "pods/eviction") == []


def test_somebody_uncordons_meanwhile(rig: Rig) -> None:
    rig.kube.add_pod("held-0", finalizers=["example.com/backup"])
    rig.kube.faults.append(at(1, *EVICTION, lambda: rig.kube.cordon(NODE, False, "autoscaler")))
    with pytest.raises(CordonGone, match=r"not cordoned.*still there: inf/held-0"):
        rig.empty(deadline=5)


def test_on_a_node_that_somebody_else_cordoned(rig: Rig) -> None:
    rig.kube.cordon(NODE, True, "kubectl-cordon")
    rig.kube.add_pod("web-0")
    assert rig.empty() == ("inf/web-0",)
    assert rig.scheduler.give_back(NODE, RUN) is False


def test_the_api_is_away_for_a_while(rig: Rig) -> None:
    """What was asked of it goes on; it is asked again until the deadline."""
    rig.kube.add_pod("web-0")
    rig.scheduler.drain(NODE, RUN)
    work = rig.evacuation()
    plan = work.plan_pods(NODE)
    answers = [Reply(503, b"upstream is away"), Reply(body=None), Reply(504, b"late")]

    def away(request: Request) -> Reply | None:
        begun = any(r.verb == "create" and r.dry for r in rig.kube.requests)
        return answers.pop() if begun and request.verb == "get" and answers else None

    rig.kube.faults.append(away)
    assert work.evict(NODE, RUN, plan, 5, rig.told.append).gone == ("inf/web-0",)
    assert answers == []
    assert any("1 that are not known to be gone: get nodes" in words for words in rig.told)


def test_an_eviction_whose_answer_was_lost_is_asked_for_again(rig: Rig) -> None:
    rig.kube.add_pod("web-0")
    lost = [1]

    def lose(request: Request) -> Reply | None:
        if request.resource == "pods/eviction" and not request.dry and lost:
            lost.clear()
            rig.kube.answer(request)  # it was done
            return Reply(body=None)
        return None

    rig.kube.faults.append(lose)
    assert rig.empty() == ("inf/web-0",)


# --- answers that tell nothing


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Reply(200, b"<html>log in</html>", "text/html"), NotUnderstood, "no JSON.*<html>log in"),
        (Reply(200, b'{"kind":"PodList","items":[{"met'), NotUnderstood, "no JSON"),
        (Reply(200, b'{"kind":"PodList"', length=900), ConnectionLost, "ended before its answer"),
        (Reply(200, b""), NotUnderstood, "no JSON: 0 bytes"),
        (Reply(200, b"[]"), NotUnderstood, "no object"),
        (Reply(200, b'{"kind":"Status","metadata":{}}'), NotUnderstood, "kind: 'Status' instead"),
        (Reply(200, b'{"kind":"PodList","metadata":{}}'), NotUnderstood, "items: is no list"),
        (Reply(body=None), ConnectionLost, "ended before its answer"),
        (Reply(302, b"", headers={"Location": "http://127.0.0.1:9/"}), RequestRefused, "HTTP 302"),
        (Reply(429, b"slow down", headers={"Retry-After": "1"}), ApiUnavailable, "slow down"),
        (Reply(500, b"etcd is sad"), RequestRefused, "HTTP 500: etcd is sad"),
        (Reply(503, b""), ApiUnavailable, "HTTP 503: no words"),
    ],
    ids=lambda value: str(getattr(value, "status", ""))[:9] or None,
)
def test_an_answer_that_is_none_is_never_an_empty_node(
    rig: Rig, reply: Reply, error: type[PitstopError], words: str
) -> None:
    rig.scheduler.drain(NODE, RUN)
    rig.kube.faults.append(lambda r: reply if r.verb == "list" else None)
    with pytest.raises(error, match=rf"list pods \(on node gpu001\): .*{words}"):
        rig.scheduler.look(NODE, RUN)


def test_a_pod_that_is_not_understood_is_named(rig: Rig) -> None:
    rig.kube.add_pod("odd-0")["status"]["phase"] = "Hibernating"
    with pytest.raises(NotUnderstood, match=r"pod inf/odd-0: status\.phase: 'Hibernating'"):
        rig.scheduler.look(NODE, RUN)


def test_a_selector_that_is_not_followed(rig: Rig) -> None:
    rig.kube.add_pod("web-0", node="gpu002")
    listing = Reply(200, b"")

    def all_pods(request: Request) -> Reply | None:
        if request.verb == "list" and not listing.body:
            query = {**request.query, "fieldSelector": "spec.nodeName=gpu002"}
            asked = Request(*(*_fields(request)[:4], query, None, ""))
            return Reply(200, json.dumps(rig.kube.answer(asked)[1]).encode())
        return None

    rig.kube.faults.append(all_pods)
    with pytest.raises(NotUnderstood, match="pod inf/web-0 is on node gpu002"):
        rig.scheduler.look(NODE, RUN)


def _fields(request: Request) -> tuple[Any, ...]:
    return request.verb, request.resource, request.space, request.name


def test_a_node_that_is_not_there(rig: Rig) -> None:
    with pytest.raises(NotThere, match=r'get nodes \(node gpu9\).*nodes "gpu9" not found'):
        rig.scheduler.look("gpu9", RUN)


@pytest.mark.parametrize("name", ["", "GPU001", "a,metadata.name=b", "../pods", "-a", "n 1", "é"])
def test_one_node_is_meant_and_no_other(rig: Rig, name: str) -> None:
    for act in (rig.scheduler.look, rig.scheduler.drain, rig.scheduler.give_back):
        with pytest.raises(BadInput, match="no name of a Kubernetes node"):
            act(name, RUN)
    assert rig.kube.requests == []


# --- credentials and connections


def test_credentials_that_are_not_accepted(rig: Rig, kube: Cluster) -> None:
    address = rig.api._connection.server
    write_kubeconfig(rig.kubeconfig, address, token="expired-77")  # noqa: S106
    with pytest.raises(AccessRefused, match="does not accept the credentials") as failed:
        rig.connect().node(NODE)
    assert "expired-77" not in repr(failed.value)
    assert kube.requests == []


def test_what_rbac_lacks_is_named(rig: Rig) -> None:
    rig.kube.add_pod("web-0")
    rig.kube.rules = frozenset({("get", "nodes", ""), ("list", "pods", ""), ("patch", "nodes", "")})
    with pytest.raises(AccessRefused, match="`patch` on `nodes/status`"):
        rig.scheduler.drain(NODE, RUN)
    rig.kube.rules |= {("patch", "nodes/status", "")}
    with pytest.raises(AccessRefused, match=r"inf/web-0.*cannot create.*`create` on `pods/evict"):
        rig.empty()
    assert rig.kube.evicted == []


def test_a_server_that_repeats_the_credentials(rig: Rig) -> None:
    words = f"bad header Authorization: Bearer {TOKEN}".encode()
    replies: list[Reply] = []
    rig.kube.faults.append(lambda _request: replies[-1])
    for status in (200, 403, 503):
        replies.append(Reply(status, words))
        with pytest.raises(PitstopError, match=r"Authorization: \*\*\*") as failed:
            rig.api.node(NODE)
        assert TOKEN not in repr(failed.value)
        assert failed.value.__cause__ is None


def test_nobody_is_there(rig: Rig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        write_kubeconfig(rig.kubeconfig, f"http://127.0.0.1:{port}")
        with pytest.raises(NodeUnreachable, match=rf"127\.0\.0\.1:{port}.*refused"):
            rig.connect().node(NODE)


def test_no_proxy_of_the_environment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert rig.connect().node(NODE).name == NODE


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, for 127.0.0.1; and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / f"{name}.crt", directory / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def test_a_server_that_is_not_trusted(kube: Cluster, tmp_path: Path) -> None:
    ours, others = certificate(tmp_path, "ours"), certificate(tmp_path, "others")
    path = tmp_path / "kubeconfig"
    spec = KubernetesSpec(kind="kubernetes", kubeconfig=str(path))
    with serving(kube, tls=ours) as address:
        write_kubeconfig(path, address, **{"certificate-authority": str(ours[0])})
        assert Api(connect(spec)).node(NODE).name == NODE
        write_kubeconfig(path, address, **{"certificate-authority": str(others[0])})
        seen = len(kube.requests)
        with pytest.raises(NotTrusted, match="certificate verify failed"):
            Api(connect(spec)).node(NODE)
        assert len(kube.requests) == seen
        insecure: dict[str, Any] = {"insecure-skip-tls-verify": True}
        write_kubeconfig(path, address, **insecure)
        with pytest.raises(BadInput, match="insecure-skip-tls-verify"):
            connect(spec)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("", "Invalid kube-config"),
        ("users:\n- token: s3cret\n  - : [", r"line 3.*no YAML|line 2.*no YAML"),
        ("s3cret", "is no kubeconfig|Invalid kube-config"),
        ("current-context: s\ncontexts: []\nusers: []\nclusters: []", "Invalid kube-config"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=words) as failed:
        connect(KubernetesSpec(kind="kubernetes", kubeconfig=str(path)))
    assert str(path) in failed.value.subject
    assert "s3cret" not in repr(failed.value)


def test_without_the_client_it_says_what_to_install(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(
        PermanentError, match=r"not installed \(pip install 'pitstop\[kubernetes\]'"
    ):
        rig.connect()


def test_the_client_is_loaded_only_where_it_is_used() -> None:
    modules = ("scheduler", "evacuation", "api", "connection")
    lines = [f"import pitstop.fleet.kubernetes.{name}" for name in modules]
    code = "; ".join(["import sys", *lines, "sys.exit('kubernetes' in sys.modules)"])
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_credentials_are_not_sent_in_the_clear(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", "http://user:pw@api.example.com:8080")
    with pytest.raises(BadInput, match=r"http://api\.example\.com:8080 is not encrypted") as failed:
        connect(KubernetesSpec(kind="kubernetes", kubeconfig=str(path)))
    assert "pw" not in repr(failed.value)


def test_outside_of_a_cluster_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadInput, match="Service host/port is not set"):
        connect(KubernetesSpec(kind="kubernetes", in_cluster=True))


def test_a_context_is_chosen_by_name(rig: Rig) -> None:
    assert rig.connect(context="lab").node(NODE).name == NODE
    with pytest.raises(BadInput, match="nowhere"):
        rig.connect(context="nowhere")
