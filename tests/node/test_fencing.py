"""Never two copies, never the same past twice."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from pitstop.images.checkpoint import Mark, State
from pitstop.model.errors import Refused
from pitstop.node import processes
from pitstop.node.record import Phase
from tests.rigs.engine import PORT, SERVER, WORKLOAD, Engine, Launched, until

COLD = (sys.executable, str(SERVER))


def release(engine: Engine) -> None:
    engine.rpc("release", workload=WORKLOAD, run="run1")


def refused_restore(engine: Engine, why: str, checkpoint: str = "ck1") -> None:
    """The launcher refuses, and starts nothing."""
    copies = engine.copies()
    launched = engine.restore(checkpoint)
    assert launched.wait() in (1, 3)
    assert why in launched.said
    assert engine.copies() == copies


class TestUsedUp:
    """A checkpoint is a past that is taken up once."""

    def test_consumed(self, engine: Engine) -> None:
        engine.serve()
        engine.save()
        restored = engine.restore()
        assert restored.report["running"]
        mark = engine.checkpoint("ck1").marked(Mark.CONSUMED)
        assert mark is not None
        assert (mark["run"], mark["generation"]) == ("run1", 2)
        restored.signal(signal.SIGKILL)
        restored.wait()
        until(lambda: not engine.files().running(), "all of it has ended")
        refused_restore(engine, "cannot be restored: it is consumed")

    def test_stale(self, engine: Engine) -> None:
        """It was cold-started since: a restore would throw it back."""
        engine.serve()
        engine.save()
        release(engine)
        cold = engine.serve(options=("--start", "cold"))
        cold.signal(signal.SIGKILL)
        cold.wait()
        until(lambda: not engine.files().running(), "all of it has ended")
        assert engine.checkpoint("ck1").state() is State.SEALED
        refused_restore(engine, "stale")

    def test_a_start_that_failed_makes_it_stale_too(self, engine: Engine) -> None:
        """Whether that start did anything nobody knows."""
        engine.serve()
        engine.save()
        release(engine)
        assert engine.launch("no-such-program", options=("--start", "cold")).wait() == 1
        refused_restore(engine, "stale")

    @pytest.mark.parametrize("mark", [Mark.ABORTED, None])
    def test_never_finished(self, engine: Engine, mark: Mark | None) -> None:
        engine.serve()
        engine.save()
        checkpoint = engine.checkpoint("ck1")
        if mark is None:
            for file in checkpoint.marks.iterdir():
                file.unlink()
            refused_restore(engine, "it is unfinished")
        else:
            checkpoint.mark(mark, {})
            refused_restore(engine, "it is aborted")

    def test_a_draft_is_never_found(self, engine: Engine) -> None:
        engine.serve()
        engine.save()
        checkpoint = engine.checkpoint("ck1")
        checkpoint.path.rename(checkpoint.path.with_name(".ck1"))
        for name in (".ck1", "ck1", "../web/.ck1"):
            refused_restore(engine, "there is no such checkpoint", name)
        release(engine)
        assert engine.serve().report["how"] == "cold"

    def test_of_another_workload(self, engine: Engine) -> None:
        engine.serve()
        engine.save()
        os.rename(engine.state.images("web"), engine.state.root / "images" / "other")
        launched = engine.restore(workload="other")
        assert launched.wait() == 1
        assert "is of workload web" in launched.said


class TestAuto:
    """What a supervisor does: the same command, again and again."""

    def test_restores_once_and_then_starts_cold(self, engine: Engine) -> None:
        engine.serve()
        engine.count_to(3)
        engine.save()
        release(engine)
        second = engine.serve()
        assert second.report["how"] == "restored"
        assert engine.ask("/count")["count"] == 4
        second.signal(signal.SIGTERM)
        assert second.wait() == -signal.SIGTERM
        third = engine.serve()
        assert (third.report["how"], third.report["cause"]) == ("cold", "")
        assert engine.ask("/count")["count"] == 1
        assert engine.record().generation == 3

    def test_says_why_it_starts_cold(self, engine: Engine) -> None:
        engine.serve()
        engine.save()
        release(engine)
        engine.serve(options=("--start", "cold")).signal(signal.SIGKILL)
        until(lambda: not engine.files().running(), "it has ended")
        third = engine.serve()
        assert third.report["how"] == "cold"
        assert "stale" in third.report["cause"]
        assert "stale" in engine.record().cause
        assert "no restore, cold start" in third.said

    def test_a_crash_right_after_the_dump_is_settled(self, engine: Engine) -> None:
        """Everybody died before anybody could call it sealed; the lock proves the end."""
        engine.serve()
        engine.count_to(2)
        engine.save()
        (engine.checkpoint("ck1").marks / "sealed").unlink()
        assert engine.checkpoint("ck1").state() is State.INTENDED
        release(engine)
        assert engine.serve().report["how"] == "restored"
        assert engine.ask("/count")["count"] == 3

    def test_held_by_a_run(self, engine: Engine) -> None:
        """A supervisor must not start it in the middle of a maintenance."""
        engine.serve()
        engine.save()
        for options in ((), ("--run", "run2"), ("--start", "cold", "--run", "run2")):
            launched = engine.launch(*COLD, options=options)
            assert launched.wait() == 3
            assert "held by run run1" in launched.said
        assert engine.copies() == 0
        status = engine.op("c", "cold-start", engine.bring_up(run="run2"))
        assert status["error"]["code"] == "refused"
        status = engine.op("s", "stop", {"workload": WORKLOAD, "run": "run2"})
        assert status["error"]["code"] == "refused"
        assert engine.restore().report["running"]


class TestTwoCopies:
    def test_restore_while_a_copy_runs(self, engine: Engine) -> None:
        engine.serve()
        engine.save()
        release(engine)
        engine.serve(options=("--start", "cold"))
        refused_restore(engine, "a copy of it runs already")
        arguments = engine.bring_up(checkpoint="ck1")
        status = engine.op("r", "restore", arguments)
        assert status["error"]["code"] == "refused"
        assert engine.copies() == 1
        assert engine.checkpoint("ck1").state() is State.SEALED

    def test_two_restores_at_once(self, engine: Engine) -> None:
        engine.serve()
        engine.count_to(2)
        engine.save()
        launchers: list[Launched] = [
            engine.launch(options=("--start", "restore", "--run", "run1")) for _ in range(3)
        ]
        reports = [launched.report for launched in launchers]
        assert sorted(bool(report.get("running")) for report in reports) == [False, False, True]
        assert {report["failed"]["code"] for report in reports if "failed" in report} == {"refused"}
        assert engine.copies() == 1
        losers = [x for x, report in zip(launchers, reports, strict=True) if "failed" in report]
        assert [loser.wait() for loser in losers] == [3, 3]
        assert engine.ask("/count")["count"] == 3

    def test_two_restore_operations_at_once(self, engine: Engine) -> None:
        engine.serve()
        engine.save()
        for identifier in ("a", "b"):
            engine.start(identifier, "restore", engine.bring_up(checkpoint="ck1"))
        done = [engine.wait(identifier) for identifier in ("a", "b")]
        assert engine.copies() == 1
        assert "done" in [status["state"] for status in done]
        for status in done:
            assert status["state"] == "done" or status["error"]["code"] == "busy", status

    @pytest.mark.parametrize("how", ["restore", "cold-start"])
    def test_a_killed_operation_is_taken_up_by_the_next(self, engine: Engine, how: str) -> None:
        """Its launcher lives on; the retry finds it and goes on there."""
        engine.serve()
        engine.count_to(2)
        engine.save()
        broken = engine.root / "broken"
        broken.write_text("")  # not ready, so that the operation is still waiting
        changes = {"checkpoint": "ck1"} if how == "restore" else {}
        arguments = engine.bring_up(**changes)
        url = f"http://127.0.0.1:{PORT}/"
        arguments["ready"] = {"command": ["test", "!", "-e", str(broken)], "deadline": 30}
        engine.start("a", how, arguments)
        until(lambda: engine.record().phase is Phase.RUNNING and engine.copies(), "it runs")
        root = engine.ask("/", quiet=True).get("pid")
        os.kill(engine.runner("a"), signal.SIGKILL)
        assert engine.wait("a")["state"] == "interrupted"
        engine.start("b", how, arguments)
        broken.unlink()
        status = engine.wait("b")
        assert status["state"] == "done", status
        assert status["result"]["generation"] == 2
        assert engine.copies() == 1
        until(lambda: engine.ask("/", quiet=True), url)
        assert root in (None, engine.ask("/")["pid"])
        assert engine.ask("/count")["count"] == (3 if how == "restore" else 1)

    def test_another_run_does_not_take_it_up(self, engine: Engine) -> None:
        engine.serve()
        status = engine.op("a", "cold-start", engine.bring_up(run="run2"))
        assert status["error"]["code"] == "refused"
        assert engine.copies() == 1


class TestStop:
    @pytest.mark.parametrize("grace", [20.0, 0.0])
    def test_ends_all_of_it(self, engine: Engine, grace: float) -> None:
        launched = engine.serve()
        members = launched.tree
        status = engine.op("s", "stop", {"workload": WORKLOAD, "run": "run1", "grace": grace})
        assert status["result"]["how"] == ("signal" if grace else "kill")
        assert processes.wait_gone(members, 0) == []
        assert engine.copies() == 0
        assert engine.files().holder() == "run1"
        again = engine.op("s2", "stop", {"workload": WORKLOAD, "run": "run1"})
        assert again["result"]["how"] == "gone"

    def test_one_that_ignores_its_signal(self, engine: Engine) -> None:
        launched = engine.launch("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done")
        assert launched.report["running"]
        until(lambda: "up" in engine.output(), "the trap is set")
        members = launched.tree
        status = engine.op("s", "stop", {"workload": WORKLOAD, "run": "r", "grace": 0.2})
        assert status["result"]["how"] == "kill"
        assert processes.wait_gone(members, 0) == []


class TestPortTaken:
    """Somebody else listens where the workload did."""

    def test_nothing_half_alive_and_nothing_used_up(self, engine: Engine) -> None:
        engine.serve()
        engine.count_to(2)
        engine.save()
        with socket.create_server(("127.0.0.1", PORT)):
            status = engine.op("a", "restore", engine.bring_up(checkpoint="ck1"))
            assert status["state"] == "failed"
            assert status["error"]["code"] == "port_taken"
            assert "Address already in use" in status["error"]["cause"]
            assert engine.copies() == 0
            assert not engine.files().running()
        assert engine.checkpoint("ck1").state() is State.SEALED
        assert engine.record().generation == 1
        status = engine.op("b", "restore", engine.bring_up(checkpoint="ck1"))
        assert status["state"] == "done", status
        assert engine.ask("/count")["count"] == 3

    def test_auto_starts_cold_and_says_why(self, engine: Engine) -> None:
        engine.serve()
        engine.save()
        release(engine)
        with socket.create_server(("127.0.0.1", PORT)):
            launched = engine.launch("sleep", "1000")
            assert launched.report["how"] == "cold"
            assert "Address already in use" in launched.report["cause"]


class TestNeverReady:
    """Half alive is not alive: it is ended again, and proven gone."""

    @pytest.mark.parametrize("what", ["503", "proof"])
    def test_restored(self, engine: Engine, what: str) -> None:
        broken = engine.root / "broken"
        engine.serve("--break-at", str(broken))
        engine.count_to(2)
        proof = {"http": {"url": f"http://127.0.0.1:{PORT}/proof"}}
        engine.save(proof=proof)
        assert engine.checkpoint("ck1").manifest().proof is not None
        arguments = engine.bring_up(checkpoint="ck1", proof=proof)
        if what == "503":
            broken.write_text("")
            arguments["ready"]["deadline"] = 0.5
            cause = "HTTP 503 instead of 200"
        else:
            # A command says it is ready; only the proof finds out that it is not.
            arguments["ready"] = {"command": ["true"], "deadline": 5}
            arguments["proof"] = {"http": {"url": f"http://127.0.0.1:{PORT}/"}}
            cause = "it answers"
        until(lambda: not engine.copies(), "the original is gone")
        status = engine.op("a", "restore", arguments)
        assert status["error"]["code"] == "not_ready", status
        assert cause in status["error"]["cause"]
        assert engine.copies() == 0
        assert not engine.files().running()
        # It did run: its past is used up.
        assert engine.checkpoint("ck1").state() is State.CONSUMED

    def test_proof_is_equal(self, engine: Engine) -> None:
        engine.serve()
        engine.count_to(2)
        proof = {"http": {"url": f"http://127.0.0.1:{PORT}/proof"}, "field": "born"}
        engine.save(proof=proof)
        arguments = engine.bring_up(checkpoint="ck1", proof=proof)
        result = engine.op("a", "restore", arguments)["result"]
        assert result["proof"] == "equal"
        assert 0 < result["ready_seconds"] < 20
        assert engine.files().holder() == ""

    def test_that_ends_at_once(self, engine: Engine) -> None:
        arguments = engine.bring_up()
        arguments["launch"]["command"] = ["sh", "-c", "exit 4"]
        status = engine.op("a", "cold-start", arguments)
        assert status["error"]["code"] == "not_ready"
        assert "the workload ended" in status["error"]["cause"]
        assert engine.record().ended == {"exit": 4}


def test_hold_of_a_run_is_its_own(engine: Engine) -> None:
    files = engine.files()
    files.hold("run1")
    files.hold("run1")
    with pytest.raises(Refused):
        files.hold("run2")
    files.release("run2")
    assert files.holder() == "run1"
    files.release("run1")
    files.release("run1")
    assert files.holder() == ""
