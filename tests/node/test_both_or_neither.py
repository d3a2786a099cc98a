"""A checkpoint is complete, or the workload runs on as if nobody had asked for one."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import Checkpoint, Mark, State
from pitstop.model.errors import CheckpointFailed, PitstopError
from pitstop.node import criu, processes
from pitstop.node.locks import is_held
from tests.rigs.engine import Engine, EngineError, Launched, state_letter, until

BALLAST = ("--memory", "64")
"""MiB that make a dump last long enough to do something to it meanwhile."""


class Subject:
    """A workload that was counted up to three, and must come out of it unharmed."""

    def __init__(self, engine: Engine, *options: str) -> None:
        self.engine = engine
        self.launched: Launched = engine.serve(*options)
        self.root = self.launched.root
        engine.count_to(3)
        self.proof = engine.ask("/proof")

    def runs_on(self, again: str = "ck1") -> None:
        """One copy, the same one, answering, with its state; and it can be saved now."""
        engine = self.engine
        assert engine.copies() == 1
        assert self.launched.root == self.root
        assert state_letter(self.root) in "SR"
        assert engine.ask("/proof") == self.proof
        assert engine.ask("/count")["count"] == 4
        assert engine.record().phase == "running"
        assert engine.rpc("holder", workload="web")["holder"] == ""
        assert engine.criu() == []
        assert not [c for c in engine.store().all() if c.state() is State.SEALED]
        engine.save(again)
        assert self.launched.wait() == 0
        second = engine.restore(again)
        assert second.report.get("running"), second.said
        assert engine.ask("/count")["count"] == 5
        assert engine.copies() == 1


class TestFoundBefore:
    """Known blockers: nothing is touched."""

    def refused(self, engine: Engine, match: str, **order: Any) -> None:
        with pytest.raises(CheckpointFailed, match=match) as failure:
            engine.save(**order)
        assert failure.value.hint == "it runs on, untouched"
        assert engine.store().all() == []
        assert engine.files().holder() == ""
        assert not list(engine.files().directory.glob("failed-*"))

    def test_io_uring(self, engine: Engine) -> None:
        launched = engine.serve("--ring")
        self.refused(engine, "io_uring at pid .*criu#2131")
        assert state_letter(launched.root) in "SR"
        assert engine.copies() == 1
        found = engine.rpc("inspect", workloads={"web": {}})["workloads"]["web"]["blockers"]
        assert [blocker["what"] for blocker in found] == ["io_uring"]

    def test_terminal(self, engine: Engine, tmp_path: Path) -> None:
        master, slave = pty.openpty()
        self.by_pid_file(engine, tmp_path, "a terminal", stdin=slave, start_new_session=True)
        os.close(master)
        os.close(slave)

    def test_foreign_session(self, engine: Engine, tmp_path: Path) -> None:
        self.by_pid_file(engine, tmp_path, "a foreign session", stdin=subprocess.DEVNULL)

    def by_pid_file(self, engine: Engine, tmp_path: Path, match: str, **options: Any) -> None:
        with subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, **options) as process:
            (tmp_path / "pid").write_text(str(process.pid))
            try:
                self.refused(engine, match, pid_file=str(tmp_path / "pid"))
                assert process.poll() is None
            finally:
                process.kill()

    def test_too_little_room(self, engine: Engine, small_disk: Callable[[int], None]) -> None:
        small_disk(24)
        workload = Subject(engine, "--memory", "32")
        self.refused(engine, "too little room at .*bytes")
        subprocess.run(["mount", "-o", "remount,size=200m", str(engine.root)], check=True)
        workload.runs_on()


@pytest.fixture
def small_disk(engine: Engine) -> Iterator[Callable[[int], None]]:
    """Put the engine's whole state on a disk of so many MiB."""

    def mount(size: int) -> None:
        options = ["-t", "tmpfs", "-o", f"size={size}m,mode=700", "tmpfs"]
        subprocess.run(["mount", *options, str(engine.root)], check=True)

    yield mount
    if os.path.ismount(engine.root):
        subprocess.run(["umount", "--lazy", str(engine.root)], check=True)


def test_disk_fills_up_during_the_dump(engine: Engine, small_disk: Callable[[int], None]) -> None:
    small_disk(160)
    workload = Subject(engine, "--memory", "32")
    # The probe is read after the room was looked at: by then there is too little of it.
    filler = engine.root / "filler"
    fill = ["dd", "if=/dev/zero", f"of={filler}", "bs=1M", "count=144"]
    with pytest.raises(CheckpointFailed, match="No space left") as failure:
        engine.save(probes={"engine": {"command": fill}})
    assert failure.value.hint.startswith("the workload runs on; the disk is full")
    assert engine.store().all() == []
    filler.unlink()
    workload.runs_on()


