"""Leases: silence is noticed and said, and nothing is undone for it."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pitstop.node.lease import Lease
from tests.rigs.engine import Engine, copies_of, state_letter, until
from tests.rigs.forked import Forked

RUN = "run1"
WATCHER = ("-m", "pitstop.node.main", "lease-watch", RUN)


def order(seconds: float = 600, alarm: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "run": RUN,
        "controller": "me@there",
        "node": "gpu1",
        "seconds": seconds,
        "alarm": alarm,
    }


def apart(work: Callable[[], object]) -> None:
    """Do what starts a watcher in a process that ends, as a controller's request is."""

    def run() -> int:
        work()
        return 0

    assert Forked(run).wait() == 0


def begin(lease: Lease, wanted: dict[str, Any]) -> None:
    apart(lambda: lease.begin(wanted))


def look(engine: Engine) -> dict[str, Any] | None:
    return Lease(engine.state, RUN).look()


def writes(path: Path) -> dict[str, Any]:
    """An alarm that appends what it is told to a file, one line each."""
    line = f'echo "$PITSTOP_ALARM" >> {shlex.quote(str(path))}'
    return {"command": ["sh", "-c", line], "http": None, "timeout": 20}


@pytest.fixture
def lease(engine: Engine) -> Iterator[Lease]:
    found = Lease(engine.state, RUN)
    yield found
    found.end()


def test_silence_raises_the_alarm_once(engine: Engine, lease: Lease, tmp_path: Path) -> None:
    alarm = tmp_path / "alarm"
    begin(lease, order(0.5, writes(alarm)))
    until(lambda: (look(engine) or {}).get("alarm"), "the alarm is noted")
    told = json.loads(alarm.read_text())
    assert (told["run"], told["controller"], told["silent_seconds"]) == (RUN, "me@there", 0.5)
    # As the site calls it, which is what the command takes; the host may have another name.
    assert told["node"] == "gpu1"
    assert told["message"].endswith("pitstop reconcile gpu1")
    found = look(engine)
    assert found is not None
    assert found["lapsed"] and found["alarm"]["failure"] == ""
    # Whoever looks later raises no second one.
    done = engine.cli("leases")
    assert (done.returncode, json.loads(done.stdout)[0]["run"]) == (4, RUN)
    assert len(alarm.read_text().splitlines()) == 1
    until(lambda: not copies_of(*WATCHER), "its watcher has ended")


def test_contact_keeps_it_and_a_second_silence_is_a_second_alarm(
    engine: Engine, lease: Lease, tmp_path: Path
) -> None:
    alarm = tmp_path / "alarm"
    begin(lease, order(600, writes(alarm)))
    [watcher] = until(lambda: copies_of(*WATCHER), "somebody watches")
    begin(lease, order(600, writes(alarm)))
    assert copies_of(*WATCHER) == [watcher]
    assert engine.cli("leases").returncode == 0
    for number in (1, 2):
        lease.end()
        begin(lease, order(0.3, writes(alarm)))
        until(lambda: (look(engine) or {}).get("alarm"), "the alarm is noted")
        assert len(alarm.read_text().splitlines()) == number


def test_its_end_ends_the_watcher(engine: Engine, lease: Lease, tmp_path: Path) -> None:
    begin(lease, order(600, writes(tmp_path / "alarm")))
    [watcher] = until(lambda: copies_of(*WATCHER), "somebody watches")
    lease.end()
    until(lambda: state_letter(watcher) in "XZ", "the watcher has ended")
    assert look(engine) is None
    assert not (tmp_path / "alarm").exists()
    # Who still waits for the run's work begins no lease anew.
    lease.renew(order(0.1))
    assert look(engine) is None


def test_operations_of_a_run_renew_it(engine: Engine, lease: Lease) -> None:
    command = {"command": ["true"], "timeout": 60}
    apart(lambda: engine.rpc("op.start", id="a", kind="execute", arguments=command, lease=order()))
    before = look(engine)
    assert before is not None
    engine.rpc("op.wait", id="a", seconds=30, lease=order())
    assert len(until(lambda: copies_of(*WATCHER), "somebody watches")) == 1
    after = look(engine)
    assert after is not None
    assert after["time"] > before["time"]
    [listed] = engine.rpc("leases")["leases"]
    assert listed["run"] == RUN
    engine.rpc("lease.end", run=RUN)
    engine.rpc("op.wait", id="a", seconds=30, lease=order())
    engine.rpc("ping", lease=order())
    assert engine.rpc("leases") == {"leases": []}


def test_after_a_reboot_it_has_its_full_length_again(engine: Engine, lease: Lease) -> None:
    begin(lease, order(10.0**6))
    path = engine.root / "leases" / f"{RUN}.json"
    data = json.loads(path.read_text())
    # As it was written in another boot, whose clock had come far or not far.
    for renewed in (0.0, 10.0**9):
        path.write_text(json.dumps({**data, "boot_id": "another", "renewed": renewed}))
        found = look(engine)
        assert found is not None
        assert 0 < found["seconds_left"] < 10.0**6
    path.write_text(json.dumps({**data, "boot_id": "another", "seconds": 1}))
    found = look(engine)
    assert found is not None and found["lapsed"]


def test_alarm_that_fails_is_noted_as_failed(engine: Engine, lease: Lease) -> None:
    begin(lease, order(0.2, {"command": ["false"], "http": None, "timeout": 20}))
    found = until(lambda: (look(engine) or {}).get("alarm"), "the alarm is noted")
    assert "exit status 1" in found["failure"]


def test_alarm_by_http_says_what_it_is_about(engine: Engine, lease: Lease) -> None:
    bodies: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.handle_request).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        begin(lease, order(0.2, {"http": {"url": url, "method": "POST"}, "command": None}))
        found = until(lambda: (look(engine) or {}).get("alarm"), "the alarm is noted")
    assert found["failure"] == ""
    assert bodies[0]["run"] == RUN
