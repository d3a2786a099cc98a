"""Pods and nodes as the API writes them, and what is chosen for them. Pure."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pitstop.fleet.kubernetes.choice import Action, Consent, decide
from pitstop.fleet.kubernetes.errors import NotUnderstood
from pitstop.fleet.kubernetes.holding import held_by, summary
from pitstop.fleet.kubernetes.records import (
    CONDITION,
    CORDON,
    Pod,
    launch_line,
    read_node,
    read_pods,
    workload_of,
)
from pitstop.fleet.kubernetes.resources import Gpus
from pitstop.fleet.kubernetes.scheduler import claim
from pitstop.fleet.scheduler import Claim
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.words import Shape

ASKED = "list pods (on node gpu001)"
NOBODY = Consent()


def owner(kind: str, name: str = "x", controller: bool = True) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "uid": "u", "controller": controller}]


def raw(name: str = "web-0", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "inf",
            "uid": f"uid-{name}",
            "ownerReferences": owner("ReplicaSet", "web"),
            **metadata,
        },
        "spec": {"nodeName": "gpu001", "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


def with_limits(**containers: Any) -> dict[str, Any]:
    """A pod with containers of these limits, each a list of (limits, restartPolicy)."""
    pod = raw()
    for kind, given_ in containers.items():
        pod["spec"][kind] = [
            {
                "name": f"c{number}",
                "resources": {"limits": limits},
                **({"restartPolicy": policy} if policy else {}),
            }
            for number, (limits, policy) in enumerate(given_)
        ]
    return pod


def read(*pods: dict[str, Any]) -> tuple[Pod, ...]:
    return read_pods(ASKED, {"kind": "PodList", "metadata": {}, "items": list(pods)})[0]


def one(pod: dict[str, Any]) -> Pod:
    [found] = read(pod)
    return found


def chosen(pod: dict[str, Any], *others: dict[str, Any], consent: Consent = NOBODY) -> Any:
    first, *rest = read(pod, *others)
    return decide(first, (first, *rest), consent)


# --- reading


def test_a_pod_as_plain_as_can_be() -> None:
    pod = one(raw())
    assert (pod.key, pod.node, pod.owner and pod.owner.kind) == (
        "inf/web-0",
        "gpu001",
        "ReplicaSet",
    )
    assert (pod.ready, pod.ending, pod.gpus, pod.local, pod.job) == (None, None, Gpus(), (), "")
    assert pod.holds_node


def test_nulls_are_what_is_missing() -> None:
    """Some clients write them where the API leaves fields out."""
    pod = raw(labels=None, annotations=None, ownerReferences=None, deletionTimestamp=None)
    pod["spec"].update(volumes=None, initContainers=None)
    pod["status"]["conditions"] = None
    pod["spec"]["containers"][0].update(resources=None, command=None)
    assert one(pod).owner is None


@pytest.mark.parametrize(
    ("limits", "gpus", "words"),
    [
        ({}, Gpus(), "no GPU"),
        ({"cpu": "500m", "memory": "1Gi"}, Gpus(), "no GPU"),
        ({"nvidia.com/gpu": "0"}, Gpus(), "no GPU"),
        ({"nvidia.com/gpu": "8"}, Gpus(8), "8 GPUs"),
        ({"nvidia.com/gpu": 1}, Gpus(1), "1 GPU"),
        ({"nvidia.com/gpu": "1k"}, Gpus(1000), "1000 GPUs"),
        ({"amd.com/gpu": "2"}, Gpus(2), "2 GPUs"),
        ({"nvidia.com/mig-1g.5gb": "2"}, Gpus(0, 2), "2 parts of a GPU"),
        ({"nvidia.com/mig-1g.10gb.me": "1"}, Gpus(0, 1), "1 part of a GPU"),
        ({"nvidia.com/mig-1c.3g.20gb": "1"}, Gpus(0, 1), "1 part of a GPU"),
        ({"nvidia.com/gpu.shared": "1", "nvidia.com/gpu": "1"}, Gpus(1, 1), "1 GPU and 1 part"),
        ({"nvidia.com/hostdev": "4"}, Gpus(), "no GPU"),
    ],
)
def test_gpus_by_their_resource(limits: dict[str, Any], gpus: Gpus, words: str) -> None:
    found = one(with_limits(containers=[(limits, "")])).gpus
    assert found == gpus
    assert words in str(found)


@pytest.mark.parametrize(
    ("containers", "gpus"),
    [
        ({"containers": [(4, ""), (2, "")]}, 6),
        ({"containers": [(1, "")], "initContainers": [(8, "")]}, 8),
        ({"containers": [(4, "")], "initContainers": [(2, "")]}, 4),
        ({"containers": [(4, "")], "initContainers": [(2, "Always")]}, 6),
        ({"containers": [(1, "")], "initContainers": [(2, "Always"), (3, "")]}, 5),
        ({"containers": [(1, "")], "initContainers": [(3, ""), (2, "Always")]}, 3),
    ],
)
def test_init_containers_run_alone_and_sidecars_do_not(
    containers: dict[str, list[tuple[int, str]]], gpus: int
) -> None:
    given_ = {
        kind: [({"nvidia.com/gpu": str(count)}, policy) for count, policy in some]
        for kind, some in containers.items()
    }
    assert one(with_limits(**given_)).gpus.whole == gpus


def test_resource_claims_are_not_counted_as_none() -> None:
    pod = raw()
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": "eight"}]
    choice = chosen(pod)
    assert choice.pod.gpus == Gpus(claims=("gpus",))
    assert choice.pod.gpus.any
    assert choice.shape is None


def spoil(pod: dict[str, Any], path: str, value: Any) -> None:
    """Replace one field, or take it away; `~` stands for a slash in a name."""
    *way, last = [part.replace("~", "/") for part in path.split("/")]
    target: Any = pod
    for part in way:
        target = target[int(part) if part.isdigit() else part]
    if value is KeyError:
        del target[last]
    else:
        target[last] = value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("metadata/uid", KeyError, r"metadata\.uid: is missing"),
        ("metadata/uid", "", r"metadata\.uid: is empty"),
        ("metadata/labels", ["a"], r"metadata\.labels: \['a'\] is no object"),
        ("metadata/labels", {"a": 1}, r"metadata\.labels\.a: 1 is no text"),
        ("metadata/ownerReferences", {}, r"metadata\.ownerReferences: \{\} is no list"),
        ("metadata/ownerReferences/0/controller", "true", r"\[0\]\.controller: 'true' is neither"),
        ("metadata/ownerReferences/0/kind", KeyError, r"\[0\]\.kind: is missing"),
        ("metadata/deletionTimestamp", "soon", r"deletionTimestamp: 'soon' is no moment"),
        ("metadata/deletionTimestamp", 12, r"deletionTimestamp: 12 is no text"),
        ("metadata/finalizers", "one", r"finalizers: 'one' is no list"),
        ("metadata/annotations/pitstop.dev~evict", "yes", r"'yes' is neither allow nor refuse"),
        ("metadata/annotations/pitstop.dev~workload", "a b", r"'a b' is no workload's name"),
        ("spec/containers/0/resources/limits/nvidia.com~gpu", "one", r"limits.*'one' is no number"),
        ("spec/containers/0/resources/limits/nvidia.com~gpu", "-1", r"'-1' is no number of GPUs"),
        ("spec/containers/0/resources/limits/nvidia.com~gpu", "500m", r"'500m' is no number"),
        ("spec/containers/0/resources/limits/nvidia.com~gpu", True, r"True is no text"),
        ("spec/containers/0/command", "serve", r"command: 'serve' is no list"),
        ("spec/volumes", [{"emptyDir": {}}], r"spec\.volumes\[0\]\.name: is missing"),
        ("spec", KeyError, r"spec: is missing"),
        ("status/phase", KeyError, r"status\.phase: is missing"),
        ("status/phase", "Evicted", r"status\.phase: 'Evicted' is none of Failed"),
        ("status/conditions", [{"type": "Ready", "status": "yes"}], r"\[0\]\.status: 'yes' is"),
    ],
)
def test_what_is_odd_is_named_with_its_pod_and_field(path: str, value: Any, words: str) -> None:
    pod = with_limits(containers=[({"nvidia.com/gpu": "1"}, "")])
    pod["metadata"]["annotations"] = {}
    spoil(pod, path, value)
    with pytest.raises(
        NotUnderstood, match=rf"list pods \(on node gpu001\): pod inf/web-0: .*{words}"
    ):
        one(pod)


@pytest.mark.parametrize("item", [None, "web-0", {}, {"metadata": None}, {"metadata": "x"}])
def test_what_is_no_pod_at_all(item: Any) -> None:
    with pytest.raises(NotUnderstood, match="a pod without a name"):
        read(raw(), item)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "items", "kind", "name"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_like)
def test_no_answer_is_read_as_an_empty_list(answer: Any) -> None:
    """Whatever comes: pods of a list that says it is one, or an error."""
    if not isinstance(answer, dict):
        answer = {"items": answer}
    with pytest.raises(NotUnderstood):
        read_pods(ASKED, {**answer, "kind": answer.get("kind", "PodList"), "metadata": 1})


@given(st.data())
def test_no_spoilt_field_goes_unseen_or_breaks_the_reader(data: st.DataObject) -> None:
    """Any value in any place gives a pod or an error that names it; never another exception."""
    pod = with_limits(containers=[({"nvidia.com/gpu": "1"}, "")], initContainers=[({}, "Always")])
    pod["metadata"].update(labels={"a": "b"}, finalizers=["f"], annotations={"c": "d"})
    pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {"medium": "Memory"}}]
    spoilt = copy.deepcopy(pod)
    target: Any = spoilt
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        deeper = target[key]
        if isinstance(deeper, dict | list) and deeper and data.draw(st.booleans()):
            target = deeper
            continue
        target[key] = data.draw(json_like)
        break
    try:
        [found] = read(spoilt)
    except NotUnderstood as error:
        assert error.cause
    else:
        assert found.uid


# --- the launcher


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["pitstop-node", "launch", "--workload", "llm", "--", "serve"], "llm"),
        (["/opt/pitstop/bin/pitstop-node", "launch", "--workload=llm", "--", "serve"], "llm"),
        (["pitstop-node", "--state-dir", "/s", "launch", "--workload", "llm"], "llm"),
        (["tini", "--", "pitstop-node", "launch", "--workload", "llm", "--", "x"], "llm"),
        (["sh", "-c", "exec pitstop-node launch --workload llm -- serve --port 80"], "llm"),
        (["bash", "-c", 'cd /w && pitstop-node launch --workload "llm" -- "a b"'], "llm"),
        (["sh", "-c", "it's odd; pitstop-node launch --workload llm -- x"], "llm"),
        (["pitstop-node", "launch", "--workload", "$(NAME)", "--", "serve"], ""),
        (["sh", "-c", "pitstop-node launch --workload $NAME -- serve"], ""),
        (["pitstop-node", "launch", "--workload"], ""),
        (["pitstop-node", "op", "status", "x"], None),
        (["pitstop-node", "op", "log", "--", "launch"], None),
        (["serve", "--name", "my-pitstop-node", "launch"], None),
        (["sh", "-c", "echo pitstop-nodes launch"], None),
        ([], None),
    ],
)
def test_the_launcher_is_known_by_its_command(words: list[str], name: str | None) -> None:
    line = launch_line(words)
    assert (None if line is None else workload_of(line)) == name


# --- choices


def test_what_belongs_to_the_node_is_left() -> None:
    for pod in (
        raw(ownerReferences=owner("DaemonSet", "dcgm")),
        raw(ownerReferences=owner("Node", "gpu001", controller=False)),
        raw(ownerReferences=None, annotations={"kubernetes.io/config.mirror": "abc"}),
    ):
        choice = chosen(pod)
        assert choice.action is Action.LEAVE
        assert not choice.pod.holds_node
    holds = with_limits(containers=[({"nvidia.com/gpu": "8"}, "")])
    holds["metadata"]["ownerReferences"] = owner("DaemonSet", "probe")
    assert "it holds 8 GPUs, and with that the driver" in chosen(holds).reason
    holds["metadata"]["ownerReferences"] = owner("Node", "gpu001")
    choice = chosen(holds)
    assert choice.action is Action.REFUSE
    assert "static pod that holds 8 GPUs" in choice.reason


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_has_ended_is_left_whatever_else_it_is(phase: str) -> None:
    pod = raw(ownerReferences=None)
    pod["status"]["phase"] = phase
    pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    assert chosen(pod).action is Action.LEAVE


def test_what_is_ending_already_is_waited_for() -> None:
    pod = raw(ownerReferences=None, deletionTimestamp="2026-11-30T18:00:00Z")
    choice = chosen(pod)
    assert choice.action is Action.WAIT
    assert choice.pod.ending == 1796061600


def test_an_owner_that_is_no_controller_makes_nothing_again() -> None:
    assert chosen(raw(ownerReferences=owner("Workflow", controller=False))).action is Action.REFUSE
    assert chosen(raw(ownerReferences=owner("EtcdCluster"))).action is Action.EVICT


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ({"emptyDir": {}}, "emptyDir v"),
        ({"emptyDir": None}, "emptyDir v"),
        ({"emptyDir": {"medium": "Memory"}}, r"emptyDir v (in memory)"),
        ({"emptyDir": {"medium": "HugePages"}}, "emptyDir v"),
        ({"ephemeral": {"volumeClaimTemplate": {}}}, "ephemeral v"),
    ],
)
def test_data_that_is_deleted_with_its_pod(volume: dict[str, Any], words: str) -> None:
    pod = raw()
    pod["spec"]["volumes"] = [{"name": "v", **volume}, {"name": "c", "configMap": {"name": "c"}}]
    choice = chosen(pod)
    assert choice.action is Action.REFUSE
    assert f"the data of {words} is deleted with it" in choice.reason
    allowed = chosen(pod, consent=Consent(empty_dir=True))
    assert (allowed.action, words in allowed.reason) == (Action.EVICT, True)
    assert chosen(pod, consent=Consent(shared_memory=True)).action is Action.REFUSE
    pod["metadata"]["annotations"] = {"pitstop.dev/evict": "allow"}
    choice = chosen(pod)
    assert choice.action is Action.EVICT
    assert words in choice.reason  # what is lost is said all the same


def test_an_owner_may_forbid_it() -> None:
    choice = chosen(raw(annotations={"pitstop.dev/evict": "refuse"}))
    assert (choice.action, "forbids it" in choice.reason) == (Action.REFUSE, True)


def launched(**metadata: Any) -> dict[str, Any]:
    pod = with_limits(containers=[({"nvidia.com/gpu": "1"}, "")])
    pod["metadata"].update(metadata)
    pod["spec"]["containers"][0].update(
        command=["pitstop-node"], args=["launch", "--workload", "llm", "--", "serve"]
    )
    return pod


def test_what_the_launcher_runs_is_saved_first() -> None:
    assert chosen(launched()).workloads == ("llm",)
    assert chosen(launched(), consent=Consent(True, True)).action is Action.CHECKPOINT
    both = chosen(launched(annotations={"pitstop.dev/workload": "embed"}))
    assert (both.action, both.workloads) == (Action.CHECKPOINT, ("embed", "llm"))
    only = chosen(raw(annotations={"pitstop.dev/workload": "embed"}))
    assert (only.action, only.workloads) == (Action.CHECKPOINT, ("embed",))


def test_a_launcher_whose_workload_is_not_known_is_no_reason_to_evict() -> None:
    pod = launched()
    pod["spec"]["containers"][0]["args"][2] = "$(NAME)"
    choice = chosen(pod)
    assert choice.action is Action.REFUSE
    assert "pitstop.dev/workload" in choice.reason


def test_nothing_makes_a_bare_pod_again_that_was_saved() -> None:
    assert chosen(launched(ownerReferences=None)).action is Action.REFUSE


JOBS = [
    {"batch.kubernetes.io/job-name": "j"},
    {"job-name": "j"},
    {"jobset.sigs.k8s.io/jobset-name": "j", "batch.kubernetes.io/job-name": "part"},
    {"leaderworkerset.sigs.k8s.io/name": "j", "leaderworkerset.sigs.k8s.io/group-index": "0"},
    {"training.kubeflow.org/job-name": "j"},
    {"ray.io/cluster": "j"},
    {"volcano.sh/job-name": "j"},
]


def member(name: str, node: str, gpus: int, **metadata: Any) -> dict[str, Any]:
    pod = with_limits(containers=[({"nvidia.com/gpu": str(gpus)}, "")])
    pod["metadata"].update(name=name, uid=f"uid-{name}", **metadata)
    pod["spec"]["nodeName"] = node
    return pod


@pytest.mark.parametrize("labels", JOBS, ids=lambda labels: next(iter(labels)))
def test_the_shape_of_a_job_is_counted_in_nodes(labels: dict[str, str]) -> None:
    first = member("a", "gpu001", 4, labels=labels)
    beside = member("b", "gpu001", 4, labels=labels)
    away = member("c", "gpu002", 0, labels=labels)
    choice = chosen(first, beside)
    assert (choice.action, choice.shape) == (Action.EVICT, Shape.SINGLE_NODE)
    assert choice.placement == {"gpu001": 8}
    choice = chosen(first, beside, away)
    assert (choice.action, choice.shape) == (Action.REFUSE, Shape.MULTI_NODE)
    assert choice.placement == {"gpu001": 8, "gpu002": 0}
    for phase in ("Succeeded", "Failed"):  # was tried again here
        over = copy.deepcopy(away)
        over["status"]["phase"] = phase
        assert chosen(first, over).shape is Shape.SINGLE_NODE
    waiting = copy.deepcopy(away)
    del waiting["spec"]["nodeName"]
    waiting["status"]["phase"] = "Pending"
    assert chosen(first, waiting).shape is Shape.SINGLE_NODE


def test_groups_of_a_leader_worker_set_are_replicas() -> None:
    name = "leaderworkerset.sigs.k8s.io/name"
    index = "leaderworkerset.sigs.k8s.io/group-index"
    first = member("a", "gpu001", 8, labels={name: "j", index: "0"})
    other = member("b", "gpu002", 8, labels={name: "j", index: "1"})
    assert chosen(first, other).action is Action.EVICT
    other["metadata"]["labels"][index] = "0"
    assert chosen(first, other).action is Action.REFUSE


def test_a_common_controller_is_one_job_where_gpus_say_so() -> None:
    """Ranks of a training may be a StatefulSet; so may be replicas of a database."""
    owners = owner("StatefulSet", "s")
    ranks = [member(f"s-{n}", f"gpu00{n}", 8, ownerReferences=owners) for n in (1, 2)]
    assert chosen(*ranks).shape is Shape.MULTI_NODE
    replicas = [member(f"s-{n}", f"gpu00{n}", 0, ownerReferences=owners) for n in (1, 2)]
    assert chosen(*replicas).action is Action.EVICT
    web = [member(f"w-{n}", f"gpu00{n}", 8, ownerReferences=owner("ReplicaSet")) for n in (1, 2)]
    assert chosen(*web).action is Action.EVICT


def test_consent_of_a_job_on_several_nodes() -> None:
    labels = {"job-name": "j"}
    allow = {"pitstop.dev/evict": "allow"}
    first = launched(labels=labels, annotations=allow)
    choice = chosen(first, member("b", "gpu002", 1, labels=labels))
    # Its shape forbids a checkpoint of one part; its owner says that it can do without.
    assert (choice.action, choice.workloads) == (Action.EVICT, ())
    assert "runs on 2 nodes at once" in choice.reason


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 8), st.sampled_from(["j", "k", ""])), max_size=6
    )
)
def test_a_choice_never_counts_what_is_not_of_the_job(
    others: list[tuple[int, int, str]],
) -> None:
    first = one(member("a", "gpu001", 2, labels={"job-name": "j"}))
    rest = [
        one(member(f"p{n}", f"gpu00{node}", gpus, labels={"job-name": job} if job else {}))
        for n, (node, gpus, job) in enumerate(others)
    ]
    choice = decide(first, [first, *rest], NOBODY)
    ours = [(node, gpus) for node, gpus, job in others if job == "j"]
    assert set(choice.placement) == {"gpu001"} | {f"gpu00{node}" for node, _ in ours}
    assert sum(choice.placement.values()) == 2 + sum(gpus for _, gpus in ours)
    assert (choice.action is Action.REFUSE) == (len(choice.placement) > 1)


# --- nodes


def raw_node(**given_: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": "gpu001", "uid": "u", "resourceVersion": "7", **given_},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def managed(manager: str, field: str = "f:unschedulable") -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {field: {}}}}


@pytest.mark.parametrize(
    ("annotations", "managers", "whose"),
    [
        ({}, [], Claim.FOREIGN),
        ({CORDON: "pitstop:r"}, [], Claim.OURS),
        ({CORDON: "pitstop:r2"}, [], Claim.FOREIGN),
        ({CORDON: "pitstop:r"}, [managed("pitstop")], Claim.OURS),
        ({CORDON: "pitstop:r"}, [managed("kubectl-cordon")], Claim.FOREIGN),
        ({CORDON: "pitstop:r"}, [managed("pitstop"), managed("kubelet", "f:podCIDR")], Claim.OURS),
        ({}, [managed("pitstop")], Claim.FOREIGN),
    ],
)
def test_whose_a_cordon_is(
    annotations: dict[str, str], managers: list[dict[str, Any]], whose: Claim
) -> None:
    node = read_node("get nodes", raw_node(annotations=annotations, managedFields=managers))
    assert claim(node, "r") is whose
    assert claim(replace(node, unschedulable=False), "r") is Claim.NOBODY


@pytest.mark.parametrize(
    ("status", "ready", "state"),
    [("True", True, "Ready"), ("False", False, "NotReady"), ("Unknown", None, "Unknown")],
)
def test_a_node_in_the_words_of_kubectl(status: str, ready: bool | None, state: str) -> None:
    data = raw_node()
    data["status"]["conditions"] = [
        {"type": "Ready", "status": status},
        {"type": CONDITION, "status": "True", "message": "pitstop:r"},
    ]
    node = read_node("get nodes", data)
    assert (node.ready, node.state) == (ready, f"{state},SchedulingDisabled")
    assert node.condition == "pitstop:r"


def test_a_node_that_says_nothing_of_itself_is_not_ready() -> None:
    data = raw_node()
    data["status"] = {}
    assert read_node("get nodes", data).ready is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "Status"}, "kind: 'Status' instead of 'Node'"),
        ({"metadata": {}}, r"metadata\.name: is missing"),
        ({"spec": {"unschedulable": "yes"}}, r"spec\.unschedulable: 'yes' is neither"),
        (
            {"status": {"conditions": [{"type": "Ready"}]}},
            r"status\.conditions\[0\]\.status: is missing",
        ),
        ({"spec": None}, "spec: is missing"),
    ],
)
def test_a_node_that_is_not_understood(change: dict[str, Any], words: str) -> None:
    with pytest.raises(NotUnderstood, match=rf"get nodes: {words}"):
        read_node("get nodes", {**raw_node(), **change})


# --- what holds a pod


def test_what_keeps_a_pod_there_is_said() -> None:
    node = read_node("get nodes", raw_node())
    lost = replace(node, ready=None)
    pod = one(raw())
    ending = replace(pod, ending=1000)
    held = replace(ending, finalizers=("a/b",))
    for found, where, now, words in (
        (pod, node, 0, "not tried yet"),
        (ending, node, 940, "it is ending, and has until 1970-01-01 00:16:40 UTC"),
        (ending, node, 1010, "it is ending"),
        (ending, node, 1500, "stuck in Terminating, its time was over at 1970-01-01 00:16:40"),
        (ending, node, 1500, "UTC: its containers have not ended"),
        (held, node, 1500, "held by finalizers a/b"),
        (ending, lost, 1500, "the kubelet of gpu001 does not report"),
    ):
        assert words in held_by(found, where, now)
    assert held_by(pod, node, 0, "budget llm") == "budget llm"
    many = [replace(pod, name=f"p{n}", uid=str(n)) for n in range(14)]
    assert "and 4 more" in summary(many, node, 0, {"3": "why"})
    assert "inf/p3: why" in summary(many, node, 0, {"3": "why"})


# --- site.yaml


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({}, "exactly one of kubeconfig and in_cluster"),
        ({"kubeconfig": "/k", "in_cluster": True}, "exactly one"),
        ({"kubeconfig": "k"}, "kubeconfig"),
        ({"in_cluster": True, "context": "a"}, "context is one of a kubeconfig"),
        ({"in_cluster": True, "grace_period": 0}, "grace_period"),
        ({"in_cluster": True, "eviction_deadline": 0}, "eviction_deadline"),
        ({"in_cluster": True, "force": True}, "force"),
    ],
)
def test_a_spec_that_is_refused(given_: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        KubernetesSpec(kind="kubernetes", **given_)


def test_nothing_is_lost_by_default() -> None:
    spec = KubernetesSpec(kind="kubernetes", in_cluster=True)
    assert (spec.allow_empty_dir, spec.allow_shared_memory, spec.grace_period) == (
        False,
        False,
        None,
    )
