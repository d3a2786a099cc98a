"""The requests that pitstop makes of a cluster: each once, with an error that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pitstop.fleet.kubernetes.connection import Connection
from pitstop.fleet.kubernetes.errors import Call, ListExpired, NotTrusted, NotUnderstood, of_status
from pitstop.fleet.kubernetes.records import MANAGER, KubeNode, Pod, read_node, read_pods
from pitstop.model.errors import (
    BadInput,
    ConnectionLost,
    NodeUnreachable,
    PitstopError,
    Unexpected,
)

TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and between two pieces of an answer. Webhooks may take 30 s of it."""

PAGE = 500
"""Pods asked for at once: what kubectl asks for."""

LISTS = 3
"""Times a list is begun anew when it expires while it is read."""

EVENT_NAMESPACE = "default"
"""Where events about nodes are: nodes lie in no namespace, and kubectl looks here."""

# A DNS subdomain (RFC 1123), which is what the API allows. It also goes into a selector.
_NODE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


class Api:
    """A cluster. Not for use by several threads at once.

    Every method raises `PitstopError`: `AccessRefused`, `NotTrusted`, `NodeUnreachable`
    (nothing was sent), `ConnectionLost` (it may have been done), `ApiUnavailable`,
    `NotUnderstood`, and what it names itself.

    Args:
        page: pods asked for at once.
    """

    def __init__(self, connection: Connection, page: int = PAGE) -> None:
        from kubernetes import client

        self._connection = connection
        self._core = client.CoreV1Api(connection.client)
        self._page = page

    def close(self) -> None:
        """Give the connections back."""
        self._connection.client.close()

    def node(self, name: str) -> KubeNode:
        """Return a node.

        Raises:
            NotThere: the cluster has none of that name.
        """
        call = Call("get", "nodes", f"node {_node_name(name)}")
        return read_node(str(call), self._ask(call, lambda: self._core.read_node(name, **_RAW)))

    def pods_on(self, node: str) -> tuple[Pod, ...]:
        """Return all pods that are placed on a node, whatever their state."""
        call = Call("list", "pods", f"on node {_node_name(node)}")
        found = self._list(
            call,
            lambda more: self._core.list_pod_for_all_namespaces(
                field_selector=f"spec.nodeName={node}", limit=self._page, _continue=more, **_RAW
            ),
        )
        for pod in found:
            if pod.node != node:
                raise NotUnderstood(str(call), f"pod {pod.key} is on node {pod.node or 'none'}")
        return found

    def pods_in(self, namespace: str) -> tuple[Pod, ...]:
        """Return all pods of a namespace."""
        return self._list(
            Call("list", "pods", f"in namespace {namespace}"),
            lambda more: self._core.list_namespaced_pod(
                namespace, limit=self._page, _continue=more, **_RAW
            ),
        )

    def change_node(self, node: KubeNode, patch: Mapping[str, Any]) -> KubeNode:
        """Merge into a node (RFC 7386) if it is still the one that was read; return it.

        Raises:
            Conflict: it has changed since.
        """
        metadata = {**patch.get("metadata", {}), "resourceVersion": node.version}
        body = {**patch, "metadata": metadata}
        call = Call("patch", "nodes", f"node {node.name}")
        return read_node(
            str(call),
            self._ask(
                call,
                lambda: self._core.patch_node(
                    node.name,
                    body,
                    field_manager=MANAGER,
                    _content_type="application/merge-patch+json",
                    **_RAW,
                ),
            ),
        )

    def change_condition(self, node: str, condition: Mapping[str, Any]) -> None:
        """Set a condition of a node, or delete it (`$patch: delete`); others stay."""
        # By strategic merge, conditions are merged by their type.
        body = {"status": {"conditions": [dict(condition)]}}
        self._ask(
            Call("patch", "nodes/status", f"node {node}"),
            lambda: self._core.patch_node_status(
                node,
                body,
                field_manager=MANAGER,
                _content_type="application/strategic-merge-patch+json",
                **_RAW,
            ),
        )

    def tell(self, node: KubeNode, reason: str, message: str) -> None:
        """Write an event about a node, for people; the API forgets it after about an hour."""
        from kubernetes import client

        now = datetime.now(UTC)
        event = client.CoreV1Event(
            metadata=client.V1ObjectMeta(generate_name="pitstop-", namespace=EVENT_NAMESPACE),
            involved_object=client.V1ObjectReference(
                kind="Node", api_version="v1", name=node.name, uid=node.uid
            ),
            reason=reason,
            message=message,
            type="Normal",
            source=client.V1EventSource(component=MANAGER),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        )
        self._ask(
            Call("create", "events", f"about node {node.name} in namespace {EVENT_NAMESPACE}"),
            lambda: self._core.create_namespaced_event(
                EVENT_NAMESPACE, event, field_manager=MANAGER, **_RAW
            ),
        )

    def evict(self, pod: Pod, grace: int | None, dry_run: bool) -> None:
        """Ask for the eviction of exactly this pod; it ends later, in its own time.

        Args:
            grace: seconds that it has for it; None leaves that to the pod.
            dry_run: only ask whether it would be done.

        Raises:
            NotThere: it is gone.
            Conflict: it is gone, and another pod has its name.
            BudgetBlocks: a PodDisruptionBudget does not allow it now.
            RequestRefused: the API never will, as with two budgets for one pod.
        """
        from kubernetes import client

        options = client.V1DeleteOptions(
            grace_period_seconds=grace, preconditions=client.V1Preconditions(uid=pod.uid)
        )
        eviction = client.V1Eviction(
            metadata=client.V1ObjectMeta(name=pod.name, namespace=pod.namespace),
            delete_options=options,
        )
        self._ask(
            Call("create", "pods/eviction", f"pod {pod.key}"),
            lambda: self._core.create_namespaced_pod_eviction(
                pod.name, pod.namespace, eviction, dry_run="All" if dry_run else None, **_RAW
            ),
        )

    def _list(self, call: Call, page: Callable[[str | None], Any]) -> tuple[Pod, ...]:
        """Read a list in pages; all pages are of one moment, or it is begun anew."""
        for _ in range(LISTS):
            try:
                return self._pages(call, page)
            except ListExpired as error:
                expired = error
        raise expired

    def _pages(self, call: Call, page: Callable[[str | None], Any]) -> tuple[Pod, ...]:
        found: list[Pod] = []
        more: str | None = None
        while True:
            asked = more
            answer = self._ask(call, partial(page, asked))
            pods, more = read_pods(str(call), answer)
            found += pods
            if not more:
                return tuple(found)
            if more == asked:
                raise NotUnderstood(str(call), "metadata.continue: leads back to the same page")

    def _ask(self, call: Call, request: Callable[[], Any]) -> Mapping[str, Any]:
        """Make a request and return the object that answers it."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            response = request()
            try:
                body = bytes(response.data)
            finally:
                response.release_conn()
        except ApiException as error:
            # Not chained: its text has headers and the body, with whatever is in them.
            raise self._refused(call, error) from None
        except (HTTPError, OSError) as error:
            raise _lost(call, self._connection.server, error) from error
        return _object(call, body, self._connection.without_secrets)

    def _refused(self, call: Call, error: Any) -> PitstopError:
        server, clean = self._connection.server, self._connection.without_secrets
        if not error.status:
            words = clean(str(error.reason))
            if "SSLError" in words:
                hint = "certificate-authority in the kubeconfig, or another server's address?"
                return NotTrusted(str(call), f"TLS with {server}: {words[-300:]}", hint)
            return Unexpected(str(call), words[-300:])
        body = error.body if isinstance(error.body, str) else ""
        headers = error.headers or {}
        return of_status(call, int(error.status), clean(body), headers.get("Retry-After"))


# The answer as it came: the client's models drop what they do not know, and guess the rest.
_RAW: dict[str, Any] = {"_preload_content": False, "_request_timeout": TIMEOUT}


def moment() -> str:
    """Return the present moment as the API writes it (RFC 3339, UTC, whole seconds)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _node_name(name: str) -> str:
    if _NODE_NAME.fullmatch(name) is None:
        raise BadInput("node", f"{name[:100]!r} is no name of a Kubernetes node")
    return name


def _lost(call: Call, server: str, error: Exception) -> PitstopError:
    from urllib3 import exceptions

    words = f"{server}: {error}"[:500]
    if isinstance(error, exceptions.SSLError):
        return NotTrusted(str(call), f"TLS with {words}")
    # Only these are raised before anything is sent.
    before = (exceptions.NewConnectionError, exceptions.ConnectTimeoutError, exceptions.ProxyError)
    if isinstance(error, before):
        return NodeUnreachable(str(call), f"the API does not answer at {words}")
    return ConnectionLost(str(call), f"the connection ended before its answer: {words}")


def _object(call: Call, body: bytes, clean: Callable[[str], str]) -> Mapping[str, Any]:
    text = body.decode("utf-8", errors="backslashreplace")
    try:
        answer = json.loads(text)
    except ValueError:
        begin = " ".join(clean(text[:2000]).split())[:80]
        cause = f"its answer is no JSON: {len(body)} bytes that begin with {begin!r}"
        raise NotUnderstood(str(call), cause) from None
    if not isinstance(answer, dict):
        raise NotUnderstood(str(call), "its answer is no object")
    return answer
