"""A node as a controller sees it: answers in noise, operations that survive, proven reboots."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pitstop.demo.setup import node_data
from pitstop.fleet import node as node_module
from pitstop.fleet.node import RemoteNode
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from pitstop.model.errors import (
    BadInput,
    ConnectionLost,
    DeadlineExceeded,
    HostKeyRefused,
    Interrupted,
    MaintenanceFailed,
    NodeUnreachable,
    PermanentError,
    PitstopError,
    TemporaryError,
)
from pitstop.model.site import Node
from tests.rigs.engine import until

ENGINE = [sys.executable, "-m", "pitstop.node.main"]
Make = Callable[..., RemoteNode]


@pytest.fixture
def lab_node(lab: Lab) -> Iterator[LabNode]:
    """The lab's node, on before and after the test."""
    found = lab.node("gpu1")
    yield found
    found.boot()


@pytest.fixture
def make(lab_node: LabNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make controllers' views of the node; all are closed after the test."""
    monkeypatch.setattr(node_module, "PAUSE", 0.05)
    made: list[RemoteNode] = []

    def build(ssh: dict[str, Any] | None = None, **changes: Any) -> RemoteNode:
        data = node_data(lab_node)
        data["ssh"] = {**data["ssh"], **(ssh or {})}
        made.append(RemoteNode("gpu1", Node.model_validate({**data, **changes})))
        return made[-1]

    yield build
    for remote in made:
        remote.close()


class InBackground:
    """A call in a thread, whose result or error is asked for later."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._call = call
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._outcome.append(self._call())
        except PitstopError as error:
            self._outcome.append(error)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._outcome[0]


def execute(command: list[str], timeout: float = 60) -> dict[str, Any]:
    return {"command": command, "timeout": timeout}


def held_by(fifo: Path) -> dict[str, Any]:
    """A command that says `done` once somebody writes into the FIFO, and counts its starts."""
    os.mkfifo(fifo)
    code = 'echo start >> "$1.starts"; read word < "$1"; echo "done $word"'
    return execute(["sh", "-c", code, "sh", str(fifo)])


def started(fifo: Path) -> bool:
    return fifo.with_name(f"{fifo.name}.starts").exists()


def starts(fifo: Path) -> int:
    return len(fifo.with_name(f"{fifo.name}.starts").read_text().splitlines())


SESSIONS = """
import os, pathlib, signal, sys
for entry in pathlib.Path('/proc').iterdir():
    try:
        if (entry / 'cmdline').read_bytes().startswith(b'sshd: root@'):
            os.kill(int(entry.name), getattr(signal, sys.argv[1]))
    except OSError:
        continue  # no process, or one that has just ended
"""


def signal_sessions(lab_node: LabNode, name: str = "SIGKILL") -> None:
    """Signal all of the node's sshd sessions: the connections, not the server."""
    lab_node.run([sys.executable, "-c", SESSIONS, name])


def runner_of(lab_node: LabNode, identifier: str) -> str:
    """The PID, inside the node, of an operation's runner."""
    path = lab_node.state_dir / "ops" / identifier / "runner.json"
    until(path.exists, "the runner is recorded")
    return str(json.loads(path.read_text())["pid"])


# --- calls ---

NOISE = """#!{python}
import subprocess, sys
from pitstop.node.frame import Framed
real = subprocess.Popen(
    [sys.executable, '-m', 'pitstop.node.main', *sys.argv[1:]],
    bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
stdin, out = sys.stdin.buffer.raw, sys.stdout.buffer

def message(source, nonce=None):
    raw, framed = b'', Framed(nonce, 1 << 20)
    while part := source.read(1):
        raw += part
        if framed.feed(part):
            return framed.nonce, raw
    real.stdin.close()
    sys.exit(real.wait())

while True:
    nonce, request = message(stdin)
    out.write(b'*** AUTHORIZED USE ONLY ***\\nmodule load cuda ... ok {{not json}}\\n\\xa6\\xff')
    out.write(b'\\n<<pitstop 0123456789abcdef 15>>\\n{{"result": "no"}}\\n')
    out.write(b'\\n<<pitstop ' + nonce[:-1].encode() + b' 15>>\\n{{"result": "no"}}\\n')
    out.write(b'{{"result": {{"boot_id": "noise"}}}}' + b'z' * 300000)
    real.stdin.write(request)
    for byte in message(real.stdout, nonce)[1]:  # split wherever it can be split
        out.write(bytes([byte]))
        out.flush()
    out.write(b'{{"error": 1}}\\n<<pitstop\\nlogout\\n' + b'z' * 300000)
    out.flush()
"""


def script(path: Path, text: str) -> list[str]:
    path.write_text(text)
    path.chmod(0o755)
    return [str(path)]


def test_answer_is_found_in_the_noise_around_it(
    make: Make, lab_node: LabNode, tmp_path: Path
) -> None:
    noisy = script(tmp_path / "engine", NOISE.format(python=sys.executable))
    remote = make(engine=noisy)
    with pytest.raises(BadInput, match="grün 日本語 🛠: this engine has no such call"):
        remote.call("grün 日本語 🛠")
    assert remote.ping()["boot_id"] == lab_node.boot_id


def test_without_an_answer_the_error_has_the_end_of_stderr(make: Make, tmp_path: Path) -> None:
    engine = script(tmp_path / "engine", "#!/bin/sh\necho '{\"result\": 1}'\nseq 9 >&2\nexit 5\n")
    with pytest.raises(TemporaryError, match=r"exit status 5\): 7 / 8 / 9") as caught:
        make(engine=engine).ping()
    assert "engine" in caught.value.hint
    with pytest.raises(TemporaryError, match=r"exit status 127.*not-installed"):
        make(engine=["/opt/not-installed"]).ping()
    with pytest.raises(TemporaryError, match="nothing on stderr"):
        make(engine=["true"]).ping()


def test_answer_that_was_cut_short_is_none(make: Make, tmp_path: Path) -> None:
    engine = script(
        tmp_path / "engine",
        f'#!/bin/sh\n{{ {" ".join(ENGINE)} "$@"; }} | {{ head -c 60; kill $$; }}\n',
    )
    with pytest.raises(ConnectionLost, match="unknown"):
        make(engine=engine).ping()


def test_errors_of_the_node_are_rebuilt_by_class(make: Make) -> None:
    remote = make()
    with pytest.raises(BadInput, match="no such call"):
        remote.call("make.coffee")
    with pytest.raises(BadInput):
        remote.call("op.start", id="../../etc", kind="execute", arguments={})
    with pytest.raises(MaintenanceFailed, match="/does/not/exist"):
        remote.operate("rebuilt", "execute", execute(["/does/not/exist"]), 30)
    # The same error again, from the record.
    with pytest.raises(MaintenanceFailed, match="/does/not/exist"):
        remote.operate("rebuilt", "execute", execute(["/does/not/exist"]), 30)


def test_text_of_any_kind_survives_the_way_there_and_back(make: Make) -> None:
    odd = ["it's", "$(id)", "a\nb", "节点完成 ✓ 🦄", "<<pitstop 00 1>>", "{not json}"]
    code = "import sys; sys.stdout.write('|'.join(sys.argv[1:]))"
    done = make().operate("odd", "execute", execute([sys.executable, "-c", code, *odd]), 30)
    assert done["output_tail"] == "|".join(odd)


# --- operations ---


def test_operation_is_attached_to_by_its_id(make: Make, tmp_path: Path) -> None:
    fifo = tmp_path / "attach"
    arguments = held_by(fifo)
    first = InBackground(lambda: make().operate("attach", "execute", arguments, 60))
    until(lambda: started(fifo), "it runs")
    second = InBackground(lambda: make().operate("attach", "execute", arguments, 60))
    status = until(lambda: make().call("op.status", id="attach"), "status")
    assert status["state"] == "running"
    with pytest.raises(BadInput, match="is not the same"):
        make().operate("attach", "execute", execute(["true"]), 60)
    fifo.write_text("once\n")
    results = [first.result(), second.result(), make().operate("attach", "execute", arguments, 60)]
    assert [r["output_tail"] for r in results] == ["done once\n"] * 3
    assert starts(fifo) == 1


def test_cut_connection_loses_nothing(make: Make, lab_node: LabNode, tmp_path: Path) -> None:
    fifo = tmp_path / "cut"
    arguments = held_by(fifo)
    said: list[str] = []
    waiting = InBackground(lambda: make().operate("cut", "execute", arguments, 60, said.append))
    until(lambda: started(fifo), "it runs")
    # Again and again: also while it comes back.
    while len(said) < 3:
        signal_sessions(lab_node)
    assert waiting.running
    fifo.write_text("at last\n")
    assert waiting.result()["output_tail"] == "done at last\n"
    assert starts(fifo) == 1
    assert all(text.startswith("no contact: ") for text in said)


def test_silent_connection_loses_nothing_either(
    make: Make, lab_node: LabNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer to a wait is no contact. It says nothing about the operation."""
    monkeypatch.setattr(node_module, "WAIT_SLICE", 0.5)
    monkeypatch.setattr(node_module, "WAIT_ANSWER", 1.0)
    fifo = tmp_path / "silent"
    arguments = held_by(fifo)
    said: list[str] = []
    remote = make()
    remote.ping()
    waiting = InBackground(lambda: remote.operate("silent", "execute", arguments, 60, said.append))
    until(lambda: started(fifo), "it runs")
    signal_sessions(lab_node, "SIGSTOP")
    try:
        until(lambda: said or not waiting.running, "the silence is noticed")
        fifo.write_text("heard\n")
        assert waiting.result()["output_tail"] == "done heard\n"
    finally:
        signal_sessions(lab_node)


def test_operation_that_goes_on_after_its_deadline_says_so(make: Make, tmp_path: Path) -> None:
    fifo = tmp_path / "late"
    arguments = held_by(fifo)
    remote = make()
    with pytest.raises(DeadlineExceeded, match="still running after 1 s") as caught:
        remote.operate("late", "execute", arguments, 1)
    assert caught.value.subject == "late"
    fifo.write_text("late\n")
    assert remote.operate("late", "execute", arguments, 60)["output_tail"] == "done late\n"


def test_killed_runner_is_an_interrupted_operation(
    make: Make, lab_node: LabNode, tmp_path: Path
) -> None:
    fifo = tmp_path / "killed"
    arguments = held_by(fifo)
    waiting = InBackground(lambda: make().operate("killed", "execute", arguments, 60))
    until(lambda: started(fifo), "it runs")
    lab_node.run(["kill", "-9", runner_of(lab_node, "killed")])
    error = waiting.result()
    assert type(error) is Interrupted
    assert error.subject == "killed"
    # It is not started again under that id, whoever asks.
    with pytest.raises(Interrupted):
        make().operate("killed", "execute", arguments, 60)
    assert starts(fifo) == 1


def test_power_cut_interrupts_and_is_told_after_the_boot(
    make: Make, lab_node: LabNode, tmp_path: Path
) -> None:
    fifo = tmp_path / "power"
    arguments = held_by(fifo)
    said: list[str] = []
    remote = make()
    waiting = InBackground(lambda: remote.operate("power", "execute", arguments, 60, said.append))
    until(lambda: started(fifo), "it runs")
    lab_node.power_cut()
    until(lambda: said, "the loss is noticed")
    lab_node.boot()
    assert type(waiting.result()) is Interrupted
    assert starts(fifo) == 1


def test_without_contact_waiting_is_given_up_some_time(
    make: Make, lab_node: LabNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "CONTACT_GRACE", 0.5)
    lab_node.power_cut()
    with pytest.raises(NodeUnreachable):
        make(ssh={"connect_timeout": 2}).operate("never", "execute", execute(["true"]), 60)
    lab_node.boot()
    assert make().call("op.status", id="never")["state"] == "unknown"


def test_refusals_are_not_waited_out(make: Make) -> None:
    begun = time.monotonic()
    kind, key = make().spec.ssh.host_keys[0].split()  # type: ignore[union-attr]
    wrong = f"{kind} {key[:-6]}AAAAAA"
    with pytest.raises(HostKeyRefused):
        make(ssh={"host_keys": [wrong]}).operate("refused", "execute", execute(["true"]), 60)
    with pytest.raises(PermanentError):
        make(ssh={"identity_file": "/does/not/exist"}).operate("refused", "execute", {}, 60)
    assert time.monotonic() - begun < 20


def test_cancel_ends_the_whole_tree_and_is_confirmed(
    make: Make, lab_node: LabNode, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    code = 'sleep 1000 & echo $! > "$1.new"; mv "$1.new" "$1"; wait'
    arguments = execute(["sh", "-c", code, "sh", str(pid)])
    waiting = InBackground(lambda: make().operate("cancelled", "execute", arguments, 60))
    until(pid.exists, "it runs")
    status = make().cancel("cancelled")
    assert (status["state"], status["error"]["code"]) == ("failed", "cancelled")
    assert waiting.result().code == "cancelled"
    gone = lab_node.run(
        ["sh", "-c", 'test -e "/proc/$1" || echo gone', "sh", pid.read_text().strip()]
    )
    assert gone == "gone\n"


# --- reboots ---


def test_changed_boot_id_proves_a_reboot_and_the_same_object_goes_on(
    make: Make, lab_node: LabNode
) -> None:
    remote = make()
    before = remote.ping()["boot_id"]
    remote.call(
        "op.start",
        id="reboot",
        kind="reboot",
        arguments=execute(list(lab_node.reboot_command)),
    )
    after = remote.wait_reboot(before, 60)
    assert after == lab_node.boot_id != before
    assert remote.ping()["boot_id"] == after


def test_node_that_does_not_reboot_is_never_believed(make: Make) -> None:
    remote = make()
    before = remote.ping()["boot_id"]
    with pytest.raises(DeadlineExceeded, match=f"boot id {before}, as before"):
        remote.wait_reboot(before, 1.5)


def test_going_down_alone_proves_nothing(make: Make, lab_node: LabNode) -> None:
    remote = make(ssh={"connect_timeout": 1})
    before = remote.ping()["boot_id"]
    lab_node.power_cut()
    with pytest.raises(DeadlineExceeded, match="did not reboot in 1 s; last: "):
        remote.wait_reboot(before, 1)


LIAR = """#!{python}
import json, os, pathlib, sys
from pitstop.node.calls import answer
from pitstop.node.frame import Framed, wrap
answers = pathlib.Path({path!r})
while True:
    asked = Framed(None, 1 << 20)
    while not asked.feed(part := os.read(0, 65536)):
        if not part:
            sys.exit(0)
    left = answers.read_text().splitlines()
    answers.write_text('\\n'.join(left[1:]) + '\\n' if left[1:] else '')
    if left and left[0] == 'fail':
        sys.exit('Connection closed')
    message = json.loads(left[0]) if left else answer(asked.message())
    sys.stdout.buffer.write(wrap(asked.nonce, message))
    sys.stdout.buffer.flush()
"""

DENIED = '{"error": {"code": "permanent", "subject": "gpu1", "cause": "not yet", "hint": ""}}'


LIES = [
    "fail",
    '{"result": {"boot_id": ""}}',
    '{"result": {"boot_id": "Connection closed"}}',
    '{"result": {"boot_id": null}}',
    '{"result": {}}',
    '{"result": {"boot_id": "{B1B1B1B1-0000-4000-8000-000000000000}"}}',
    '{"error": {"code": "unexpected", "subject": "x", "cause": "no boot id", "hint": ""}}',
    '{"error": {"code": "permanent", "subject": "gpu1", "cause": "not yet", "hint": ""}}',
]


def test_garbage_and_errors_are_unknown_and_no_reboot(
    make: Make, lab_node: LabNode, tmp_path: Path
) -> None:
    answers = tmp_path / "answers"
    liar = script(tmp_path / "engine", LIAR.format(python=sys.executable, path=str(answers)))
    remote = make(engine=liar)
    # First all that proves nothing, then the truth: the node has another boot id than this.
    before = "b1b1b1b1-0000-4000-8000-000000000000"
    answers.write_text("".join(f"{lie}\n" for lie in LIES))
    said: list[str] = []
    assert remote.wait_reboot(before, 60, said.append) == lab_node.boot_id
    assert len(said) == len(LIES)
    assert answers.read_text() == ""
    for lie in LIES:
        answers.write_text(f"{lie}\n")
        assert remote.poll({"for": "reboot", "boot_id": before}, 1) is False
    assert remote.poll({"for": "reboot", "boot_id": before}, 1) is True
    assert remote.poll({"for": "reboot", "boot_id": lab_node.boot_id}, 1) is False


def test_wrong_host_key_after_a_reboot_is_refused_at_once(make: Make) -> None:
    kind, key = make().spec.ssh.host_keys[0].split()  # type: ignore[union-attr]
    begun = time.monotonic()
    with pytest.raises(HostKeyRefused):
        make(ssh={"host_keys": [f"{kind} {key[:-6]}AAAAAA"]}).wait_reboot("b1", 60)
    assert time.monotonic() - begun < 20


def test_lost_connection_is_told_apart_from_an_unreachable_node(
    make: Make, lab_node: LabNode, tmp_path: Path
) -> None:
    """Of a plain call: nothing was sent, or its effect is unknown."""
    code = '#!/bin/sh\n: > "$0.up"\nexec sleep 1000\n'
    remote = make(engine=script(tmp_path / "engine", code))
    calling = InBackground(lambda: remote.ping(timeout=30))
    until((tmp_path / "engine.up").exists, "the call arrived")
    lab_node.power_cut()
    assert type(calling.result()) is ConnectionLost
    with pytest.raises(NodeUnreachable):
        remote.ping(timeout=30)
