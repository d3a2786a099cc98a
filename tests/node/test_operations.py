"""Operations: started once, whoever asks and however often; never in doubt afterwards."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from pitstop.images import durable
from pitstop.model.errors import Cancelled, MaintenanceFailed
from pitstop.node import cancelling, ops, processes
from pitstop.node import execute as execute_module
from pitstop.node.execute import TAIL, execute
from tests.rigs.engine import NODE_COMMAND, Engine, EngineError, copies_of, state_letter, until
from tests.rigs.forked import Forked


def command(*words: str, timeout: float = 60) -> dict[str, Any]:
    return {"command": list(words), "timeout": timeout}


def test_the_same_id_attaches(engine: Engine) -> None:
    arguments = command("sh", "-c", "echo once; sleep 1000")
    first = engine.start("a", "execute", arguments)
    assert first["state"] == "running"
    until(lambda: copies_of("-c", "echo once; sleep 1000"), "the command runs")
    again = engine.start("a", "execute", arguments)
    assert (again["state"], again["started"]) == ("running", first["started"])
    assert len(copies_of("-c", "echo once; sleep 1000")) == 1
    for kind, other in (("execute", command("true")), ("reboot", arguments)):
        done = engine.cli("op", "start", "a", kind, stdin=json.dumps(other))
        assert done.returncode == 2
        assert "not the same" in done.stderr
    engine.rpc("op.cancel", id="a")
    # It is over, and stays what it was.
    assert engine.start("a", "execute", arguments)["error"]["code"] == "cancelled"
    assert copies_of("-c", "echo once; sleep 1000") == []


def test_many_starts_at_once_start_it_once(engine: Engine, tmp_path: Path) -> None:
    arguments = json.dumps(command("sh", "-c", f"echo ran >> {tmp_path}/ran"))
    starts = [
        subprocess.Popen(
            [*NODE_COMMAND, "op", "start", "a", "execute", "--arguments", arguments],
            stdout=subprocess.PIPE,
            env=engine.env(),
        )
        for _ in range(8)
    ]
    answers = [json.loads(start.communicate()[0]) for start in starts]
    assert {start.returncode for start in starts} == {0}
    assert len({answer["started"] for answer in answers}) == 1
    assert engine.wait("a")["result"]["exit_status"] == 0
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert [path.name for path in engine.state.operations().iterdir()] == ["a"]


def test_it_outlives_its_caller(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    arguments = json.dumps(command("sh", "-c", f"read line < {go}; echo $line"))
    start = shlex.join([*NODE_COMMAND, "op", "start", "a", "execute", "--arguments", arguments])
    with subprocess.Popen(
        ["sh", "-c", f"{start}; sleep 1000"],
        stdout=subprocess.PIPE,
        env=engine.env(),
        start_new_session=True,
    ) as caller:
        assert caller.stdout is not None
        assert json.loads(caller.stdout.readline())["state"] == "running"
        runner = engine.runner("a")
        assert os.getsid(runner) == runner
        os.killpg(caller.pid, signal.SIGHUP)
        os.killpg(caller.pid, signal.SIGKILL)
    assert engine.rpc("op.status", id="a")["state"] == "running"
    go.write_text("done\n")
    assert engine.wait("a")["result"]["output_tail"] == "done\n"


def test_waiting_status_and_log(engine: Engine) -> None:
    assert engine.rpc("op.status", id="a")["state"] == "unknown"
    assert engine.rpc("op.wait", id="a", seconds=5)["state"] == "unknown"
    engine.start("a", "execute", command("sleep", "1000"))
    assert engine.rpc("op.wait", id="a", seconds=0)["state"] == "running"
    assert engine.rpc("op.wait", id="a", seconds=0.05)["state"] == "running"
    os.kill(engine.runner("a"), signal.SIGKILL)
    status = engine.wait("a")
    assert (status["state"], status["result"], status["error"]) == ("interrupted", None, None)
    assert engine.cli("op", "status", "a").returncode == 1
    assert engine.cli("op", "log", "a").stdout == ""
    # Interrupted is final: starting it again must not run a command twice.
    assert engine.start("a", "execute", command("sleep", "1000"))["state"] == "interrupted"


def test_a_failure_is_a_result(engine: Engine) -> None:
    for identifier, kind, arguments, code in (
        ("a", "no-such-kind", {}, "bad_input"),
        ("b", "execute", {}, "unexpected"),
        ("c", "execute", command("/no/such/program"), "maintenance_failed"),
        ("d", "reboot", command("false"), "maintenance_failed"),
        ("e", "restore", {"workload": "../x"}, "bad_input"),
    ):
        status = engine.op(identifier, kind, arguments)
        assert status["state"] == "failed", status
        assert status["error"]["code"] == code, status


@pytest.mark.parametrize("identifier", ["", "../x", "a/b", ".a", "a b", "x" * 201])
def test_ids_that_are_no_names(engine: Engine, identifier: str) -> None:
    assert engine.cli("op", "start", identifier, "execute", stdin="{}").returncode == 2
    with pytest.raises(EngineError):
        engine.rpc("op.status", id=identifier)
    assert list(engine.root.rglob("request.json")) == []


def test_arguments_that_are_no_object(engine: Engine) -> None:
    for text in ("[1]", "{", "1", '"x"', "\udcff", '{"command": ["\\udcff"], "timeout": 5}'):
        done = engine.cli("op", "start", "a", "execute", "--arguments", text)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


class TestEnding:
    """Cancel and timeout end all that a command started in its group."""

    SCRIPT = "sh -c 'sleep 7001 & sleep 7001' & sleep 7001"

    def gone(self) -> None:
        until(lambda: copies_of("7001") == [], "everything of the command is gone")

    def test_cancel(self, engine: Engine) -> None:
        engine.start("a", "execute", command("sh", "-c", self.SCRIPT))
        until(lambda: len(copies_of("7001")) == 3, "all of the command runs")
        status = engine.rpc("op.cancel", id="a")
        assert (status["state"], status["error"]["code"]) == ("failed", "cancelled")
        self.gone()

    def test_timeout(self, engine: Engine) -> None:
        status = engine.op("a", "execute", command("sh", "-c", self.SCRIPT, timeout=0.3))
        assert status["result"]["timed_out"] is True
        assert status["result"]["exit_status"] is None
        self.gone()

    def test_cancel_before_it_has_begun(self, engine: Engine) -> None:
        """While the runner's interpreter still starts: asked is asked."""
        engine.start("a", "execute", command("sh", "-c", self.SCRIPT))
        status = engine.rpc("op.cancel", id="a")
        assert (status["state"], status["error"]["code"]) == ("failed", "cancelled")
        self.gone()

    def test_cancel_in_the_moment_that_it_starts(self, engine: Engine) -> None:
        """When the command runs already and nobody knows of it yet."""

        def run() -> int:
            cancelling.listen("a")
            popen = subprocess.Popen

            def started_and_cancelled(*arguments: Any, **options: Any) -> Any:
                process = popen(*arguments, **options)
                os.kill(os.getpid(), signal.SIGTERM)
                return process

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(subprocess, "Popen", started_and_cancelled)
                try:
                    execute(["sh", "-c", self.SCRIPT], 30, engine.root / "output")
                except Cancelled:
                    return 0
            return 1

        assert Forked(run).wait() == 0
        self.gone()

    def test_cancel_twice(self, engine: Engine) -> None:
        """The second request must not cut short the ending that the first one began."""
        script = (
            "trap 'echo ending; sleep 0.4; exit 1' TERM; setsid true; sleep 7001 & echo up; wait"
        )
        output = engine.state.operations() / "a" / "output"
        engine.start("a", "execute", command("sh", "-c", script))
        until(lambda: output.exists() and "up" in output.read_text(), "the command runs")
        runner = engine.runner("a")
        os.kill(runner, signal.SIGTERM)
        until(lambda: "ending" in output.read_text(), "it is ending")
        os.kill(runner, signal.SIGTERM)
        assert engine.wait("a")["error"]["code"] == "cancelled"
        self.gone()

    def test_a_request_that_was_not_seen_is_made_again(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An interpreter may see it only when the system call that it came before returns."""
        monkeypatch.setattr(ops, "ASK_AGAIN", 0.1)
        engine.start("a", "execute", command("sh", "-c", self.SCRIPT))
        runner = engine.runner("a")
        until(lambda: len(copies_of("7001")) == 3, "all of the command runs")
        send, unseen = os.kill, [runner]

        def lose_the_first(pid: int, number: int) -> None:
            if pid in unseen:
                unseen.remove(pid)
            else:
                send(pid, number)

        monkeypatch.setattr(os, "kill", lose_the_first)
        assert engine.rpc("op.cancel", id="a")["error"]["code"] == "cancelled"
        self.gone()

    def test_a_request_that_comes_when_the_work_is_done_costs_no_result(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = durable.write_json

        def asked_to_stop_while_writing(path: Path, data: dict[str, Any]) -> None:
            if path.name == "result.json":
                os.kill(os.getpid(), signal.SIGTERM)
            write(path, data)

        def run() -> int:
            monkeypatch.setattr(ops, "write_json", asked_to_stop_while_writing)
            monkeypatch.setattr(ops.Operation, "_spawn", lambda operation, _lock: operation.run())
            ops.Operation(engine.state, "a").start("execute", command("true"))
            return 0

        assert Forked(run).wait() == 0
        status = engine.rpc("op.status", id="a")
        assert (status["state"], status["result"]["exit_status"]) == ("done", 0)

    @pytest.mark.usefixtures("engine")
    def test_stubborn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(execute_module, "KILL_GRACE", 0.2)
        script = "trap '' TERM; (trap '' TERM; exec sleep 7001) & while :; do sleep 7001; done"
        assert execute(["sh", "-c", script], 0.3, tmp_path / "out")["timed_out"] is True
        self.gone()

    @pytest.mark.usefixtures("engine")  # it ends what is left
    def test_what_it_left_in_the_background_is_no_timeout(self, tmp_path: Path) -> None:
        """A command that ends has ended, though a child of it keeps its output open."""
        found = execute(["sh", "-c", "setsid sleep 7001 & echo ok"], 30, tmp_path / "out")
        assert (found["exit_status"], found["output_tail"]) == (0, "ok\n")
        until(lambda: copies_of("7001"), "what it left runs on")


class TestOutput:
    """Everything is kept on the node; head and tail come back."""

    def test_much_of_it_on_both_streams(self, tmp_path: Path) -> None:
        code = (
            "import sys; print('first', flush=True)\n"
            "for _ in range(160):\n"
            "    sys.stdout.write('o' * 65535 + '\\n'); sys.stderr.write('e' * 65535 + '\\n')\n"
            "print('last')"
        )
        output = tmp_path / "out"
        found = execute([sys.executable, "-c", code], 60, output)
        size = 160 * 2 * 65536 + len("first\nlast\n")
        assert found["output_bytes"] == output.stat().st_size == size
        assert found["output_tail"].startswith("first\n")
        assert found["output_tail"].endswith("last\n")
        assert f"{size - TAIL} bytes left out" in found["output_tail"]
        assert len(found["output_tail"]) < TAIL + 100
        assert found["output_digest"] == f"blake3:{blake3(output.read_bytes()).hexdigest()}"
        assert output.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\xff\xfe\x00binary\x80",
            "ü".encode() * (TAIL // 2),
            b"x" + "€".encode() * TAIL,
            b"x" * TAIL,
            b"x" * (TAIL + 1),
        ],
        ids=["empty", "binary", "fits", "characters cut", "just fits", "one more"],
    )
    def test_any_bytes(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "in").write_bytes(content)
        found = execute(["cat", str(tmp_path / "in")], 60, tmp_path / "out")
        assert found["output_bytes"] == len(content)
        assert found["output_digest"] == f"blake3:{blake3(content).hexdigest()}"
        json.dumps(found).encode()
        if len(content) <= TAIL:
            assert found["output_tail"] == content.decode(errors="replace")
        else:
            assert f"{len(content) - TAIL} bytes left out" in found["output_tail"]

    def test_arrives_whole_through_an_operation(self, engine: Engine) -> None:
        status = engine.op("a", "execute", command("printf", "%s", "grüße\x1b[0m\\377"))
        assert status["result"]["output_tail"] == "grüße\x1b[0m\\377"

    def test_exit_statuses(self, tmp_path: Path) -> None:
        assert execute(["sh", "-c", "exit 3"], 30, tmp_path / "a")["exit_status"] == 3
        assert execute(["sh", "-c", "kill -9 $$"], 30, tmp_path / "b")["exit_status"] == -9
        with pytest.raises(MaintenanceFailed, match="No such file"):
            execute(["no-such-program"], 30, tmp_path / "c")


class TestTamperedRunnerFile:
    """It is a hint where the runner is; only the lock proves it."""

    @pytest.fixture
    def bystander(self) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(["sleep", "1000"]) as process:
            yield process
            process.kill()

    @pytest.mark.parametrize("pid", ["bystander", "1", "-1", "0"])
    def test_names_another_process(
        self,
        engine: Engine,
        monkeypatch: pytest.MonkeyPatch,
        bystander: subprocess.Popen[bytes],
        pid: str,
    ) -> None:
        engine.start("a", "execute", command("sleep", "1000"))
        runner = engine.runner("a")
        number = bystander.pid if pid == "bystander" else int(pid)
        start = processes.identity(bystander.pid).start if pid == "bystander" else 0
        if pid == "1":
            fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
            start = int(fields[19])
        path = engine.state.operations() / "a" / "runner.json"
        path.write_text(json.dumps({"pid": number, "start": start}))
        sent: list[object] = []
        with monkeypatch.context() as patch, pytest.raises(EngineError) as failure:
            patch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
            engine.rpc("op.cancel", id="a", seconds=0.05)
        assert failure.value.code == "deadline"
        assert sent == []
        assert engine.rpc("op.status", id="a")["state"] == "running"
        os.kill(runner, signal.SIGKILL)
        assert engine.wait("a")["state"] == "interrupted"
        assert state_letter(bystander.pid) == "S"

    def test_is_garbage(self, engine: Engine) -> None:
        engine.start("a", "execute", command("sleep", "1000"))
        runner = engine.runner("a")
        (engine.state.operations() / "a" / "runner.json").write_text("}")
        with pytest.raises(EngineError):
            engine.rpc("op.cancel", id="a", seconds=0.05)
        assert engine.rpc("op.status", id="a")["state"] == "running"
        assert engine.cli("op", "cancel", "a", "--seconds", "0.1").returncode == 1
        os.kill(runner, signal.SIGTERM)
        assert engine.wait("a")["error"]["code"] == "cancelled"


def test_waiting_for_the_end_of_a_workload(engine: Engine) -> None:
    launched = engine.launch(
        "sh", "-c", "read x < fifo; exit 6", options=("--cwd", str(engine.root))
    )
    os.mkfifo(engine.root / "fifo")
    engine.start("a", "wait-end", {"workload": "web", "deadline": 60})
    assert launched.report
    (engine.root / "fifo").write_text("x\n")
    assert engine.wait("a")["result"]["ending"] == {"exit": 6}


def test_calls_answer_whatever_happens(engine: Engine) -> None:
    """A release of nothing is no error; a state directory that cannot be used is one."""
    assert engine.rpc("release", workload="web", run="") == {}
    assert engine.rpc("release", workload="web", run="run1") == {}
    with pytest.raises(EngineError) as unknown:
        engine.rpc("no-such-call")
    assert unknown.value.code == "bad_input"
    with pytest.raises(EngineError) as missing:
        engine.rpc("op.status")
    assert missing.value.code == "bad_input"
    blocked = Engine(engine.root / "file" / "state")
    (engine.root / "file").write_text("")
    with pytest.raises(EngineError) as unusable:
        blocked.rpc("op.status", id="a")
    assert unusable.value.code == "unexpected"
    assert str(engine.root / "file") in unusable.value.cause


def test_the_state_directory_must_be_safe_in_a_shell(engine: Engine) -> None:
    for path in ("relative", "/tmp/a b", "/tmp/$(id)", "/tmp/ü", "/tmp/x\n"):
        done = engine.cli("--state-dir", path, "op", "status", "a")
        assert done.returncode == 2, path
