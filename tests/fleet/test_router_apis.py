"""Routers with an HTTP API, against servers that speak it as it is documented or was seen.

Sources of the shapes: `pitstop.fleet.routers.sglang`, `.vllm_stack`, `.litellm`, `.nginx_plus`.
SGLang's were recorded from sglang-router 0.3.2 and smg 1.13.0.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pitstop.fleet.routers import sglang, vllm_stack
from pitstop.fleet.routers.factory import router_for
from pitstop.fleet.routers.router import CannotCount, NotUnderstood, Router, wait_idle
from pitstop.model.errors import (
    BadInput,
    DeadlineExceeded,
    PermanentError,
    PitstopError,
    Refused,
    TemporaryError,
)
from pitstop.model.router import (
    HttpRouter,
    Litellm,
    NginxPlus,
    RouterSpec,
    SglangGateway,
    VllmStack,
)
from tests.rigs.http_server import Asked, Reply, Served, serve

TOKEN = "s3cret-t0ken"  # noqa: S105  # made up


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return str(path)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "PAUSE", 0.01)
    monkeypatch.setattr(vllm_stack, "PAUSE", 0.01)


# --- SGLang's gateway


class Gateway:
    """A gateway with workers. A removed one drains as long as `draining` is not set."""

    def __init__(self, newer: bool, *workers: str) -> None:
        self.newer = newer
        self.workers: dict[str, dict[str, Any]] = {}
        self.drained = threading.Event()
        self.registered: list[dict[str, Any]] = []
        for url in workers:
            self.add(
                {"url": url, "model_id": "m", "priority": 70, "cost": 2.0, "labels": {"a": "b"}}
            )

    def add(self, spec: dict[str, Any]) -> None:
        identifier = f"id-{len(self.registered)}"
        self.registered.append(spec)
        labels = spec.get("labels", {})
        self.workers[identifier] = {
            "id": identifier,
            "worker_type": "regular",
            **{k: v for k, v in spec.items() if k not in ("labels", "api_key")},
            "is_healthy": True,
            "load": 0,
            **({"labels": labels, "status": "ready"} if self.newer else {"metadata": labels}),
        }

    def __call__(self, asked: Asked) -> Reply:
        for identifier, worker in list(self.workers.items()):
            if worker.get("status") == "draining" and self.drained.is_set():
                del self.workers[identifier]
        if (asked.method, asked.path) == ("GET", "/workers"):
            return 200, {"workers": list(self.workers.values()), "total": len(self.workers)}
        if asked.method == "DELETE":
            identifier = asked.path.rpartition("/")[2]
            if self.newer:
                self.workers[identifier].update(status="draining", is_healthy=False)
            else:
                del self.workers[identifier]
            return 202, {"status": "accepted", "worker_id": identifier}
        if (asked.method, asked.path) == ("POST", "/workers"):
            if any(w["url"] == asked.body["url"] for w in self.workers.values()):
                return 409, {"error": "Worker already exists", "code": "WORKER_ALREADY_EXISTS"}
            self.add(asked.body)
            return 202, {"status": "accepted"}
        return 404, {"error": "not found"}


def sglang_router(gateway: Served, **more: Any) -> Router:
    spec = SglangGateway(kind="sglang-gateway", url=gateway.url, deadline=0.2, **more)
    return router_for("gw", spec)


def idle(asked: Asked) -> Reply:
    return 200, {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}


@pytest.mark.parametrize("newer", [True, False])
def test_sglang_worker_is_taken_off_and_registered_as_it_was(newer: bool) -> None:
    with serve(idle) as worker:
        made = Gateway(newer, worker.url, "http://other:1")
        with serve(made) as gateway, sglang_router(gateway) as router:
            before = router.look(worker.url).before
            seen = wait_idle(router, worker.url, before, 5, 0.01, lambda _t: None)
            assert seen["in_flight_at_end"] == 0
            assert not router.look(worker.url).open
            assert gateway.changes() == [("DELETE", "/workers/id-0", None)]
            made.drained.set()
            assert router.open_admission(worker.url, before) is True
            assert router.look(worker.url).open
    assert made.registered[2] == {
        "url": worker.url,
        "model_id": "m",
        "worker_type": "regular",
        "priority": 70,
        "cost": 2.0,
        "labels": {"a": "b"},
    }


def test_sglang_worker_that_still_drains_is_waited_for_and_named() -> None:
    made = Gateway(True, "http://w:1")
    with serve(made) as gateway, sglang_router(gateway) as router:
        before = router.close_admission("http://w:1")
        with pytest.raises(DeadlineExceeded, match=r"http://w:1 is still draining after 0\.2 s"):
            router.open_admission("http://w:1", before)
        assert not [change for change in gateway.changes() if change[0] == "POST"]


def test_sglang_worker_that_was_not_registered_stays_so() -> None:
    with serve(Gateway(True)) as gateway, sglang_router(gateway) as router:
        before = router.close_admission("http://w:1")
        assert (before.open, before.words) == (False, "not registered")
        assert router.open_admission("http://w:1", before) is False
        assert gateway.changes() == []


def test_sglang_tokens_go_where_they_belong_and_nowhere_else(
    token_file: str, tmp_path: Path
) -> None:
    other = tmp_path / "worker-token"
    other.write_text("for-the-worker\n")
    with serve(idle) as worker:
        made = Gateway(False, worker.url)
        files = {"token_file": token_file, "worker_token_file": str(other)}
        with serve(made) as gateway, sglang_router(gateway, **files) as router:
            before = router.close_admission(worker.url)
            assert router.in_flight(worker.url) == 0
            router.open_admission(worker.url, before)
    assert {asked.token for asked in gateway.asked} == {f"Bearer {TOKEN}"}
    assert {asked.token for asked in worker.asked} == {"Bearer for-the-worker"}
    assert made.registered[1]["api_key"] == "for-the-worker"
    assert "for-the-worker" not in json.dumps(before.to_json())


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/v1/loads", {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 3}]}, 5),
        (
            "/v1/loads",
            {
                "loads": [
                    {"num_running_reqs": 1, "num_waiting_reqs": 0},
                    {"num_running_reqs": 1, "num_waiting_reqs": 1},
                ]
            },
            3,
        ),
        ("/get_load", [{"dp_rank": 0, "num_reqs": 2, "num_waiting_reqs": 1, "num_tokens": 9}], 2),
        ("/v1/loads", {"loads": []}, None),
        ("/v1/loads", {"loads": [{"num_running_reqs": 0}]}, None),
        ("/v1/loads", {"loads": [{"num_running_reqs": -1, "num_waiting_reqs": 1}]}, None),
        ("/v1/loads", {"loads": [{"num_running_reqs": "0", "num_waiting_reqs": 0}]}, None),
        ("/v1/loads", {"aggregate": {}}, None),
        ("/v1/loads", "<html>", None),
        ("/get_load", [], None),
        ("/get_load", [{"num_tokens": 0}], None),
        ("/none", {}, None),
    ],
)
def test_sglang_load_is_read_from_the_worker_without_guessing(
    path: str, body: Any, count: int | None
) -> None:
    def load(asked: Asked) -> Reply:
        return (200, body) if asked.path.split("?")[0] == path else (404, "")

    with serve(load) as worker, sglang_router(worker) as router:
        if count is not None:
            assert router.in_flight(worker.url) == count
            return
        with pytest.raises(PitstopError):
            router.in_flight(worker.url)


# --- vLLM's production stack

BACKENDS = ["http://a:8000", "http://b:8000", "http://c:8000"]


class Stack:
    """A router that works by its file, read anew at each look once it is `awake`."""

    def __init__(self, config: Path, metrics: str = "") -> None:
        self.config = config
        self.used = json.loads(config.read_text())
        self.awake = True
        self.metrics = metrics

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/metrics":
            return 200, self.metrics
        if self.awake:
            self.used = json.loads(self.config.read_text())
        return 200, {"status": "healthy", "dynamic_config": self.used}


@contextmanager
def stack(tmp_path: Path, metrics: str = "", **config: Any) -> Iterator[tuple[Stack, Router]]:
    path = tmp_path / "dynamic.json"
    written = {
        "service_discovery": "static",
        "routing_logic": "roundrobin",
        "static_backends": ",".join(BACKENDS),
        "static_models": "m,m,m2",
        **config,
    }
    path.write_text(json.dumps(written))
    made = Stack(path, metrics)
    with serve(made) as served:
        spec = VllmStack(
            kind="vllm-production-stack", url=served.url, config=str(path), deadline=0.2
        )
        with router_for("stack", spec) as router:
            yield made, router


RUNNING = """\
# HELP vllm:num_requests_running Number of running requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{server="http://a:8000"} 0.0
vllm:num_requests_running{server="http://b:8000"} 3.0
"""


def test_vllm_backend_leaves_the_file_with_its_model_and_comes_back(tmp_path: Path) -> None:
    with stack(tmp_path) as (made, router):
        original = json.loads(made.config.read_text())
        before = router.close_admission(BACKENDS[1])
        assert made.used["static_backends"] == f"{BACKENDS[0]},{BACKENDS[2]}"
        assert made.used["static_models"] == "m,m2"
        assert not router.look(BACKENDS[1]).open
        assert router.close_admission(BACKENDS[1], before) == before
        assert router.open_admission(BACKENDS[1], before) is True
        assert json.loads(made.config.read_text()) == original


def test_vllm_router_that_does_not_read_its_file_is_not_believed(tmp_path: Path) -> None:
    with stack(tmp_path) as (made, router):
        made.awake = False
        before = router.look(BACKENDS[1]).before
        with pytest.raises(DeadlineExceeded, match=r"does not use .*dynamic\.json after 0\.2 s"):
            router.close_admission(BACKENDS[1])
        # The step is tried again once it has read it; what was before is still known.
        made.awake = True
        assert not router.look(BACKENDS[1]).open
        router.close_admission(BACKENDS[1], before)
        assert router.open_admission(BACKENDS[1], before) is True


def test_vllm_in_flight_is_counted_by_the_router_for_each_backend(tmp_path: Path) -> None:
    with stack(tmp_path, RUNNING) as (_, router):
        assert [router.in_flight(url) for url in BACKENDS] == [0, 3, 0]
    with stack(tmp_path, "other 0\n") as (_, router), pytest.raises(NotUnderstood):
        router.in_flight(BACKENDS[0])


def test_vllm_only_backend_and_odd_files_are_refused_and_kept(tmp_path: Path) -> None:
    with stack(tmp_path, static_backends=BACKENDS[0], static_models="m") as (made, router):
        text = made.config.read_text()
        with pytest.raises(Refused, match="only backend"):
            router.close_admission(BACKENDS[0])
        assert made.config.read_text() == text
    unequal = pytest.raises(NotUnderstood, match="3 static_backends, and 2 static_models")
    with stack(tmp_path, static_models="m,m") as (_, router), unequal:
        router.look(BACKENDS[0])
    with stack(tmp_path, static_backends=None) as (_, router), pytest.raises(NotUnderstood):
        router.look(BACKENDS[0])


# --- LiteLLM


class Proxy:
    """A proxy with two deployments of one model, and a wildcard."""

    def __init__(self, key: str = f"Bearer {TOKEN}") -> None:
        self.blocked: dict[str, Any] = {"d1": None, "d2": False, "wild": False}
        self.key = key

    def __call__(self, asked: Asked) -> Reply:
        if asked.token != self.key:
            return 401, {"error": {"message": "Authentication Error", "code": "401"}}
        if asked.path == "/model/info":
            names = {"wild": "openai/*"}
            return 200, {
                "data": [
                    {
                        "model_name": names.get(identifier, "llama"),
                        "litellm_params": {"model": "hosted_vllm/llama"},
                        "model_info": {"id": identifier, "db_model": True, "blocked": blocked},
                    }
                    for identifier, blocked in self.blocked.items()
                ]
            }
        if asked.path in ("/model/block", "/model/unblock"):
            self.blocked[asked.body["model_id"]] = asked.path == "/model/block"
            return 200, {"model_id": asked.body["model_id"]}
        return 404, {}


def litellm(proxy: Served, token_file: str, spreads: float = 0) -> Router:
    spec = Litellm(kind="litellm", url=proxy.url, token_file=token_file, spreads=spreads)
    return router_for("proxy", spec)


def test_litellm_deployment_is_blocked_and_unblocked(token_file: str) -> None:
    with serve(Proxy()) as proxy, litellm(proxy, token_file) as router:
        before = router.close_admission("d1")
        assert not router.look("d1").open
        assert router.look("d2").open
        assert router.open_admission("d1", before) is True
        assert proxy.changes() == [
            ("POST", "/model/block", {"model_id": "d1"}),
            ("POST", "/model/unblock", {"model_id": "d1"}),
        ]
        with pytest.raises(CannotCount):
            router.in_flight("d1")


def test_litellm_idle_counts_only_once_every_process_knows(token_file: str) -> None:
    with serve(Proxy()) as proxy, litellm(proxy, token_file, spreads=0.15) as router:
        before = router.look("d1").before
        seen = wait_idle(router, "d1", before, 5, 0.02, lambda _t: None, lambda: 0)
        assert seen["waited_seconds"] >= 0.15


def test_litellm_wildcard_and_unknown_deployments_are_refused(token_file: str) -> None:
    made = Proxy()
    with serve(made) as proxy, litellm(proxy, token_file) as router:
        with pytest.raises(BadInput, match="wildcard"):
            router.close_admission("wild")
        with pytest.raises(BadInput, match="0 deployments"):
            router.close_admission("d9")
        made.blocked["d2"] = "maybe"
        with pytest.raises(NotUnderstood, match="blocked is 'maybe'"):
            router.close_admission("d2")
        assert proxy.changes() == []


# --- NGINX Plus


class Plus:
    def __init__(self) -> None:
        self.servers = [
            {"id": 0, "server": "10.0.0.1:80", "down": False, "weight": 1},
            {"id": 1, "server": "10.0.0.2:80", "down": False, "drain": True},
            {"id": 7, "server": "10.0.0.3:80"},
        ]

    def __call__(self, asked: Asked) -> Reply:
        base = "/api/9/http/upstreams/be"
        if asked.path == f"{base}/servers":
            return 200, self.servers
        if asked.path == base:
            peers = [{"server": s["server"], "active": s["id"]} for s in self.servers]
            return 200, {"peers": peers, "keepalive": 0, "zone": "be"}
        for server in self.servers:
            if (asked.method, asked.path) == ("PATCH", f"{base}/servers/{server['id']}"):
                server.update(asked.body)
                return 200, server
        return 404, {"error": {"status": 404, "text": "upstream not found"}}


def test_nginx_plus_marks_down_counts_and_leaves_a_foreign_drain() -> None:
    with serve(Plus()) as plus:
        spec = NginxPlus(kind="nginx-plus", url=f"{plus.url}/api/9", upstream="be")
        with router_for("plus", spec) as router:
            before = router.close_admission("10.0.0.3:80")
            assert router.look("10.0.0.3:80").words == "down"
            assert router.in_flight("10.0.0.3:80") == 7
            assert router.open_admission("10.0.0.3:80", before) is True
            drained = router.close_admission("10.0.0.2:80")
            assert (drained.open, drained.words) == (False, "drain")
            with pytest.raises(BadInput, match="0 servers"):
                router.look("10.0.0.4:80")
        assert plus.changes() == [
            ("PATCH", "/api/9/http/upstreams/be/servers/7", {"down": True}),
            ("PATCH", "/api/9/http/upstreams/be/servers/7", {"down": False}),
        ]


# --- any other


class Other:
    def __init__(self) -> None:
        self.on: Any = True
        self.metrics = 'busy{backend="a/b c",x="1"} 2\nbusy{backend="other"} 5\n'

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/metrics":
            return 200, self.metrics
        if asked.path == "/pool/a%2Fb%20c":
            if asked.method == "PUT":
                self.on = asked.body["on"]
                assert asked.body["who"] == "a/b c"
                return 204, ""
            return 200, {"state": {"on": self.on}}
        return 404, {}


def other(served: Served, token_file: str | None = None, **more: Any) -> Router:
    url = served.url + "/pool/{replica}"
    data = {
        "kind": "http",
        "close": {
            "url": url,
            "method": "PUT",
            "body": '{"on": false, "who": "{replica}"}',
            "status": 204,
        },
        "open": {
            "url": url,
            "method": "PUT",
            "body": '{"on": true, "who": "{replica}"}',
            "status": 204,
        },
        "admission": {"url": url, "json_field": "state.on", "open": "true", "closed": "false"},
        "in_flight": {
            "url": f"{served.url}/metrics",
            "metric": "busy",
            "labels": {"backend": "{replica}"},
        },
        "token_file": token_file,
        **more,
    }
    spec: RouterSpec = HttpRouter.model_validate(data)
    return router_for("other", spec)


def test_declared_calls_close_count_and_open() -> None:
    made = Other()
    with serve(made) as served, other(served) as router:
        assert router.in_flight("a/b c") == 2
        before = router.close_admission("a/b c")
        assert made.on is False
        assert router.open_admission("a/b c", before) is True
        made.metrics = 'busy{backend="other"} 5\n'
        with pytest.raises(NotUnderstood, match="no series with"):
            router.in_flight("a/b c")
        made.on = "draining"
        with pytest.raises(NotUnderstood, match="neither 'true' nor 'false'"):
            router.look("a/b c")
        made.on = True
        with pytest.raises(PermanentError, match="HTTP 404"):
            router.look("nobody")


def test_close_that_is_answered_well_and_not_done_is_not_believed() -> None:
    def deaf(asked: Asked) -> Reply:
        return (204, "") if asked.method == "PUT" else (200, {"state": {"on": True}})

    not_done = pytest.raises(TemporaryError, match="is still open")
    with serve(deaf) as served, other(served) as router, not_done:
        router.close_admission("a")


# --- tokens and answers, for all of them


def test_token_follows_no_redirect_and_stands_in_no_error(token_file: str) -> None:
    with (
        serve(lambda _a: (200, {"state": {"on": True}})) as elsewhere,
        serve(lambda _a: (302, f"{elsewhere.url}/x")) as served,
        other(served, token_file) as router,
    ):
        with pytest.raises(PermanentError) as caught:
            router.look("a")
        assert served.asked[0].token == f"Bearer {TOKEN}"
        assert elsewhere.asked == []
    assert TOKEN not in str(caught.value)
    assert "HTTP 302" in caught.value.cause


@pytest.mark.parametrize("content", [None, "", "\nlater\n", "bad\x07token\n"])
def test_token_file_without_a_token_is_named_and_nothing_is_asked(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_text(content)
    with serve(lambda _a: (200, {})) as served, other(served, str(path)) as router:
        with pytest.raises(BadInput) as caught:
            router.look("a")
        assert caught.value.subject == str(path)
        assert served.asked == []


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ((500, "busy"), TemporaryError),
        ((503, "busy"), TemporaryError),
        ((429, "slow down"), TemporaryError),
        ((401, "no"), PermanentError),
        ((404, "no"), PermanentError),
        ((200, "<html>login</html>"), PermanentError),
        ((200, []), PermanentError),
        ((200, {"workers": {}}), PermanentError),
        ((200, {"workers": [{"url": 5}]}), PermanentError),
        ((200, {"workers": [{"url": "http://w:1", "id": "i"}]}), PermanentError),
        ((200, {"workers": [{"url": "http://w:1"}, {"url": "http://w:1/"}]}), PermanentError),
    ],
)
def test_nonsense_is_an_error_and_changes_nothing(reply: Reply, kind: type[PitstopError]) -> None:
    with serve(lambda _a: reply) as gateway, sglang_router(gateway) as router:
        with pytest.raises(kind):
            router.close_admission("http://w:1")
        assert gateway.changes() == []
