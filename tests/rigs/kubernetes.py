"""An EMULATOR of the Kubernetes API server, and of as much of a cluster as a drain can see.

No etcd, no controllers, no kubelet: objects are in memory and answers are made here, after the
API's documentation and the sources of kube-apiserver. What is real is the protocol: the
official client talks HTTP (or TLS) to it over loopback. It knows nodes, pods, events and
PodDisruptionBudgets; resourceVersion and 409; merge and strategic merge patch; field managers
of `spec.unschedulable`; lists in pages with continue tokens that expire (410); evictions with
dry run, uid preconditions and budgets (429, Retry-After); deletionTimestamp, grace and
finalizers; RBAC rules; and answers that no API server would give. No watch: pitstop polls.
"""

from __future__ import annotations

import copy
import http.server
import json
import re
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

TOKEN = "eyJ.a-bearer-token.5Xq"  # noqa: S105  # of the emulator alone
SPACE = "inf"
NODE = "gpu001"

_PATHS = (
    r"/api/v1/(?P<resource>nodes)/(?P<name>[^/]+)(?:/(?P<sub>status))?",
    r"/api/v1/(?P<resource>pods)",
    r"/api/v1/namespaces/(?P<space>[^/]+)/(?P<resource>pods|events)",
    r"/api/v1/namespaces/(?P<space>[^/]+)/(?P<resource>pods)/(?P<name>[^/]+)/(?P<sub>eviction)",
)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Request:
    """A request as the server saw it."""

    verb: str
    resource: str
    space: str
    name: str
    query: Mapping[str, str]
    body: Any
    content_type: str

    @property
    def dry(self) -> bool:
        return self.query.get("dryRun") == "All"

    @property
    def rule(self) -> tuple[str, str, str]:
        """What RBAC has to allow: verb, resource, and the namespace of a namespaced create."""
        return (self.verb, self.resource, self.space if self.resource == "events" else "")


@dataclass(frozen=True)
class Reply:
    """An answer in place of the API's own; a body of None drops the connection."""

    status: int = 200
    body: bytes | None = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


class ApiError(Exception):
    def __init__(self, status: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = details.pop("retry_after", None)
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": status,
        }


