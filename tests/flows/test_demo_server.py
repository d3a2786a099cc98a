"""The demo's server as the demo runs it: a deployed release, the real model, real requests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pitstop.demo import client as demo_client
from pitstop.demo.client import DemoClient, DemoError, SessionLost
from pitstop.demo.model import activate, deploy_release, model_file
from pitstop.demo.server import MAX_BODY, App, DemoServer

DEADLINE_S = 60.0
LONG = {"prompt": "Once upon a time there was a", "max_tokens": 60}
CONTEXT = 128
"""Tokens. Short, so that a conversation that exceeds it is soon there."""


class Running:
    """A server process, and requests to it without any retry."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: Any = None) -> tuple[int, dict[str, Any], dict[str, str]]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(self.url + path, data, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer), dict(answer.headers)
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, json.load(problem), dict(problem.headers)

    def in_flight(self) -> int:
        return int(self.ask("/inflight")[1]["in_flight"])

    def wait_in_flight(self, wanted: int) -> None:
        until(lambda: self.in_flight() == wanted, f"{wanted} requests in flight")

    def raw(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while block := connection.recv(65536):
                answer += block
            return answer


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"never saw {what}"
        time.sleep(0.02)


@contextmanager
def running(root: Path, model: Path, work: Path) -> Iterator[Running]:
    work.mkdir()
    port_file = work / "port"
    leaked, other = os.pipe()
    command = [sys.executable, root / "current" / "server.py", "--model", model]
    with (work / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *map(str, command),
                *("--port", "0", "--port-file", str(port_file)),
                # Two threads that spin until both are there starve on a machine that is busy.
                *("--threads", "1"),
                *("--context", str(CONTEXT)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(other,),
        )
    try:
        until(lambda: port_file.exists() or process.poll() is not None, "the port file")
        assert process.poll() is None, (work / "log").read_text()
        server = Running(process, int(port_file.read_text()))
        DemoClient(server.url, patience=DEADLINE_S)._patiently("GET", "/health")
        yield server
    finally:
        os.close(leaked)
        os.close(other)
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = model_file(tmp_path_factory.mktemp("model"))
    yield path
    path.unlink()  # pytest keeps its directories; 240 MB are too much for that


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    deploy_release(root, "1.0.0")
    activate(root, "1.0.0")
    return root


@pytest.fixture(scope="module")
def shared(root: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(root, model, tmp_path_factory.mktemp("shared") / "server") as server:
        yield server


def test_model_is_checked_and_reused(model: Path) -> None:
    before = model.stat()
    assert model_file(model.parent) == model
    assert model.stat().st_ino == before.st_ino
    assert list(model.parent.iterdir()) == [model]


def test_damaged_model_is_replaced(model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / model.name
    damaged.write_bytes(b"GGUF, but not this one")
    try:
        assert model_file(tmp_path) == damaged
        assert damaged.stat().st_size == model.stat().st_size
        assert list(tmp_path.iterdir()) == [damaged]
    finally:
        damaged.unlink()


def test_releases(tmp_path: Path) -> None:
    first = deploy_release(tmp_path, "1.0.0")
    assert deploy_release(tmp_path, "1.0.0") == first
    deploy_release(tmp_path, "1.1.0")
    with pytest.raises(FileNotFoundError):
        activate(tmp_path, "2.0.0")
    for version in ("1.0.0", "1.1.0"):
        link = activate(tmp_path, version)
        command = [sys.executable, str(link / "server.py"), "--version"]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        assert said == f"pitstop-demo-server {version}\n"
    (first / "server.py").write_text("changed")
    with pytest.raises(FileExistsError):
        deploy_release(tmp_path, "1.0.0")
    with pytest.raises(ValueError, match="not a release"):
        deploy_release(tmp_path, "../1.0.0")
    assert sorted(p.name for p in (tmp_path / "releases").iterdir()) == ["1.0.0", "1.1.0"]


def test_not_ready_before_the_model_answers() -> None:
    app = App("1.0.0")
    with DemoServer("127.0.0.1", 0, app) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.port}"
            for path, body in (("/health", None), ("/v1/completions", b'{"prompt": "x"}')):
                with pytest.raises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(url + path, body, timeout=DEADLINE_S)
                with caught.value as answer:
                    assert answer.code == 503
                    assert answer.headers["Retry-After"] == "1"
        finally:
            server.shutdown()
            thread.join()


def test_health_and_descriptors(shared: Running) -> None:
    status, body, headers = shared.ask("/health")
    pid = shared.process.pid
    assert (status, body) == (200, {"ok": True, "release": "1.0.0", "pid": pid})
    assert headers["Connection"] == "close"
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    others = [x for x in links if not x.startswith("/")]
    # The pipe that this test leaked into it is closed; ours and llama.cpp's listener remain.
    assert len(others) == 2, links
    assert all(x.startswith("socket:") for x in others), links


def test_completion_is_deterministic_whatever_came_before(shared: Running) -> None:
    proof = {"prompt": "The capital of France is", "max_tokens": 16}
    status, first, _ = shared.ask("/v1/completions", proof)
    assert status == 200
    assert first["text"].strip()
    assert first["release"] == "1.0.0"
    other = shared.ask("/v1/completions", {"prompt": "The capital of France was", "max_tokens": 9})
    assert other[1]["text"] != first["text"]
    with ThreadPoolExecutor(3) as pool:
        again = list(pool.map(lambda _: shared.ask("/v1/completions", proof)[1], range(3)))
    assert again == [first] * 3


def test_sessions_count_and_remember(shared: Running) -> None:
    client = DemoClient(shared.url)
    assert client.session("anna") is None
    answers = [client.turn("anna", text, 16) for text in demo_client.TEXTS]
    assert [answer["turn"] for answer in answers] == [1, 2, 3, 4]
    assert all(answer["reply"] for answer in answers)
    known = client.session("anna")
    assert known is not None
    assert (known["turn"], known["reply"]) == (4, answers[-1]["reply"])
    # The context is used: the same words in another conversation get another reply.
    alone = client.turn("alone", demo_client.TEXTS[-1], 16)
    assert alone["turn"] == 1
    assert alone["reply"] != answers[-1]["reply"]
    assert DemoClient(shared.url).turn("anna", "And goodbye!", 8)["turn"] == 5


def test_long_conversation_stays_within_the_context(shared: Running) -> None:
    client = DemoClient(shared.url)
    long_text = "Tell me about the sea. " * 15  # about 100 tokens: three of them are too many
    assert [client.turn("long", long_text, 2)["turn"] for _ in range(4)] == [1, 2, 3, 4]
    # 2000 characters that are a token or more each cannot be helped by forgetting.
    status, body, _ = shared.ask("/v1/sessions/long/turns", {"text": "\U0001f600" * 2000})
    assert status == 400, body
    assert "context size" in body["error"]
    assert shared.ask("/v1/sessions/long")[1]["turn"] == 4


def test_client_notices_a_lost_conversation(shared: Running) -> None:
    client = DemoClient(shared.url)
    client.turn("twice", "Hello", 4)
    DemoClient(shared.url).turn("twice", "Somebody else", 4)
    with pytest.raises(SessionLost):
        client.turn("twice", "Hello again", 4)


@contextmanager
def cutting_relay(target: int, forward: bool) -> Iterator[int]:
    """Relay to the server, but reset the first POST: before passing it on, or after its answer."""
    cut = threading.Event()

    def relay(client: socket.socket) -> None:
        with client, client.makefile("rb") as source:
            head = b"".join(iter(source.readline, b"\r\n"))
            sizes = [x.split(b":")[1] for x in head.splitlines() if x.startswith(b"Content-Length")]
            request = head + b"\r\n" + source.read(int(sizes[0]) if sizes else 0)
            doomed = request.startswith(b"POST") and not cut.is_set()
            answer = b""
            if forward or not doomed:
                with socket.create_connection(("127.0.0.1", target)) as server:
                    server.sendall(request)
                    answer = b"".join(iter(lambda: server.recv(65536), b""))
            if doomed:
                cut.set()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            else:
                client.sendall(answer)

    def accept(listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            if stop.is_set():
                client.close()
                return
            relay(client)

    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
            assert cut.is_set()
        finally:
            stop.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join()


@pytest.mark.parametrize("forward", [False, True])
def test_broken_connection_does_not_repeat_a_turn(shared: Running, forward: bool) -> None:
    name = f"cut-{forward}"
    with cutting_relay(shared.port, forward) as port:
        client = DemoClient(f"http://127.0.0.1:{port}")
        answers = [client.turn(name, text, 4) for text in demo_client.TEXTS[:2]]
    assert [answer["turn"] for answer in answers] == [1, 2]
    assert client.retries == (0 if forward else 1)
    assert shared.ask(f"/v1/sessions/{name}")[1]["turn"] == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/completions", b"{not json", 400, "not valid JSON"),
        ("/v1/completions", b"\xff\xfe\xfd", 400, "not valid JSON"),
        ("/v1/completions", b"[" * 200_000, 400, "not valid JSON"),
        ("/v1/completions", b"[1]", 400, "JSON object"),
        ("/v1/completions", {}, 400, "'prompt'"),
        ("/v1/completions", {"prompt": ["x"]}, 400, "'prompt'"),
        ("/v1/completions", b'{"prompt": "\\ud800"}', 400, "Unicode"),
        ("/v1/completions", {"prompt": "x" * 5000}, 400, "longer than"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "'max_tokens'"),
        ("/v1/completions", {"prompt": "x", "max_tokens": True}, 400, "'max_tokens'"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1e9}, 400, "'max_tokens'"),
        ("/v1/completions", b" " * (MAX_BODY + 1), 413, "larger than"),
        ("/v1/sessions/x/turns", {"max_tokens": 4}, 400, "'text'"),
        ("/v1/sessions/..%2fx/turns", {"text": "x"}, 404, "no such"),
        ("/v1/sessions/nobody", None, 404, "no session nobody"),
        ("/elsewhere", None, 404, "no such"),
    ],
)
def test_hostile_requests(shared: Running, path: str, body: Any, status: int, says: str) -> None:
    got, answer, _ = shared.ask(path, body)
    assert got == status
    assert says in answer["error"]
    assert shared.ask("/health")[0] == 200
    assert shared.in_flight() == 0


@pytest.mark.parametrize(
    ("data", "first_line"),
    [
        (b"rubbish\r\n\r\n", b""),
        (b"PUT /health HTTP/1.1\r\n\r\n", b"HTTP/1.1 501"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"HTTP/1.1 400"),
        (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 411"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{", b""),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.1 414"),
    ],
)
def test_hostile_http(shared: Running, data: bytes, first_line: bytes) -> None:
    assert shared.raw(data).startswith(first_line)
    assert shared.ask("/health")[0] == 200


def test_client_that_vanishes(shared: Running) -> None:
    body = json.dumps({"text": "Tell me a long story.", "max_tokens": 48}).encode()
    head = f"POST /v1/sessions/gone/turns HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", shared.port), timeout=DEADLINE_S)
    with connection:
        connection.sendall(head.encode() + body)
        shared.wait_in_flight(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
    shared.wait_in_flight(0)
    assert shared.ask("/health")[0] == 200
    assert shared.ask("/v1/sessions/gone")[1]["turn"] == 1


def test_drain_lets_the_running_request_finish(shared: Running) -> None:
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(shared.ask, "/v1/completions", LONG)
        shared.wait_in_flight(1)
        try:
            drained = shared.ask("/admin/drain", {})[1]
            assert drained == {"in_flight": 1, "admission": "closed"}
            for path, body in (("/v1/completions", LONG), ("/v1/sessions/d/turns", {"text": "x"})):
                status, answer, headers = shared.ask(path, body)
                assert (status, answer["error"]) == (503, "admission is closed")
                assert headers["Retry-After"] == "1"
            assert shared.ask("/health")[0] == 200
            metrics = urllib.request.urlopen(f"{shared.url}/metrics", timeout=DEADLINE_S)
            with metrics:
                lines = metrics.read().decode().splitlines()
            assert "pitstop_demo_requests_in_flight 1" in lines
            assert "pitstop_demo_admission 0" in lines
            assert not slow.done()
            impatient = DemoClient(shared.url, patience=1.5)
            with pytest.raises(DemoError, match="admission is closed"):
                impatient.completion("x")
            assert impatient.retries == 1
            waiting = pool.submit(DemoClient(shared.url).turn, "patient", "Hello", 4)
            status, answer, _ = slow.result()
            assert status == 200
            assert len(answer["text"]) > 100
            shared.wait_in_flight(0)
            assert not waiting.done()
        finally:
            opened = shared.ask("/admin/undrain", {})[1]
        assert opened["admission"] == "open"
        assert waiting.result()["turn"] == 1


def test_client_program(shared: Running) -> None:
    command = [sys.executable, "-m", "pitstop.demo.client", shared.url, "--session", "program"]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9"}  # must not be asked
    said = subprocess.run(
        [*command, "--turns", "2", "--max-tokens", "4"],
        capture_output=True,
        check=True,
        text=True,
        env=environment,
    ).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["turn"] for line in lines] == [1, 2]
    assert [line["retries"] for line in lines] == [0, 0]


def test_sigterm_finishes_what_runs(root: Path, model: Path, tmp_path: Path) -> None:
    with running(root, model, tmp_path / "server") as server, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.ask, "/v1/completions", LONG)
        server.wait_in_flight(1)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.ask("/inflight")[1]["admission"] == "closed", "a closed door")
        assert server.ask("/v1/completions", LONG)[0] == 503
        status, answer, _ = slow.result()
        assert status == 200
        assert len(answer["text"]) > 100
        assert server.process.wait(DEADLINE_S) == 0
        assert "stopped" in (tmp_path / "server" / "log").read_text()


def test_model_that_cannot_be_loaded(root: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\0\0\0\0")
    command = [sys.executable, str(root / "current" / "server.py"), "--port", "0"]
    done = subprocess.run([*command, "--model", str(bad)], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"cannot load {bad}" in done.stderr
