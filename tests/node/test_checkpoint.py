"""Checkpoint and restore: what was in memory goes on, as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import State
from pitstop.model.errors import BadInput, CheckpointFailed, WorkloadGone
from pitstop.node import processes
from pitstop.node.record import WorkloadState
from tests.rigs.engine import (
    PORT,
    SERVER,
    WORKLOAD,
    Client,
    Engine,
    Launched,
    copies_of,
    state_letter,
    until,
)


def running(launched: Launched) -> bool:
    return launched.report.get("running") is True


def test_memory_goes_on(engine: Engine) -> None:
    first = engine.serve()
    engine.count_to(3)
    proof = engine.ask("/proof")
    saved = engine.save()
    assert first.wait() == 0, "a supervisor must not take a checkpoint for a failure"
    assert engine.copies() == 0
    assert saved["processes"] == 1
    assert saved["image_bytes"] == sum(
        file.stat().st_size for file in engine.checkpoint("ck1").images.iterdir()
    )
    second = engine.restore()
    assert running(second), second.said
    assert engine.ask("/proof") == proof
    assert engine.ask("/count")["count"] == 4
    assert engine.copies() == 1
    record = engine.record()
    assert (record.generation, record.how, record.checkpoint) == (2, "restored", "ck1")


def test_twice_in_a_row_and_the_log_is_one(engine: Engine) -> None:
    engine.serve()
    engine.count_to(2)
    for turn in (1, 2):
        engine.save(f"ck{turn}")
        assert running(engine.restore(f"ck{turn}"))
        assert engine.count_to(2) == 2 + 2 * turn
    numbers = [line for line in engine.output().splitlines() if line.startswith("count")]
    assert numbers == [f"count {n}" for n in range(1, 7)]
    assert engine.record().generation == 3


def test_what_was_logged_after_the_dump_is_kept_aside(engine: Engine) -> None:
    engine.serve()
    engine.count_to(2)
    before = engine.output()
    engine.save()
    files = engine.files()
    with files.stdout.open("a") as log:
        log.write("written by somebody afterwards\n")
    assert running(engine.restore())
    engine.count_to(1)
    assert engine.output() == before + "count 3\n"
    aside = files.stdout.with_name("stdout.log.after-ck1")
    assert aside.read_text() == "written by somebody afterwards\n"
    assert aside.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("fate", ["removed", "emptied"])
def test_a_log_that_was_rotated_does_not_prevent_a_restore(engine: Engine, fate: str) -> None:
    engine.serve()
    engine.count_to(2)
    engine.save()
    files = engine.files()
    if fate == "removed":
        files.stdout.rename(files.stdout.with_suffix(".1"))
    else:
        os.truncate(files.stdout, 0)
    second = engine.restore()
    assert running(second), second.said
    engine.count_to(1)
    assert engine.output() == "count 3\n"
    assert files.stdout.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_and_exit_status_pass_through_a_restored_launcher(
    engine: Engine, number: signal.Signals
) -> None:
    script = "trap 'echo bye; exit 7' TERM; echo up; sleep 1000 & while :; do wait; done"
    assert running(engine.launch("sh", "-c", script))
    until(lambda: "up" in engine.output(), "the trap is set")
    engine.save()
    second = engine.restore()
    assert running(second)
    second.signal(number)
    assert second.wait() == (7 if number == signal.SIGTERM else -number)
    assert not engine.files().running()
    assert copies_of("1000") == []


def test_a_family_of_processes(engine: Engine, tmp_path: Path) -> None:
    """Children, a daemon in a session of its own, threads, pipes, a deleted and a locked file."""
    first = engine.family(tmp_path)
    with Client() as client:
        assert [client.ask(line) for line in ("add 3", "work 4", "daemon", "keep a")] == [
            "3",
            "4",
            "1",
            '["a"]',
        ]
        root = client.ask("who")
    members = first.tree
    assert len(members) == 3
    for turn in (1, 2):
        saved = engine.save(f"ck{turn}")
        assert saved["processes"] == 3
        assert processes.wait_gone(members, 0) == []
        second = engine.restore(f"ck{turn}")
        assert running(second), second.said
        members = second.tree
        assert len(members) == 3
        with Client() as client:
            assert client.ask("add 10") == str(3 + 10 * turn)
            assert client.ask("work 10") == str(4 + 10 * turn)
            assert client.ask("daemon") == str(1 + turn)
            assert client.ask("who") == root
            assert client.ask("keep b") == str(["a"] + ["b"] * turn).replace("'", '"')
        lock = subprocess.run(["flock", "--nonblock", tmp_path / "locked", "true"], check=False)
        assert lock.returncode == 1, "the lock was not restored"
    second.signal(signal.SIGKILL)
    assert processes.wait_gone(members, 10) == []


def test_an_orphaned_daemon_is_saved_once_and_never_lost(engine: Engine, tmp_path: Path) -> None:
    """CRIU hands a member of a session without leader to pid 1, out of the tree: it says so."""
    engine.family(tmp_path, daemon="orphan")
    with Client() as client:
        assert client.ask("daemon") == "1"
    assert engine.save()["processes"] == 3
    second = engine.restore()
    assert running(second)
    with pytest.raises(CheckpointFailed, match="left the tree"):
        engine.save("ck2")
    with Client() as client:
        assert client.ask("daemon") == "2"
    members = second.tree
    assert len(members) == 3
    second.signal(signal.SIGKILL)
    assert processes.wait_gone(members, 10) == []


def test_a_process_outside_of_the_tree_is_never_left_behind(engine: Engine) -> None:
    """One that entered the namespace by itself would be lost; so nothing is touched."""
    launched = engine.launch("sleep", "1000")
    assert launched.report["running"]
    init = engine.record().init_pid
    # It leaves its parent, so that pid 1 of the namespace becomes its parent.
    enter = ["nsenter", "--target", str(init), "--pid", "--mount", "--"]
    subprocess.run([*enter, "sh", "-c", "sleep 2000 & exit 0"], check=True)
    [stray] = until(lambda: copies_of("2000"), "the stray runs")
    until(lambda: processes.parent_of(stray) == init, "pid 1 adopts the stray")
    with pytest.raises(CheckpointFailed, match="left the tree"):
        engine.save()
    assert state_letter(launched.root) == "S"
    os.kill(stray, signal.SIGKILL)
    until(lambda: copies_of("2000") == [], "the stray is gone")
    engine.save()


class TestConnections:
    """What becomes of an established TCP connection."""

    @pytest.fixture
    def client(self, engine: Engine, tmp_path: Path) -> Iterator[Client]:
        engine.family(tmp_path)
        with Client() as client:
            assert client.ask("add 1") == "1"
            yield client

    def test_keep(self, engine: Engine, client: Client) -> None:
        client.send("add 2")
        assert client.receive() == "3"
        engine.save(connections="keep")
        client.send("add 3")  # while nobody is there
        assert running(engine.restore())
        client.send("add 4")
        assert [client.receive(), client.receive()] == ["6", "10"]
        engine.save("ck2", connections="keep")
        assert running(engine.restore("ck2"))
        assert client.ask("add 5") == "15"

    def test_close(self, engine: Engine, client: Client) -> None:
        engine.save(connections="close")
        assert client.receive() == "", "the client sees a clean end"
        assert running(engine.restore())
        with Client() as other:
            assert other.ask("add 1") == "2"

    def test_refuse(self, engine: Engine, client: Client) -> None:
        with pytest.raises(CheckpointFailed, match="onnected TCP socket") as failure:
            engine.save(connections="refuse")
        assert failure.value.hint.startswith("the workload runs on; it has connections")
        assert client.ask("add 1") == "2"
        assert engine.store().all() == []
        client.socket.close()
        client.lines.close()

    def test_refuse_without_one(self, engine: Engine, tmp_path: Path) -> None:
        engine.family(tmp_path)
        engine.save(connections="refuse")
        assert running(engine.restore())
        with Client() as client:
            assert client.ask("add 1") == "1"


class TestPidFile:
    """A workload that was not started by the launcher."""

    @pytest.fixture
    def server(self, engine: Engine, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
        with (tmp_path / "out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, str(SERVER)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd="/",
            )
        until(lambda: engine.ask("/", quiet=True), "the server answers")
        yield process
        process.kill()
        process.wait()

    def test_is_saved_and_goes_on_under_the_launcher(
        self, engine: Engine, tmp_path: Path, server: subprocess.Popen[bytes]
    ) -> None:
        engine.count_to(3)
        path = tmp_path / "pid"
        path.write_text(f"{server.pid}\n")
        engine.save(pid_file=str(path))
        assert server.wait(10) == -signal.SIGKILL
        launched = engine.restore()
        assert running(launched), launched.said
        assert engine.ask("/count")["count"] == 4
        # From here on it is like any other, whatever its old PID file says.
        engine.save("ck2", pid_file=str(path))
        assert running(engine.restore("ck2"))
        assert engine.ask("/count")["count"] == 5

    def test_nothing_is_started_beside_a_running_original(
        self, engine: Engine, tmp_path: Path, server: subprocess.Popen[bytes]
    ) -> None:
        path = tmp_path / "pid"
        path.write_text(f"{server.pid}\n")
        beside = engine.bring_up(pid_file=str(path))
        found = engine.op("beside", "cold-start", beside)
        assert found["error"]["code"] == "refused"
        assert "still runs" in found["error"]["cause"]
        assert not WorkloadState(engine.state, WORKLOAD).running()
        server.kill()
        server.wait()
        assert engine.op("alone", "cold-start", beside)["result"]["generation"] == 1
        assert engine.copies() == 1

    @pytest.mark.usefixtures("server")
    def test_without_a_pid_file_it_is_not_found(self, engine: Engine) -> None:
        with pytest.raises(WorkloadGone):
            engine.save()

    @pytest.mark.parametrize(
        "content",
        ["0", "1", "-1", "", "  \n", "web", "9" * 40, "4194305", "12 34", "0x10", "٤٢", "1e3"],
    )
    @pytest.mark.parametrize("verb", ["checkpoint", "stop"])
    def test_a_bad_one_never_signals_anything(
        self,
        engine: Engine,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        content: str,
        verb: str,
    ) -> None:
        path = tmp_path / "pid"
        path.write_text(content)
        self.nothing_is_signalled(engine, path, verb, monkeypatch)

    @pytest.mark.parametrize("verb", ["checkpoint", "stop"])
    def test_a_pid_that_somebody_else_has_by_now(
        self,
        engine: Engine,
        tmp_path: Path,
        server: subprocess.Popen[bytes],
        monkeypatch: pytest.MonkeyPatch,
        verb: str,
    ) -> None:
        """The file was written before this process existed: it means another one."""
        path = tmp_path / "pid"
        path.write_text(f"{server.pid}\n")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        self.nothing_is_signalled(engine, path, verb, monkeypatch)
        assert engine.ask("/")["pid"] == server.pid

    @staticmethod
    def nothing_is_signalled(
        engine: Engine, path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from pitstop.node.stopper import stop

        sent: list[tuple[Any, ...]] = []
        for name in ("kill", "killpg"):
            monkeypatch.setattr(os, name, lambda *a, name=name: sent.append((name, *a)))
        try:
            if verb == "stop":
                result = stop(engine.state, {"workload": WORKLOAD, "pid_file": str(path)})
                assert result["how"] == "gone"
            else:
                engine.save(pid_file=str(path))
                pytest.fail("it saved something")
        except (BadInput, WorkloadGone) as error:
            assert str(path) in error.subject or "pid" in error.subject
        finally:
            monkeypatch.undo()
        assert sent == []


def test_listening_port_is_the_same(engine: Engine) -> None:
    engine.serve()
    engine.save()
    assert engine.ask("/", quiet=True) == {}
    assert running(engine.restore())
    assert engine.ask("/", port=PORT)["count"] == 0
    assert engine.checkpoint("ck1").state() is State.CONSUMED