class Cluster:
    """The objects, and how they behave. All of it under one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 1000
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.budgets: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.pages: dict[str, list[dict[str, Any]]] = {}
        self.faults: list[Callable[[Request], Reply | None]] = []
        self.rules: frozenset[tuple[str, str, str]] | None = None
        self.retry_after: int | None = None
        self.ending_takes = 0.05
        self._ends: dict[str, float] = {}

    # --- what a test sets up

    def add_node(self, name: str = NODE, **spec: Any) -> dict[str, Any]:
        node: dict[str, Any] = {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": name, "uid": str(uuid.uuid4()), "annotations": {"theirs": "x"}},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        self.nodes[name] = node
        return self.touch(node)

    def add_pod(self, name: str, node: str = NODE, **given: Any) -> dict[str, Any]:
        """Add a running pod of a ReplicaSet; `given` replaces parts of it."""
        controller = given.get("owner", ("ReplicaSet", name.rpartition("-")[0] or name))
        pod: dict[str, Any] = {
            "metadata": {
                "name": name,
                "namespace": given.get("space", SPACE),
                "uid": str(uuid.uuid4()),
                "labels": given.get("labels", {}),
                "annotations": given.get("annotations", {}),
                "finalizers": given.get("finalizers", []),
            },
            "spec": {
                "nodeName": node,
                "nodeSelector": given.get("selector", {}),
                "terminationGracePeriodSeconds": 30,
                "containers": [
                    {
                        "name": "main",
                        "command": given.get("command", ["serve"]),
                        "resources": {"limits": given.get("limits", {})},
                        "volumeMounts": given.get("mounts", []),
                    }
                ],
                "volumes": given.get("volumes", []),
            },
            "status": {
                "phase": given.get("phase", "Running"),
                "conditions": [{"type": "Ready", "status": given.get("ready", "True")}],
            },
        }
        if controller:
            kind, of = controller
            owner = {"kind": kind, "name": of, "uid": f"uid-{of}", "controller": True}
            pod["metadata"]["ownerReferences"] = [owner]
        self.pods[pod["metadata"]["namespace"], name] = pod
        return self.touch(pod)

    def add_budget(self, name: str, labels: Mapping[str, str], at_least: int) -> dict[str, Any]:
        budget = {"name": name, "labels": dict(labels), "at_least": at_least}
        self.budgets.append(budget)
        return budget

    def touch(self, item: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        return item

    def cordon(self, node: str, on: bool, manager: str) -> None:
        """Cordon or uncordon as somebody else does, through the same patch."""
        body = {"spec": {"unschedulable": True if on else None}}
        self._merge_node(self.nodes[node], body, manager)

    def names(self) -> list[str]:
        with self.lock:
            self._tick()
            return sorted(name for _, name in self.pods)

    def seen(self, verb: str, resource: str) -> list[Request]:
        return [r for r in self.requests if (r.verb, r.resource) == (verb, resource)]

    @property
    def evicted(self) -> list[str]:
        """Names of the pods whose eviction was asked for in earnest."""
        return [r.name for r in self.seen("create", "pods/eviction") if not r.dry]

    # --- what the server does

    def answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self._tick()
            self._authorize(request)
            if request.resource == "nodes" and request.verb == "get":
                return 200, self._node(request.name)
            if request.resource in ("nodes", "nodes/status") and request.verb == "patch":
                return 200, self._patch(request)
            if request.resource == "pods" and request.verb == "list":
                return 200, self._list(request)
            if request.resource == "pods/eviction" and request.verb == "create":
                return 201, self._evict(request)
            if request.resource == "events" and request.verb == "create":
                return 201, self._event(request)
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method")

    def _authorize(self, request: Request) -> None:
        if self.rules is None or request.rule in self.rules:
            return
        where = f'in the namespace "{request.space}"' if request.space else "at the cluster scope"
        user = 'User "system:serviceaccount:pitstop:pitstop"'
        message = (
            f"{request.resource.partition('/')[0]} is forbidden: {user} cannot {request.verb} "
            f'resource "{request.resource}" in API group "" {where}'
        )
        raise ApiError(403, "Forbidden", message)

    def _node(self, name: str) -> dict[str, Any]:
        if name not in self.nodes:
            raise ApiError(404, "NotFound", f'nodes "{name}" not found')
        return self.nodes[name]

    def _patch(self, request: Request) -> dict[str, Any]:
        node = self._node(request.name)
        body = request.body
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, node["metadata"]["resourceVersion"]):
            raise ApiError(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on nodes "{request.name}": the object has been '
                "modified; please apply your changes to the latest version and try again",
            )
        if request.resource == "nodes/status":
            if request.content_type != "application/strategic-merge-patch+json":
                raise ApiError(415, "UnsupportedMediaType", request.content_type)
            self._merge_conditions(node, body["status"]["conditions"])
        elif request.content_type == "application/merge-patch+json":
            self._merge_node(node, body, request.query.get("fieldManager", "client"))
        else:
            raise ApiError(415, "UnsupportedMediaType", request.content_type)
        return self.touch(node)

    def _merge_conditions(self, node: dict[str, Any], changes: list[dict[str, Any]]) -> None:
        """Conditions are a list with the merge key `type` (patchMergeKey in the API's types)."""
        conditions = node["status"]["conditions"]
        for change in changes:
            for name in ("lastTransitionTime", "lastHeartbeatTime"):
                if name in change and not _MOMENT.fullmatch(change[name]):
                    raise ApiError(400, "BadRequest", f"{change[name]!r} is no RFC 3339 time")
            conditions[:] = [c for c in conditions if c["type"] != change["type"]]
            if change.get("$patch") != "delete":
                conditions.append(change)

    def _merge_node(self, node: dict[str, Any], body: dict[str, Any], manager: str) -> None:
        """Merge as RFC 7386 says, and record who has changed `spec.unschedulable`."""
        before = node["spec"].get("unschedulable")
        body = copy.deepcopy(body)
        body.get("metadata", {}).pop("resourceVersion", None)
        _merge(node, body)
        after = node["spec"].get("unschedulable")
        if after != before:
            entry = {
                "manager": manager,
                "operation": "Update",
                "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
            }
            node["metadata"]["managedFields"] = [entry] if after is not None else []
        self.touch(node)

    def _list(self, request: Request) -> dict[str, Any]:
        token = request.query.get("continue", "")
        if token:
            if token not in self.pages:
                raise ApiError(410, "Expired", "The provided continue parameter is too old")
            items = self.pages.pop(token)
        else:
            selected = re.fullmatch(
                r"spec\.nodeName=([a-z0-9.-]+)",
                request.query.get("fieldSelector", "spec.nodeName=*"),
            )
            items = [
                copy.deepcopy(pod)
                for (space, _), pod in sorted(self.pods.items())
                if request.space in ("", space)
                and (selected is None or pod["spec"].get("nodeName") == selected.group(1))
            ]
        limit = int(request.query.get("limit", "0")) or len(items)
        metadata = {"resourceVersion": str(self.version)}
        if len(items) > limit:
            metadata["continue"] = uuid.uuid4().hex
            self.pages[metadata["continue"]] = items[limit:]
        return {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": items[:limit],
        }

    def _evict(self, request: Request) -> dict[str, Any]:
        if request.body.get("kind", "Eviction") != "Eviction":
            raise ApiError(400, "BadRequest", "no Eviction")
        key = (request.space, request.name)
        pod = self.pods.get(key)
        if pod is None:
            raise ApiError(404, "NotFound", f'pods "{request.name}" not found')
        options = request.body.get("deleteOptions", {})
        uid = options.get("preconditions", {}).get("uid")
        if uid not in (None, pod["metadata"]["uid"]):
            raise ApiError(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        self._check_budgets(pod)
        if not request.dry and "deletionTimestamp" not in pod["metadata"]:
            grace = options.get("gracePeriodSeconds", pod["spec"]["terminationGracePeriodSeconds"])
            self.end(pod, grace)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def end(self, pod: dict[str, Any], grace: float = 30) -> None:
        """Delete a pod as the API does: it is marked, and goes once its kubelet says so."""
        until = datetime.fromtimestamp(time.time() + grace, UTC)
        pod["metadata"]["deletionTimestamp"] = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        pod["metadata"]["deletionGracePeriodSeconds"] = int(grace)
        self._ends[pod["metadata"]["uid"]] = time.monotonic() + self.ending_takes
        self.touch(pod)

    def _check_budgets(self, pod: dict[str, Any]) -> None:
        if pod["status"]["phase"] in ("Succeeded", "Failed", "Pending"):
            return
        labels = pod["metadata"]["labels"].items()
        matching = [b for b in self.budgets if b["labels"].items() <= labels]
        if len(matching) > 1:
            message = (
                "This pod has more than one PodDisruptionBudget, which the eviction subresource "
                "does not support."
            )
            raise ApiError(500, "InternalError", message)
        for budget in matching:
            healthy = self._healthy(budget)
            if healthy - 1 < budget["at_least"]:
                raise ApiError(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    causes=[
                        {
                            "reason": "DisruptionBudget",
                            "message": f"The disruption budget {budget['name']} needs "
                            f"{budget['at_least']} healthy pods and has {healthy} currently",
                        }
                    ],
                    retry_after=self.retry_after,
                )

    def _healthy(self, budget: Mapping[str, Any]) -> int:
        return sum(
            budget["labels"].items() <= pod["metadata"]["labels"].items()
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["conditions"][0]["status"] == "True"
            for pod in self.pods.values()
        )

    def _event(self, request: Request) -> dict[str, Any]:
        event: dict[str, Any] = request.body
        for name in ("firstTimestamp", "lastTimestamp"):
            if not _MOMENT.fullmatch(event[name]):
                raise ApiError(400, "BadRequest", f"{event[name]!r} is no RFC 3339 time")
        about = event["involvedObject"]
        if request.space != "default" and about.get("namespace", "") != request.space:
            raise ApiError(422, "Invalid", "involvedObject.namespace: does not match")
        event["metadata"]["name"] = event["metadata"]["generateName"] + uuid.uuid4().hex[:5]
        self.events.append(event)
        return event

    def _tick(self) -> None:
        """Let those pods go whose kubelet has ended them and that nothing holds."""
        for key, pod in list(self.pods.items()):
            ends = self._ends.get(pod["metadata"]["uid"])
            node = self.nodes.get(pod["spec"].get("nodeName", ""), {})
            conditions = node.get("status", {}).get("conditions", [])
            alive = any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
            held = pod["metadata"]["finalizers"] or not alive
            if ends is not None and ends <= time.monotonic() and not held:
                del self.pods[key]


def _merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is one packet: else each waits for the acknowledgement of its head.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    cluster: Cluster

    def do_GET(self) -> None:
        self._serve("get")

    def do_PATCH(self) -> None:
        self._serve("patch")

    def do_POST(self) -> None:
        self._serve("create")

    def do_DELETE(self) -> None:
        self._serve("delete")

    def log_message(self, format: str, *args: Any) -> None:
        """The test knows what was asked; see `Cluster.requests`."""

    def _serve(self, verb: str) -> None:
        request = self._read(verb)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            error = ApiError(401, "Unauthorized", "Unauthorized")
            self._send(Reply(401, json.dumps(error.body).encode()))
            return
        with self.cluster.lock:
            self.cluster.requests.append(request)
            for fault in list(self.cluster.faults):
                reply = fault(request)
                if reply is not None:
                    self._send(reply)
                    return
        try:
            status, body = self.cluster.answer(request)
            self._send(Reply(status, json.dumps(body).encode()))
        except ApiError as error:
            again = error.retry_after
            headers = {} if again is None else {"Retry-After": str(again)}
            self._send(Reply(error.status, json.dumps(error.body).encode(), headers=headers))

    def _read(self, verb: str) -> Request:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        for pattern in _PATHS:
            found = re.fullmatch(pattern, url.path)
            if found is not None:
                break
        else:
            raise AssertionError(f"the emulator does not know {self.path}")
        parts = {key: unquote(value or "") for key, value in found.groupdict("").items()}
        resource = "/".join(filter(None, (parts["resource"], parts.get("sub", ""))))
        return Request(
            verb="list" if verb == "get" and not parts.get("name") else verb,
            resource=resource,
            space=parts.get("space", ""),
            name=parts.get("name", ""),
            query={key: values[0] for key, values in parse_qs(url.query).items()},
            body=body,
            content_type=self.headers.get("Content-Type", ""),
        )

    def _send(self, reply: Reply) -> None:
        if reply.body is None:
            self.close_connection = True
            return
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        length = len(reply.body) if reply.length is None else reply.length
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(reply.body)
        if reply.length is not None:
            self.close_connection = True


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust our certificate hangs up: that is what a test is for."""


@contextmanager
def serving(cluster: Cluster, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Serve a cluster on loopback; gives the address. `tls`: certificate and key."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        # The handshake belongs into the connection's own thread.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(path: Path, server: str, token: str = TOKEN, **cluster: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "lab", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def kube() -> Cluster:
    """An empty cluster with one node."""
    cluster = Cluster()
    cluster.add_node()
    return cluster


@pytest.fixture
def kubeconfig(kube: Cluster, tmp_path: Path) -> Iterator[Path]:
    """The way to it, over HTTP on loopback."""
    with serving(kube) as address:
        yield write_kubeconfig(tmp_path / "kubeconfig", address)
