"""One session for all requests: what it keeps apart, and what it does when it is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.demo.setup import node_data
from pitstop.fleet import session as session_module
from pitstop.fleet.node import RemoteNode
from pitstop.fleet.session import Session
from pitstop.fleet.transport import Ended
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from pitstop.model.errors import (
    BadInput,
    ConnectionLost,
    DeadlineExceeded,
    NodeUnreachable,
    PitstopError,
    TemporaryError,
)
from pitstop.model.site import Node
from pitstop.node.calls import CALLS
from tests.rigs.engine import until

ENGINE = f"{sys.executable} -m pitstop.node.main"
SOURCE = Path(__file__).parents[2] / "engine" / "pitstop"
Make = Callable[..., RemoteNode]


class Wrapped:
    """The engine behind a script that notes each start of it, with its PID."""

    def __init__(self, directory: Path, before: str = "", engine: str = ENGINE) -> None:
        self._starts = directory / "starts"
        self.path = directory / "engine"
        self.path.write_text(
            f'#!/bin/sh\necho $$ "$@" >> {self._starts}\n{before}\nexec {engine} "$@"\n'
        )
        self.path.chmod(0o755)

    @property
    def starts(self) -> list[list[str]]:
        """For each start the PID and the arguments."""
        return [line.split() for line in self._starts.read_text().splitlines()]

    @property
    def pid(self) -> int:
        return int(self.starts[-1][0])


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make controllers' views of this machine; all are closed after the test."""
    made: list[RemoteNode] = []

    def build(engine: Wrapped) -> RemoteNode:
        data = {"engine": [str(engine.path)], "state_dir": str(tmp_path / "state")}
        made.append(RemoteNode("here", Node.model_validate(data)))
        return made[-1]

    yield build
    for remote in made:
        remote.close()


# --- one process ---


def test_requests_share_one_process_until_the_connection_is_closed(
    make: Make, tmp_path: Path
) -> None:
    engine = Wrapped(tmp_path)
    remote = make(engine)
    assert remote.ping()["boot_id"] == remote.ping()["boot_id"]
    with pytest.raises(BadInput, match="no such call"):
        remote.call("make.coffee")
    assert remote.call("holder", workload="web") == {"holder": ""}
    assert [start[1:] for start in engine.starts] == [["rpc", "--session"]]
    remote.close()
    assert not Path(f"/proc/{engine.pid}").exists()
    remote.ping()
    assert len(engine.starts) == 2


def test_engine_that_knows_no_sessions_is_asked_by_a_process_each(
    make: Make, tmp_path: Path
) -> None:
    """What an older engine says by itself; found out once for each connection."""
    old = 'test "$2" != --session || set -- rpc'
    engine = Wrapped(tmp_path, old)
    remote = make(engine)
    for _ in range(2):
        assert remote.ping()["boot_id"]
    assert [start[2] for start in engine.starts] == ["--session", "--nonce", "--nonce"]
    remote.close()
    remote.ping()
    assert [start[2] for start in engine.starts[3:]] == ["--session", "--nonce"]


def test_noise_on_stderr_and_stdout_blocks_nothing(make: Make, tmp_path: Path) -> None:
    flood = f"{sys.executable} -c 'print(\"noise \" * 1000000)'"
    remote = make(Wrapped(tmp_path, f"{flood}; {flood} >&2"))
    assert remote.ping()["boot_id"] == remote.ping()["boot_id"]


# --- what ends it ---


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Kill a session's process, and see it gone without reaping it."""
    os.kill(pid, number)
    state = Path(f"/proc/{pid}/stat")
    until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "it is dead")


def test_session_that_died_while_nothing_was_asked_is_begun_again_without_a_word(
    make: Make, tmp_path: Path
) -> None:
    engine = Wrapped(tmp_path)
    remote = make(engine)
    remote.ping()
    kill(engine.pid)
    assert remote.ping()["boot_id"]
    assert len(engine.starts) == 2


