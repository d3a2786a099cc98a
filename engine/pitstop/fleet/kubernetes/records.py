"""Pods and nodes, from the JSON of the API. What is not understood is an error, never "none"."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pitstop.fleet.kubernetes.errors import NotUnderstood
from pitstop.fleet.kubernetes.fields import Field, FieldError
from pitstop.fleet.kubernetes.groups import OF_A_NODE, REPLICAS, job_by_labels, job_by_owner
from pitstop.fleet.kubernetes.resources import Gpus, gpus_of
from pitstop.model.plain import is_name

T = TypeVar("T")

WORKLOAD = "pitstop.dev/workload"
"""Annotation of a pod: the workload of site.yaml that runs in it, under the launcher."""

EVICT = "pitstop.dev/evict"
"""Annotation of a pod: `allow` is its owner's consent to lose what an eviction loses (data of
emptyDir volumes, a pod that nobody makes again, the progress of a job); `refuse` forbids it."""

CORDON = "pitstop.dev/cordon"
"""Annotation of a node: the run that cordoned it, as `pitstop:<run>`."""

UNSCHEDULABLE_BEFORE = "pitstop.dev/unschedulable-before"
"""Annotation of a node: its `spec.unschedulable` before that cordon."""

CONDITION = "PitstopMaintenance"
"""Condition of a node while a run has it; the message is `pitstop:<run>`."""

MANAGER = "pitstop"
"""Our name as a field manager: by it the API server records which fields we have set."""

_PHASES = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})
_STATUSES = frozenset({"True", "False", "Unknown"})
_HOSTNAME = "kubernetes.io/hostname"
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of a pod: what makes it again."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class LocalVolume:
    """A volume whose data is deleted with its pod.

    Attributes:
        kind: `emptyDir` or `ephemeral` (a generic ephemeral volume).
        in_memory: an emptyDir of medium Memory.
        shared_memory: that, and mounted at /dev/shm and nowhere else.
    """

    name: str
    kind: str
    in_memory: bool = False
    shared_memory: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (" (in memory)" if self.in_memory else "")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod.

    Attributes:
        node: empty while it is not placed.
        owner: None when nothing makes it again.
        mirror: of a static pod, which the kubelet runs whatever the API says.
        ready: None when it does not say.
        ending: once its deletion was asked for: when its grace is over, in seconds since 1970.
        job: what it is one job with; empty when its pods are independent or it is alone.
        job_is_named: by labels of its operator, and not only by a common controller.
        launcher: one of its containers starts pitstop's launcher.
        workloads: their names, as far as they can be read.
        consent: `allow`, `refuse` or empty.
        pinned: its node selector names one node, so that its successor comes to that one too.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    owner: Owner | None
    mirror: bool
    ready: bool | None
    ending: int | None
    finalizers: tuple[str, ...]
    local: tuple[LocalVolume, ...]
    gpus: Gpus
    job: str
    job_is_named: bool
    launcher: bool
    workloads: tuple[str, ...]
    consent: str
    pinned: bool

    @property
    def key(self) -> str:
        """Namespace and name, as people write them."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def of_the_node(self) -> bool:
        """Whether it belongs to the node: a static pod's mirror, or a DaemonSet's."""
        return self.mirror or (self.owner is not None and self.owner.kind in OF_A_NODE)

    @property
    def holds_node(self) -> bool:
        """Whether it is somebody's work that is on its node, or may be."""
        return not self.finished and not self.of_the_node


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node.

    Attributes:
        version: its resourceVersion, to change it only if it is still the one that was read.
        cordon: the annotation of ours; empty without one.
        cordoned_by: field managers that the API server has for `spec.unschedulable`; empty
            where it does not say.
        ready: whether its kubelet says that it works; None when that is not known, which is
            what the control plane writes of a kubelet that does not report.
        condition: the message of our condition; None without one.
    """

    name: str
    uid: str
    version: str
    unschedulable: bool
    cordon: str
    cordoned_by: frozenset[str]
    ready: bool | None
    condition: str | None

    @property
    def state(self) -> str:
        """The state in the words of `kubectl get nodes`."""
        ready = {True: "Ready", False: "NotReady", None: "Unknown"}[self.ready]
        return f"{ready},SchedulingDisabled" if self.unschedulable else ready


def read_node(asked: str, answer: Mapping[str, Any]) -> KubeNode:
    """Read a node.

    Raises:
        NotUnderstood: it is none; the error names what was asked and the field.
    """
    return _read(asked, "", lambda: _node(_of_kind(answer, "Node")))


def read_pods(asked: str, answer: Mapping[str, Any]) -> tuple[tuple[Pod, ...], str]:
    """Read a page of pods; return them and the token of the next page, empty on the last.

    Raises:
        NotUnderstood: it is none; the error names what was asked, the pod and the field.
    """

    def page() -> tuple[list[Field], str]:
        top = _of_kind(answer, "PodList")
        if not isinstance(answer.get("items"), list):
            raise FieldError("items", "is no list")
        more = top["metadata"].get("continue")
        return list(top.each("items")), more.text() if more is not None else ""

    items, more = _read(asked, "", page)
    pods = tuple(_read(asked, _label(item.value), partial(_pod, item)) for item in items)
    return pods, more


def _read(asked: str, which: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except FieldError as error:
        where = f"{which}: " if which else ""
        raise NotUnderstood(asked, f"{where}{error.path}: {error.cause}") from error


def _label(item: Any) -> str:
    """Name a pod that may be anything but one."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(metadata, dict):
        return "a pod without a name"
    return f"pod {metadata.get('namespace', '?')}/{metadata.get('name', '?')}"


