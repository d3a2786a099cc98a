"""Numbers and answers read from a workload: absent is never zero, and odd is never idle."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.model.errors import DeadlineExceeded, NotReady, PermanentError, TemporaryError
from pitstop.node import answers
from pitstop.node.answers import in_flight, json_field, proof_answer, wait_idle, wait_ready

quick = settings(deadline=None, max_examples=150)
plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


def metric(text: str, name: str = "active") -> float:
    return answers._metric(text, name, "http://x/")


# --- Prometheus text

VLLM = """\
# HELP active Number of requests being run.
# TYPE active gauge
active{engine="0",model_name="m"} 2.0
active{engine="1",model_name="m"} 1.0 1395066363000
active_total 17
inactive 9
  active 100
other{name="active"} 5
"""


def test_all_series_of_a_metric_are_added_up() -> None:
    assert metric(VLLM) == 3
    assert metric(VLLM, "active_total") == 17
    assert metric(VLLM, "inactive") == 9


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("active 0", 0),
        ("active 0.0\n", 0),
        ("active\t4\n", 4),
        ("active  4  170\n", 4),
        ("active{} 4\n", 4),
        ('active {a="b"} 4\n', 4),
        ('active{a="}"} 4\n', 4),
        ('active{a="{} 9"} 4\n', 4),
        ('active{a="\\"} 9"} 4\n', 4),
        ('active{a="\\\\"} 4\n', 4),
        ('active{a="b",} 1e2\n', 100),
        ('active{a="b"} 3 # {trace_id="t"} 0.0 170\n', 3),
        ("active 2\r\nactive 3\r\n", 2 + 3),
    ],
)
def test_forms_of_a_series(text: str, value: float) -> None:
    assert metric(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# active 3\n",
        "active_total 3\n",
        "Active 3\n",
        'x{y="active 3"} 1\n',
        "active:sum 3\n",
        "<html>not found</html>",
    ],
)
def test_an_absent_metric_is_an_error_and_never_zero(text: str) -> None:
    with pytest.raises(PermanentError, match="there is no metric active"):
        metric(text)


@pytest.mark.parametrize(
    "text",
    [
        "active \n",
        "active{}\n",
        "active x\n",
        'active{a="b} 0\n',
        "active{a=b\n",
        "active 1\nactive ?\n",
    ],
)
def test_a_metric_without_a_number_is_an_error(text: str) -> None:
    with pytest.raises(PermanentError, match="no number"):
        metric(text)


@pytest.mark.parametrize("value", ["NaN", "-1", "-0.5", "+Inf", "-Inf"])
def test_what_cannot_be_a_count_is_an_error(value: str) -> None:
    with pytest.raises(PermanentError):
        metric(f"active {value}\n")
    # Nor does it vanish in a sum with others: 1 and -1 are not idle.
    with pytest.raises(PermanentError):
        metric(f'active{{a="1"}} 1\nactive{{a="2"}} {value}\n')


label_values = plain_text.map(
    lambda text: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
)


@quick
@given(st.lists(st.tuples(label_values, st.integers(0, 10**6)), min_size=1, max_size=5))
def test_any_labels(series: list[tuple[str, int]]) -> None:
    text = "".join(f'active{{model="{label}"}} {count}\n' for label, count in series)
    assert metric(text) == sum(count for _label, count in series)


# --- fields of JSON


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ('{"a": 1}', "a", 1),
        ('{"a": {"b": [10, {"c": "x"}]}}', "a.b.1.c", "x"),
        ('[{"a": null}]', "0.a", None),
        ('{"0": 5}', "0", 5),
        ('{"": 5}', "", 5),
    ],
)
def test_paths(text: str, path: str, value: Any) -> None:
    assert json_field(text, path, "s") == value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a": 1}', "b"),
        ('{"a": 1}', "a.b"),
        ('{"a": "text"}', "a.0"),
        ('{"a": [1]}', "a.1"),
        ('{"a": [1]}', "a.x"),
        ('{"a": null}', "a.b"),
        ("not json", "a"),
        ("", "a"),
        ('{"a": 1', "a"),
    ],
)
def test_a_missing_field_is_an_error(text: str, path: str) -> None:
    with pytest.raises(PermanentError, match="no field"):
        json_field(text, path, "s")


@quick
@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=5), st.integers())
def test_a_path_leads_to_what_was_put_there(path: list[str], value: int) -> None:
    data: Any = value
    for part in reversed(path):
        data = {part: data, "other" + part: 0}
    assert json_field(json.dumps(data), ".".join(path), "s") == value


# --- over HTTP


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: list[tuple[int, bytes]]
    seen: list[tuple[str, str, bytes, str]]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.server.seen.append(
            (self.command, self.path, self.rfile.read(length), self.headers.get("X-Key", ""))
        )
        left = self.server.answers
        status, body = left.pop(0) if len(left) > 1 else left[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Not into the output of the tests."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as found:
        found.answers, found.seen = [(200, b"")], []
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def url(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/m"


@pytest.mark.parametrize(
    ("body", "value"), [(b'{"n": 0}', 0), (b'{"n": 3}', 3), (b'{"n": 2.5}', 2.5)]
)
def test_a_gauge_in_json(server: _Server, body: bytes, value: float) -> None:
    server.answers = [(200, body)]
    assert in_flight({"url": url(server), "json_field": "n"}) == value


@pytest.mark.parametrize(
    "body",
    [
        b'{"n": null}',
        b'{"n": false}',
        b'{"n": "0"}',
        b'{"n": []}',
        b'{"n": NaN}',
        b'{"n": -1}',
        b'{"n": Infinity}',
        b'{"n": -Infinity}',
        b'{"n": 1' + b"0" * 400 + b"}",
        b"{}",
        b"",
        b"\xff\xfe",
    ],
)
def test_a_gauge_in_json_that_is_not_a_count_is_an_error(server: _Server, body: bytes) -> None:
    server.answers = [(200, body)]
    with pytest.raises(PermanentError):
        in_flight({"url": url(server), "json_field": "n"})


def test_a_gauge_in_prometheus_text(server: _Server) -> None:
    server.answers = [(200, VLLM.encode())]
    assert in_flight({"url": url(server), "metric": "active"}) == 3


@pytest.mark.parametrize("status", [204, 404, 500, 503])
def test_an_error_page_is_not_zero(server: _Server, status: int) -> None:
    server.answers = [(status, b"" if status == 204 else b'{"n": 0}')]
    with pytest.raises(TemporaryError, match=f"HTTP {status}"):
        in_flight({"url": url(server), "json_field": "n"})


def test_no_server_is_temporary() -> None:
    with pytest.raises(TemporaryError, match="no answer"):
        in_flight({"url": "http://127.0.0.1:9/", "metric": "active"})


def test_waiting_for_idle(server: _Server) -> None:
    server.answers = [(200, b"active 2\n"), (200, b"active 1\n"), (200, b"active 0\n")]
    found = wait_idle({"url": url(server), "metric": "active"}, 30, 0.01)
    assert (found["in_flight_at_start"], found["in_flight_at_end"]) == (2, 0)
    assert len(server.seen) == 3


def test_never_idle_names_the_last_number(server: _Server) -> None:
    server.answers = [(200, b"active 9\n"), (200, b"active 7\n")]
    with pytest.raises(DeadlineExceeded, match="7 requests still in flight"):
        wait_idle({"url": url(server), "metric": "active"}, 0.05, 0.01)


def test_a_gauge_that_vanishes_while_draining_is_an_error(server: _Server) -> None:
    server.answers = [(200, b"active 2\n"), (200, b"restarting\n")]
    with pytest.raises(PermanentError, match="there is no metric"):
        wait_idle({"url": url(server), "metric": "active"}, 30, 0.01)


def test_ready_is_waited_for(server: _Server) -> None:
    server.answers = [(503, b""), (503, b""), (200, b"")]
    wait_ready({"http": {"url": url(server)}, "deadline": 30, "interval": 0.01}, lambda: True)
    assert len(server.seen) == 3


def test_ready_ends_when_the_workload_has(server: _Server) -> None:
    server.answers = [(503, b"")]
    with pytest.raises(NotReady, match="ended; before that: HTTP 503 instead of 200"):
        wait_ready({"http": {"url": url(server)}, "deadline": 30}, lambda: False)


def test_ready_has_a_deadline() -> None:
    with pytest.raises(NotReady, match=r"not ready after 0\.05 s; last: exit status 1"):
        wait_ready({"command": ["false"], "deadline": 0.05, "interval": 0.01}, lambda: True)


def test_a_command_says_ready() -> None:
    wait_ready({"command": ["true"], "deadline": 5}, lambda: False)
    with pytest.raises(NotReady, match="No such file"):
        wait_ready({"command": ["/no/such"], "deadline": 5}, lambda: False)


def test_a_proof_is_asked_as_declared(server: _Server) -> None:
    server.answers = [(201, "ü".encode())]
    probe = {
        "url": url(server),
        "method": "POST",
        "body": "frage ü",
        "headers": {"X-Key": "k"},
        "status": 201,
    }
    assert proof_answer({"http": probe}) == "ü"
    assert server.seen == [("POST", "/m", "frage ü".encode(), "k")]


def test_a_proof_field_does_not_depend_on_the_order_of_keys(server: _Server) -> None:
    server.answers = [
        (200, b'{"id": 1, "out": {"b": 1, "a": [2]}}'),
        (200, b'{"out": {"a": [2], "b": 1}, "id": 2}'),
    ]
    proof = {"http": {"url": url(server)}, "field": "out"}
    assert proof_answer(proof) == proof_answer(proof)


def test_proofs_that_differ_in_bytes_differ(server: _Server) -> None:
    server.answers = [(200, b"\xff"), (200, b"\xfe")]
    proof = {"http": {"url": url(server)}}
    assert proof_answer(proof) != proof_answer(proof)


def test_a_proof_with_another_status_is_an_error(server: _Server) -> None:
    server.answers = [(500, b"x")]
    with pytest.raises(PermanentError, match="HTTP 500"):
        proof_answer({"http": {"url": url(server)}})


def test_proxies_of_the_environment_are_not_asked(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert answers.ask({"url": url(server)}).status == 200