def test_session_that_dies_during_a_request_is_no_answer(make: Make, tmp_path: Path) -> None:
    """The request may have been done, so it is not made again by itself."""
    engine = Wrapped(tmp_path, "read word; echo no such luck >&2; exit 9")
    remote = make(engine)
    with pytest.raises(TemporaryError, match=r"exit status 9\): no such luck"):
        remote.ping()
    assert len(engine.starts) == 1


def test_session_whose_answer_is_overdue_is_ended(make: Make, tmp_path: Path) -> None:
    engine = Wrapped(tmp_path, f'test -e {tmp_path}/second || {{ : > "$0".up; exec sleep 1000; }}')
    remote = make(engine)
    with pytest.raises(DeadlineExceeded, match=r"no answer after 0\.5 s"):
        remote.ping(timeout=0.5)
    assert not Path(f"/proc/{engine.pid}").exists()
    (tmp_path / "second").touch()
    assert remote.ping()["boot_id"]


def test_error_that_nobody_foresaw_ends_the_session_and_says_so(make: Make, tmp_path: Path) -> None:
    engine = Wrapped(tmp_path)
    remote = make(engine)
    remote.ping()
    session: Session = remote._session
    with pytest.raises(TemporaryError, match=r"exit status 1\): .*AttributeError: 'list'"):
        session.ask({"call": "ping", "arguments": [1]}, 30)
    assert remote.ping()["boot_id"]
    assert len(engine.starts) == 2


def test_session_that_was_silent_for_long_is_not_relied_on(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "TRUSTED_IDLE", 0.0)
    engine = Wrapped(tmp_path)
    remote = make(engine)
    remote.ping()
    remote.ping()
    assert len(engine.starts) == 2


def test_server_that_is_asked_nothing_ends_by_itself(make: Make, tmp_path: Path) -> None:
    code = "import sys; from pitstop.node import serve as s; s.IDLE = 0.2; sys.exit(s.serve())"
    engine = Wrapped(tmp_path, f"exec {sys.executable} -c '{code}'")
    remote = make(engine)
    remote.ping()
    state = Path(f"/proc/{engine.pid}/stat")
    until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "it ends")
    assert remote.ping()["boot_id"]
    assert len(engine.starts) == 2


def test_request_that_is_killed_ends_the_session_the_same_way(make: Make, tmp_path: Path) -> None:
    """As a process for this request would have ended; over SSH that is a lost connection."""
    engine = Wrapped(tmp_path)
    remote = make(engine)
    killer = (
        "import os, pathlib, signal, sys, time\n"
        "pid = sys.argv[1]\n"
        "while not (found := pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text()):\n"
        "    time.sleep(0.01)\n"
        "os.kill(int(found), signal.SIGKILL)\n"
    )
    script = tmp_path / "killer.py"
    script.write_text(killer)
    remote.ping()
    arguments = {"command": ["sleep", "1000"], "timeout": 60}
    remote.call("op.start", id="long", kind="execute", arguments=arguments)
    os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, str(script), str(engine.pid)])
    with pytest.raises(TemporaryError, match="exit status -9"):
        remote.call("op.wait", id="long", seconds=30)
    assert remote.cancel("long")["state"] == "failed"
    os.wait()


# --- an engine that is replaced ---


def copy_of_the_engine(directory: Path, says: str) -> None:
    """A copy whose `ping` says which one it is."""
    for part in ("node", "model", "images", "decide"):
        shutil.copytree(
            SOURCE / part, directory / "pitstop" / part, ignore=shutil.ignore_patterns("*.pyc")
        )
    clock = directory / "pitstop" / "node" / "clock.py"
    text = clock.read_text()
    assert 'datetime.now(UTC).isoformat(timespec="microseconds")' in text
    clock.write_text(
        text.replace('datetime.now(UTC).isoformat(timespec="microseconds")', repr(says))
    )