def _of_kind(answer: Mapping[str, Any], kind: str) -> Field:
    top = Field(answer, "")
    found = top["kind"].text()
    if found != kind:
        raise FieldError("kind", f"{found[:100]!r} instead of {kind!r}")
    return top


def _texts(field: Field | None) -> dict[str, str]:
    return {} if field is None else field.texts()


# --- nodes


def _node(top: Field) -> KubeNode:
    metadata, spec = top["metadata"], top["spec"]
    unschedulable = spec.get("unschedulable")
    conditions = {
        condition["type"].text(): condition for condition in top["status"].each("conditions")
    }
    ready = conditions.get("Ready")
    ours = conditions.get(CONDITION)
    message = None if ours is None else ours.get("message")
    return KubeNode(
        name=metadata["name"].name(),
        uid=metadata["uid"].name(),
        version=metadata["resourceVersion"].name(),
        unschedulable=False if unschedulable is None else unschedulable.flag(),
        cordon=_texts(metadata.get("annotations")).get(CORDON, ""),
        cordoned_by=frozenset(_managers_of_cordon(metadata)),
        ready=None if ready is None else _status(ready),
        condition=None if ours is None else ("" if message is None else message.text()),
    )


def _managers_of_cordon(metadata: Field) -> Iterable[str]:
    """Go through who has set `spec.unschedulable` ("Server-Side Apply", Field management)."""
    for entry in metadata.each("managedFields"):
        fields = entry.get("fieldsV1")
        spec = None if fields is None else fields.get("f:spec")
        if spec is not None and spec.get("f:unschedulable") is not None:
            yield entry["manager"].text()


def _status(condition: Field) -> bool | None:
    return {"True": True, "False": False, "Unknown": None}[condition["status"].one_of(_STATUSES)]


# --- pods


def _pod(top: Field) -> Pod:
    # The paths in errors begin at the pod: which of the list it was says nothing.
    top = Field(top.value, "")
    metadata, spec, status = top["metadata"], top["spec"], top["status"]
    namespace = metadata["namespace"].name()
    annotations = _texts(metadata.get("annotations"))
    owner = _owner(metadata)
    node = spec.get("nodeName")
    ending = metadata.get("deletionTimestamp")
    job, named = _job(namespace, _texts(metadata.get("labels")), owner)
    launcher, workloads = _workloads(spec, annotations, metadata)
    return Pod(
        namespace=namespace,
        name=metadata["name"].name(),
        uid=metadata["uid"].name(),
        node="" if node is None else node.text(),
        phase=status["phase"].one_of(_PHASES),
        owner=owner,
        mirror=_MIRROR in annotations,
        ready=_ready(status),
        ending=None if ending is None else ending.moment(),
        finalizers=tuple(name.text() for name in metadata.each("finalizers")),
        local=tuple(_local_volumes(spec)),
        gpus=gpus_of(spec),
        job=job,
        job_is_named=named,
        launcher=launcher,
        workloads=workloads,
        consent=_consent(annotations, metadata),
        pinned=_HOSTNAME in _texts(spec.get("nodeSelector")),
    )