def test_a_full_disk_is_named_though_the_log_was_cut_before_it_could(
    engine: Engine, small_disk: Callable[[int], None]
) -> None:
    small_disk(1)
    checkpoint = Checkpoint(engine.root)
    checkpoint.work.mkdir()
    log = checkpoint.work / "criu.log"
    log.write_text("(00.100000) Dumping pages\n(00.224188) Error")
    assert criu.errors(checkpoint) == ["CRIU names no error; its log ends: (00.224188) Error"]
    filler = engine.root / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False)
    assert criu.errors(checkpoint)[0] == "No space left on device"
    with log.open("a") as file:
        assert file.write(" (criu/x.c:1): Cannot write\n")
    # It fits into the log's last page, and does not hide the cause.
    assert criu.errors(checkpoint) == ["No space left on device", "Cannot write"]


class Dump:
    """A checkpoint operation under way, and the processes that take part in it."""

    def __init__(self, engine: Engine, operation: str = "op1", **order: Any) -> None:
        self.engine = engine
        self.operation = operation
        self.draft = engine.store().directory / ".ck1"
        engine.start(operation, "checkpoint", engine.order(**order))

    @property
    def runner(self) -> int:
        return self.engine.runner(self.operation)

    def criu(self) -> int:
        """CRIU itself, not the nsenter that starts it; waits until it is at work."""
        until(lambda: (self.draft / "work" / "criu.log").exists(), "CRIU writes its log")
        found: list[int] = until(lambda: self.engine.criu("--tree"), "CRIU dumps")
        return found[0]

    def asking(self) -> int:
        """The action script, once it waits for the engine's vote."""
        return int(until(self._asking, "the hook asks for the vote"))

    def _asking(self) -> int:
        for process in processes.tree(os.getpid()):
            with suppress(OSError):
                base = Path(f"/proc/{process.pid}")
                links = [os.readlink(base / "fd" / fd) for fd in os.listdir(base / "fd")]
                if (
                    b"criu-hook" in (base / "cmdline").read_bytes()
                    and b"CRTOOLS_SCRIPT_ACTION=post-dump" in (base / "environ").read_bytes()
                    and any(link.startswith("socket:") for link in links)
                ):
                    return process.pid
        return 0

    def outcome(self) -> dict[str, Any]:
        status = self.engine.wait(self.operation)
        assert status["result"] is None, status
        error: dict[str, Any] = status["error"] or {"code": status["state"]}
        return error

    def orphans_gone(self) -> None:
        until(lambda: not self.engine.criu(), "CRIU has ended")


def pages(dump: Dump) -> bool:
    return any(file.stat().st_size > 1 << 20 for file in dump.draft.glob("images/pages-*.img"))


CRIU_MOMENTS: dict[str, Callable[[Dump], object]] = {
    "just started": lambda dump: dump.criu(),
    "writing pages": lambda dump: until(lambda: pages(dump), "pages are written"),
    "waiting for the vote": lambda dump: dump.asking(),
}


@pytest.mark.parametrize("moment", CRIU_MOMENTS)
def test_criu_is_killed(engine: Engine, moment: str) -> None:
    workload = Subject(engine, *BALLAST)
    dump = Dump(engine)
    if moment == "waiting for the vote":
        dump.criu()
        os.kill(dump.runner, signal.SIGSTOP)
    CRIU_MOMENTS[moment](dump)
    os.kill(dump.criu(), signal.SIGKILL)
    os.kill(dump.runner, signal.SIGCONT)
    error = dump.outcome()
    assert error["code"] == "checkpoint_failed", error
    workload.runs_on()


def test_runner_is_killed_while_criu_waits_for_its_vote(engine: Engine) -> None:
    workload = Subject(engine, *BALLAST)
    dump = Dump(engine)
    dump.criu()
    os.kill(dump.runner, signal.SIGSTOP)
    dump.asking()
    assert state_letter(workload.root) == "t", "frozen by CRIU"
    os.kill(dump.runner, signal.SIGKILL)
    assert dump.outcome()["code"] == "interrupted"
    dump.orphans_gone()
    assert (dump.draft / "marks" / "aborted").exists()
    assert engine.rpc("settle", workload="web", checkpoint="ck1") == {
        "running": True,
        "ended": {},
        "checkpoint": None,
    }
    engine.rpc("release", workload="web", run="run1")
    workload.runs_on()