@pytest.mark.parametrize("by", ["files", "link"])
def test_replaced_engine_answers_the_next_request(make: Make, tmp_path: Path, by: str) -> None:
    copy_of_the_engine(tmp_path / "1", "old")
    copy_of_the_engine(tmp_path / "2", "newer")
    installed = tmp_path / "installed"
    installed.symlink_to("1")
    engine = Wrapped(tmp_path, f"export PYTHONPATH={installed}")
    remote = make(engine)
    assert [remote.ping()["time"], remote.ping()["time"]] == ["old", "old"]
    if by == "files":
        name = "pitstop/node/clock.py"
        os.replace(tmp_path / "2" / name, tmp_path / "1" / name)
    else:
        installed.unlink()
        installed.symlink_to("2")
    assert [remote.ping()["time"], remote.ping()["time"]] == ["newer", "newer"]
    assert len(engine.starts) == 2


# --- what one request leaves to the next, and to what it starts ---


def standing(pid: int) -> dict[str, Any]:
    """All of a process that a request might change."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    own = ("SigBlk", "SigIgn", "SigCgt", "Umask", "Threads", "NoNewPrivs", "Seccomp")
    return {
        **{name: status[name] for name in own},
        "files": sorted(os.readlink(entry) for entry in (process / "fd").iterdir()),
        "cwd": os.readlink(process / "cwd"),
        "children": (process / "task" / str(pid) / "children").read_text(),
        "limits": (process / "limits").read_text(),
    }


def at_rest(pid: int) -> dict[str, Any]:
    """The same once a request's child is gone; it answers before that."""
    until(lambda: not standing(pid)["children"], "the request's child is gone")
    return standing(pid)


LEASE = {"run": "r1", "controller": "test", "node": "here", "seconds": 60, "alarm": None}
ASKED: dict[str, dict[str, Any]] = {
    "ping": {"lease": LEASE},
    "inspect": {"workloads": {"web": {"probes": {"engine": {"command": ["true"]}}}}},
    "fingerprint": {"probes": {"engine": {"command": ["echo", "1"]}}},
    "op.start": {
        "id": "a",
        "kind": "execute",
        "arguments": {"command": ["true"], "timeout": 9},
        "lease": LEASE,
    },
    "op.wait": {"id": "b", "seconds": 0.2},
    "op.cancel": {"id": "b"},
    "op.status": {"id": "a"},
    "lease.end": {"run": "r1"},
    "gauge": {"in_flight": {"url": "http://127.0.0.1:9/", "metric": "m"}},
    "release": {"workload": "web", "run": "r1"},
    "settle": {"workload": "web", "checkpoint": "ck1"},
    "quarantine": {"run": "r1", "cause": "test"},
    "unquarantine": {"run": "r1"},
    "images.newest": {"workload": "web"},
    "images.forget": {"workload": "web", "checkpoint": "ck1", "run": "r1"},
    "stat": {"path": "/etc/passwd"},
    "workload": {"workload": "web"},
    "holder": {"workload": "web"},
    "doctor": {"trial": True},
}


def test_no_call_changes_the_server(make: Make, tmp_path: Path) -> None:
    engine = Wrapped(tmp_path)
    remote = make(engine)
    remote.ping()
    long = {"command": ["sleep", "1000"], "timeout": 60}
    remote.call("op.start", id="b", kind="execute", arguments=long)
    before = at_rest(engine.pid)
    for call in CALLS:
        try:
            remote.call(call, **ASKED.get(call, {}))
        except PitstopError as error:  # as for what is not there; the server answered
            assert "gave no answer" not in error.cause, (call, error)
        assert at_rest(engine.pid) == before, call
    assert len(engine.starts) == 1


INHERITED = """
import json, os, sys
status = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines())
print(json.dumps({
    **{n: status[n] for n in ('SigBlk', 'SigIgn', 'SigCgt', 'Umask', 'NoNewPrivs')},
    'files': [os.readlink(f'/proc/self/fd/{n}').replace(sys.argv[1], 'ID') for n in (0, 1, 2)],
    'others': len(os.listdir('/proc/self/fd')),
    'cwd': os.getcwd(),
    'leads': [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    'nice': os.nice(0),
    'environment': {k: v for k, v in os.environ.items() if k not in ('_', 'SHLVL')},
}))
"""