def _owner(metadata: Field) -> Owner | None:
    for reference in metadata.each("ownerReferences"):
        controls = reference.get("controller")
        kind = reference["kind"].name()
        # The kubelet's reference to its node is the one thing that marks older mirror pods.
        if (controls is not None and controls.flag()) or kind == "Node":
            return Owner(kind, reference["name"].name())
    return None


def _job(namespace: str, labels: Mapping[str, str], owner: Owner | None) -> tuple[str, bool]:
    named = job_by_labels(namespace, labels)
    if named:
        return named, True
    if owner is None or owner.kind in REPLICAS | OF_A_NODE:
        return "", False
    return job_by_owner(namespace, owner.kind, owner.name), False


def _ready(status: Field) -> bool | None:
    for condition in status.each("conditions"):
        if condition["type"].text() == "Ready":
            return _status(condition)
    return None


def _consent(annotations: Mapping[str, str], metadata: Field) -> str:
    value = annotations.get(EVICT, "")
    if value not in ("", "allow", "refuse"):
        raise metadata["annotations"][EVICT].error(f"{value[:100]!r} is neither allow nor refuse")
    return value


def _local_volumes(spec: Field) -> Iterable[LocalVolume]:
    for volume in spec.each("volumes"):
        name = volume["name"].name()
        if "ephemeral" in volume.value:
            yield LocalVolume(name, "ephemeral")
        elif "emptyDir" in volume.value:
            # `emptyDir: null` is what some tools write for `{}`.
            found = volume.get("emptyDir")
            medium = None if found is None else found.get("medium")
            in_memory = medium is not None and medium.text() == "Memory"
            mounted = set(_mount_paths(spec, name))
            shared = in_memory and mounted == {"/dev/shm"}  # noqa: S108
            yield LocalVolume(name, "emptyDir", in_memory, shared)


def _mount_paths(spec: Field, volume: str) -> Iterable[str]:
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.each(kind):
            for mount in container.each("volumeMounts"):
                if mount["name"].text() == volume:
                    path = mount["mountPath"].text()
                    yield path.rstrip("/") or "/"


# --- pitstop's launcher in a container


def _workloads(
    spec: Field, annotations: Mapping[str, str], metadata: Field
) -> tuple[bool, tuple[str, ...]]:
    """Say whether a launcher runs in a pod, and of which workloads."""
    launcher = False
    names: list[str] = []
    given = annotations.get(WORKLOAD)
    if given is not None:
        if not is_name(given):
            raise metadata["annotations"][WORKLOAD].error(f"{given[:100]!r} is no workload's name")
        launcher = True
        names.append(given)
    for container in spec.each("containers"):
        words = [word.text() for part in ("command", "args") for word in container.each(part)]
        line = launch_line(words)
        launcher = launcher or line is not None
        found = "" if line is None else workload_of(line)
        if found and found not in names:
            names.append(found)
    return launcher, tuple(names)


_SHELL_LINE = re.compile(r"(?:^|[\s/;&|(])pitstop-node\s")


def launch_line(words: Sequence[str]) -> list[str] | None:
    """Return the arguments behind `pitstop-node` of a command that launches a workload.

    A shell's `-c` text is looked into as well. None when nothing of that kind is there.
    """
    words = list(words)
    for number, word in enumerate(words):
        if word.rpartition("/")[2] == "pitstop-node":
            ours = _before_command(words[number + 1 :])
            if "launch" in ours:
                return ours
        elif _SHELL_LINE.search(word):
            inner = launch_line(_split(word))
            if inner is not None:
                return inner
    return None


def workload_of(line: Sequence[str]) -> str:
    """Return the workload that a launch line names; empty when it cannot be read from it."""
    for number, word in enumerate(line):
        name = ""
        if word == "--workload":
            name = line[number + 1] if number + 1 < len(line) else ""
        elif word.startswith("--workload="):
            name = word.partition("=")[2]
        if name:
            # `$NAME` and `$(NAME)` are filled in where the container starts.
            return name if is_name(name) else ""
    return ""


def _before_command(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError:
        # Unbalanced quotes of a script: its words will do, a name with quotes is no name.
        return text.split()