def test_runner_is_killed_between_its_intent_and_its_vote(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is there, whole and signed, but the original ran on past it."""
    workload = Subject(engine)
    child = os.fork()
    if child == 0:
        mark = Checkpoint.mark

        def mark_and_die(self: Checkpoint, which: Mark, data: dict[str, Any]) -> None:
            mark(self, which, data)
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(Checkpoint, "mark", mark_and_die)
        with suppress(BaseException):
            engine.save()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    until(lambda: not engine.criu(), "CRIU has ended")
    assert engine.checkpoint("ck1").state() is State.ABORTED
    assert engine.rpc("settle", workload="web", checkpoint="ck1")["checkpoint"] is None
    assert engine.rpc("images.newest", workload="web")["checkpoint"] is None
    engine.rpc("release", workload="web", run="run1")
    workload.runs_on()


def test_nobody_begins_while_criu_of_a_killed_operation_is_at_work(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write into the same directory, and its script would take another's vote."""
    workload = Subject(engine)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:

        def die(*_: object) -> None:
            """Die, but leave a process behind that keeps the script waiting for its vote."""
            if os.fork() == 0:
                os.close(writer)
                for fd in os.listdir("/proc/self/fd"):
                    with suppress(OSError):
                        if os.readlink(f"/proc/self/fd/{fd}").endswith("operation.lock"):
                            os.close(int(fd))
                os.read(reader, 1)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(Checkpoint, "write", die)
        with suppress(BaseException):
            engine.save()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert state_letter(workload.root) == "t", "CRIU waits for the vote"
    second = engine.op("op2", "checkpoint", engine.order())
    assert second["error"]["code"] == "busy", second
    os.close(writer)
    until(lambda: not engine.criu(), "CRIU has ended")
    assert (engine.store().directory / ".ck1" / "marks" / "aborted").exists()
    engine.rpc("release", workload="web", run="run1")
    workload.runs_on()


def test_cancelled_during_the_dump(engine: Engine) -> None:
    workload = Subject(engine, *BALLAST)
    dump = Dump(engine)
    dump.criu()
    os.kill(dump.runner, signal.SIGSTOP)
    os.kill(dump.runner, signal.SIGTERM)
    dump.asking()
    os.kill(dump.runner, signal.SIGCONT)
    error = dump.outcome()
    assert (error["code"], error["hint"]) == ("cancelled", "the workload runs on")
    workload.runs_on()


def test_cancelled_by_a_caller(engine: Engine) -> None:
    """Whenever it comes: cancelled with the workload running, or done with it saved."""
    workload = Subject(engine, *BALLAST)
    dump = Dump(engine)
    status = engine.rpc("op.cancel", id="op1", seconds=60)
    assert status["state"] == "failed", status
    assert status["error"]["code"] == "cancelled"
    dump.orphans_gone()
    workload.runs_on()


@pytest.mark.parametrize("deadline", [0.001, 0.05])
def test_deadline_passes(engine: Engine, deadline: float) -> None:
    workload = Subject(engine, *BALLAST)
    with pytest.raises(CheckpointFailed, match="had not asked after") as failure:
        engine.save(deadline=deadline)
    assert failure.value.hint == "the workload runs on"
    assert engine.criu() == [], "it said that it runs on while CRIU was at work"
    workload.runs_on()


def test_workload_is_killed_while_it_is_frozen(engine: Engine) -> None:
    """Its images are complete by then and it never ran on: so they are the last it was."""
    workload = Subject(engine, *BALLAST)
    dump = Dump(engine)
    dump.criu()
    os.kill(dump.runner, signal.SIGSTOP)
    dump.asking()
    os.kill(workload.root, signal.SIGKILL)
    os.kill(dump.runner, signal.SIGCONT)
    assert engine.wait("op1")["state"] == "done"
    assert engine.copies() == 0
    assert engine.restore().report["running"]
    assert engine.ask("/proof") == workload.proof


def test_workload_is_killed_before_it_was_saved(engine: Engine) -> None:
    """With half an image it is gone, and that is said; with a whole one it was in time."""
    workload = Subject(engine, "--memory", "256")
    dump = Dump(engine)
    until(lambda: pages(dump), "pages are written")
    os.kill(workload.root, signal.SIGKILL)
    status = engine.wait("op1")
    assert engine.copies() == 0
    if status["state"] == "done":
        assert [checkpoint.state() for checkpoint in engine.store().all()] == [State.SEALED]
    else:
        assert status["error"]["code"] == "ended_in_dump", status
        assert engine.store().all() == []


def test_two_at_once(engine: Engine) -> None:
    Subject(engine, *BALLAST)
    dump = Dump(engine)
    dump.criu()
    os.kill(dump.runner, signal.SIGSTOP)
    second = engine.op("op2", "checkpoint", engine.order("ck2"))
    assert second["error"]["code"] == "busy"
    os.kill(dump.runner, signal.SIGCONT)
    assert engine.wait("op1")["state"] == "done"
    assert engine.copies() == 0
    assert not is_held(engine.files().operation_lock)


def test_name_of_a_checkpoint_that_exists(engine: Engine) -> None:
    """It is never written over; and that is known before anything is frozen."""
    engine.serve()
    engine.save()
    launched = engine.restore()
    assert launched.report["running"]
    engine.rpc("release", workload="web", run="run1")
    with pytest.raises(PitstopError, match="ck1") as failure:
        engine.save()
    assert failure.value.code in ("bad_input", "refused")
    assert engine.checkpoint("ck1").state() is State.CONSUMED
    assert engine.copies() == 1


@pytest.mark.parametrize("name", ["../ck", "a/b", ".ck", "", "x" * 300, "a b"])
def test_name_that_is_no_name(engine: Engine, name: str) -> None:
    launched = engine.launch("sleep", "1000")
    root = launched.root
    with pytest.raises(PitstopError) as failure:
        engine.save(name)
    assert failure.value.code == "bad_input"
    assert state_letter(root) == "S"
    assert engine.store().all() == []
    with pytest.raises(EngineError):
        engine.rpc("images.verify", workload="web", checkpoint=name)