def test_operation_inherits_the_same_as_from_a_process_for_its_request(
    make: Make, tmp_path: Path
) -> None:
    found = {}
    for how in ("session", "process"):
        directory = tmp_path / how
        directory.mkdir()
        before = "" if how == "session" else 'test "$2" != --session || exit 2'
        remote = make(Wrapped(directory, before))
        command = [sys.executable, "-c", INHERITED, how]
        done = remote.operate(how, "execute", {"command": command, "timeout": 30}, 30)
        found[how] = json.loads(done["output_tail"])
    assert found["session"] == found["process"]


def test_operation_outlives_the_session_and_holds_nothing_of_it(make: Make, tmp_path: Path) -> None:
    engine = Wrapped(tmp_path)
    remote = make(engine)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waits = {
        "command": ["sh", "-c", 'read word < "$1"; echo $word', "sh", str(fifo)],
        "timeout": 60,
    }
    remote.call("op.start", id="outlives", kind="execute", arguments=waits)
    conversation = remote._session._conversation
    assert conversation is not None
    kill(engine.pid, signal.SIGTERM)
    with pytest.raises(Ended) as ended:  # and not a stream that somebody still holds
        conversation.exchange(b"", lambda _part: False, 30)
    assert ended.value.exit_status == -signal.SIGTERM
    fifo.write_text("on\n")
    assert remote.operate("outlives", "execute", waits, 30)["output_tail"] == "on\n"


# --- over SSH ---


@pytest.fixture
def lab_node(lab: Lab) -> Iterator[LabNode]:
    """The lab's node, on before and after the test."""
    found = lab.node("gpu1")
    yield found
    found.boot()


@pytest.fixture
def remote(lab_node: LabNode, tmp_path: Path) -> Iterator[RemoteNode]:
    """The node over SSH, its idle connection doubted at once."""
    data = node_data(lab_node)
    data["ssh"] = {**data["ssh"], "connect_timeout": 1, "keepalive": 0.001}
    data["engine"] = [str(Wrapped(tmp_path).path)]
    made = RemoteNode("gpu1", Node.model_validate(data))
    yield made
    made.close()


def starts(tmp_path: Path) -> list[str]:
    return [line.split()[0] for line in (tmp_path / "starts").read_text().splitlines()]


def test_one_session_over_ssh_and_another_one_after_it_died(
    remote: RemoteNode, lab_node: LabNode, tmp_path: Path
) -> None:
    for _ in range(3):
        assert remote.ping()["boot_id"] == lab_node.boot_id
    assert len(starts(tmp_path)) == 1
    # The session alone, then the connection below it, which only goes silent.
    lab_node.run(["kill", "-9", starts(tmp_path)[-1]])
    conversation = remote._session._conversation
    assert conversation is not None
    until(conversation.over, "its end has arrived here")
    assert remote.ping()["boot_id"] == lab_node.boot_id
    sshd = lab_node.run(["sh", "-c", 'ps -o ppid= -p "$1"', "sh", starts(tmp_path)[-1]]).strip()
    lab_node.run(["kill", "-STOP", sshd])
    try:
        assert remote.ping()["boot_id"] == lab_node.boot_id
    finally:
        lab_node.run(["kill", "-9", sshd])
    assert len(starts(tmp_path)) == 3


def test_reboot_ends_the_session(remote: RemoteNode, lab_node: LabNode, tmp_path: Path) -> None:
    before = remote.ping()["boot_id"]
    lab_node.power_cut()
    with pytest.raises((NodeUnreachable, ConnectionLost)):
        remote.ping()
    lab_node.boot()
    assert remote.ping()["boot_id"] == lab_node.boot_id != before
    assert len(starts(tmp_path)) == 2
