"""docs/kubernetes.md: what it says to write down is right, and neither too much nor too little."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pitstop.fleet.kubernetes.api import Api
from pitstop.fleet.kubernetes.choice import Action, Consent, decide
from pitstop.fleet.kubernetes.connection import connect
from pitstop.fleet.kubernetes.evacuation import Evacuation
from pitstop.fleet.kubernetes.records import read_pods
from pitstop.fleet.kubernetes.scheduler import Kubernetes
from pitstop.model.kubernetes import KubernetesSpec
from tests.rigs.kubernetes import NODE, Cluster

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()


def documents() -> list[dict[str, Any]]:
    """Every document of every YAML block of the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [found for block in blocks for found in yaml.safe_load_all(block)]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [found for found in documents() if found.get("kind") == kind]


def granted() -> frozenset[tuple[str, str, str]]:
    """The rights of the page: verb, resource, and the namespace of a Role."""
    return frozenset(
        (verb, resource, role["metadata"].get("namespace", ""))
        for role in (*of_kind("ClusterRole"), *of_kind("Role"))
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    )


def test_the_rights_are_those_that_are_used(kube: Cluster, kubeconfig: Path) -> None:
    """The emulator allows these alone, and each of them is used by a drain."""
    kube.rules = granted()
    labels = {"batch.kubernetes.io/job-name": "etl"}
    kube.add_pod("etl-0", owner=("Job", "etl"), labels=labels)
    kube.add_pod("web-0")
    spec = KubernetesSpec(kind="kubernetes", kubeconfig=str(kubeconfig))
    api = Api(connect(spec), page=1)
    scheduler, work = Kubernetes(api), Evacuation(api, spec, poll=0.02)
    scheduler.drain(NODE, "r")
    assert work.rehearse(work.plan_pods(NODE)) == {}
    assert len(work.evict(NODE, "r", work.plan_pods(NODE), 10).gone) == 2
    assert scheduler.look(NODE, "r").drained
    assert scheduler.give_back(NODE, "r")
    api.close()
    assert {request.rule for request in kube.requests} == granted()
    assert len(kube.events) == 2


def test_the_rights_are_bound_to_the_account() -> None:
    [account] = of_kind("ServiceAccount")
    roles = {(role["kind"], role["metadata"]["name"]) for role in documents() if "rules" in role}
    bindings = [*of_kind("ClusterRoleBinding"), *of_kind("RoleBinding")]
    assert {(b["roleRef"]["kind"], b["roleRef"]["name"]) for b in bindings} == roles
    for binding in bindings:
        [subject] = binding["subjects"]
        assert subject["kind"] == "ServiceAccount"
        assert subject["name"] == account["metadata"]["name"]
        assert subject["namespace"] == account["metadata"]["namespace"]
    for role in (*of_kind("ClusterRole"), *of_kind("Role")):
        assert all(rule["apiGroups"] == [""] for rule in role["rules"])
        assert "*" not in yaml.safe_dump(role)


def test_the_lines_of_site_yaml() -> None:
    schedulers = [found["scheduler"] for found in documents() if "scheduler" in found]
    specs = [KubernetesSpec.model_validate(found) for found in schedulers]
    assert [spec.in_cluster for spec in specs] == [False, True]
    described = set(re.findall(r"`(\w+)`", PAGE.split("| field |")[1].split("\n\n")[0]))
    assert set(KubernetesSpec.model_fields) - {"kind"} <= described


@pytest.fixture
def template() -> dict[str, Any]:
    [workload] = of_kind("StatefulSet")
    found: dict[str, Any] = workload["spec"]["template"]
    assert found["metadata"]["labels"] == workload["spec"]["selector"]["matchLabels"]
    return found


def test_the_pod_is_one_that_is_saved_first(template: dict[str, Any]) -> None:
    owner = {"kind": "StatefulSet", "name": "embed", "uid": "u", "controller": True}
    metadata = {"name": "embed-0", "namespace": "inference", "uid": "v", "ownerReferences": [owner]}
    pod = {
        "metadata": {**template["metadata"], **metadata},
        "spec": {**template["spec"], "nodeName": "gpu001"},
        "status": {"phase": "Running"},
    }
    answer = {"kind": "PodList", "metadata": {}, "items": [pod]}
    for annotated in (True, False):
        if not annotated:
            del pod["metadata"]["annotations"]
        [found], _ = read_pods("docs", answer)
        choice = decide(found, [found], Consent())
        assert (choice.action, choice.workloads) == (Action.CHECKPOINT, ("embed",))


def test_the_pod_may_do_what_the_engine_needs(template: dict[str, Any]) -> None:
    from pitstop.node.checks.privileges import CAPABILITIES

    [container] = template["spec"]["containers"]
    added = container["securityContext"]["capabilities"]["add"]
    assert {f"CAP_{name}" for name in added} == set(CAPABILITIES)
    assert "hostUsers" not in template["spec"]
    [volume] = template["spec"]["volumes"]
    [mount] = container["volumeMounts"]
    # The engine on the node looks below the same path.
    assert volume["hostPath"]["path"] == mount["mountPath"] == "/var/lib/pitstop"


def test_the_python_of_the_page_compiles() -> None:
    [block] = re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("   ") for line in block.splitlines()]
    names: dict[str, Any] = {}
    exec(compile("\n".join(lines[:7]), "docs", "exec"), names)  # noqa: S102  # its imports
    compile("\n".join(lines), "docs", "exec")
    assert names["spec"].kind == "kubernetes"
