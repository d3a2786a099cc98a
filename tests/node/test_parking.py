"""A launcher that stays in its job after its workload was saved, and a job's other rights."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pitstop.images.checkpoint import State
from pitstop.model.errors import DeadlineExceeded, WorkloadGone
from pitstop.node.files import GRAIN, size_and_time, wait_complete
from pitstop.node.launch import Report
from pitstop.node.parking import bring_back, is_parked
from pitstop.node.record import Phase, launched_here
from tests.rigs.engine import WORKLOAD, Engine, Launched, state_letter, until


@pytest.fixture
def in_job(engine: Engine) -> Engine:
    engine.environment["SLURM_JOB_ID"] = "12"
    return engine


def parked(engine: Engine) -> Launched:
    """Saved, with its launcher waiting."""
    launched = engine.serve()
    engine.count_to(3)
    engine.save(stay=True)
    return launched


def order(**changes: object) -> dict[str, object]:
    return {"workload": WORKLOAD, "run": "run1", "checkpoint": "ck1", "deadline": 30, **changes}


def test_it_waits_and_brings_its_workload_back(in_job: Engine) -> None:
    launched = parked(in_job)
    assert is_parked(in_job.files())
    assert not in_job.files().running()
    assert in_job.copies() == 0
    assert in_job.rpc("workload", workload=WORKLOAD)["parked"]
    found = bring_back(in_job.state, order())
    assert (found["how"], found["cause"], found["generation"]) == ("restored", "", 2)
    assert 0 < found["ready_seconds"] < 30
    assert in_job.ask("/count")["count"] == 4
    assert not is_parked(in_job.files())
    assert in_job.files().holder() == ""
    # Asked again, as after a lost answer: it is there.
    assert bring_back(in_job.state, order())["how"] == "restored"
    assert in_job.copies() == 1
    # It passes signals on as before, and ends as its workload ends.
    launched.signal(signal.SIGTERM)
    assert launched.wait() == -signal.SIGTERM


def test_it_can_be_saved_and_brought_back_again(in_job: Engine) -> None:
    launched = parked(in_job)
    bring_back(in_job.state, order())
    in_job.count_to(2)
    in_job.save("ck2", stay=True)
    bring_back(in_job.state, order(checkpoint="ck2"))
    assert in_job.ask("/count")["count"] == 6
    launched.signal(signal.SIGTERM)
    launched.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_the_end_of_its_job_ends_it(in_job: Engine, number: int) -> None:
    launched = parked(in_job)
    launched.signal(number)
    assert launched.wait() == -number
    assert not is_parked(in_job.files())
    with pytest.raises(WorkloadGone, match="its job has ended"):
        bring_back(in_job.state, order())
    assert in_job.checkpoint("ck1").state() is State.SEALED


def test_other_signals_do_not(in_job: Engine) -> None:
    launched = parked(in_job)
    for number in (signal.SIGUSR1, signal.SIGCONT, signal.SIGUSR2):
        launched.signal(number)
    assert bring_back(in_job.state, order())["how"] == "restored"


def test_what_cannot_be_restored_starts_cold_in_the_same_job(in_job: Engine) -> None:
    launched = parked(in_job)
    images = in_job.checkpoint("ck1").images
    next(images.glob("pages-*.img")).write_bytes(b"other pages")
    found = bring_back(in_job.state, order())
    assert found["how"] == "cold"
    assert "was changed" in found["cause"]
    until(lambda: in_job.ask("/", quiet=True), "it answers")
    assert in_job.ask("/count")["count"] == 1
    launched.signal(signal.SIGTERM)
    launched.wait()


def test_without_being_told_to_it_does_not_stay(in_job: Engine) -> None:
    launched = in_job.serve()
    in_job.save()
    assert launched.wait() == 0
    assert not is_parked(in_job.files())


def test_a_workload_that_ends_by_itself_does_not_park(in_job: Engine) -> None:
    parked(in_job)
    bring_back(in_job.state, order())
    [launched] = in_job._launched
    os.kill(launched.root, signal.SIGKILL)
    assert launched.wait() != 0
    assert in_job.record().phase is Phase.ENDED


def test_whoever_asked_may_be_gone_when_it_is_told(tmp_path: Path) -> None:
    """Its pipe is broken then: no reason to end what was just restored, once and for all."""
    reader, writer = os.pipe()
    os.close(reader)
    report = Report(writer)
    report.say({"running": True})
    with (tmp_path / "other").open("wb") as file:
        os.dup2(file.fileno(), writer)  # the number is another file's by now
        report.say({"failed": "later"})
        os.close(writer)
    assert (tmp_path / "other").read_bytes() == b""


def test_what_runs_here_is_listed_with_its_job(in_job: Engine) -> None:
    assert launched_here(in_job.state) == []
    in_job.serve()
    assert in_job.rpc("launched")["launched"] == [
        {"workload": WORKLOAD, "job": "12", "user": "root"}
    ]
    other = in_job.record()
    in_job.files().write(replace(other, boot_id="of another node"))
    assert in_job.rpc("launched")["launched"] == []
    found = in_job.rpc("inspect", workloads={WORKLOAD: {"probes": {}, "pid_file": None}})
    assert "another node" in found["workloads"][WORKLOAD]["why_not"]
    in_job.files().write(other)


def test_a_job_waits_while_a_run_holds_its_workload(in_job: Engine) -> None:
    """Its scheduler requeued it when its node died in the middle of a run: to fail loses it."""
    in_job.files().hold("run9")
    launched = in_job.launch("sleep", "1000")
    until(lambda: "held by run run9" in launched.said, "it says so")
    assert not in_job.files().running()
    in_job.files().release("run9")
    assert launched.report["running"]
    launched.signal(signal.SIGTERM)
    launched.wait()


def test_a_job_that_waits_for_a_hold_can_be_ended(in_job: Engine) -> None:
    in_job.files().hold("run9")
    launched = in_job.launch("sleep", "1000")
    until(lambda: "held by run run9" in launched.said, "it says so")
    launched.signal(signal.SIGTERM)
    assert launched.wait() == -signal.SIGTERM
    assert in_job.files().holder() == "run9"


def test_what_was_saved_of_an_ended_job_is_removed(in_job: Engine) -> None:
    launched = parked(in_job)
    launched.signal(signal.SIGTERM)
    launched.wait()
    found = in_job.rpc("images.forget", workload=WORKLOAD, checkpoint="ck1", run="run1")
    assert found == {"removed": ["ck1"]}
    assert in_job.store().all() == []
    assert in_job.files().holder() == ""
    again = in_job.rpc("images.forget", workload=WORKLOAD, checkpoint="ck1", run="run1")
    assert again == {"removed": []}


def test_an_order_nobody_answers_has_an_end(in_job: Engine) -> None:
    launched = parked(in_job)
    waits = launched.process.pid
    os.kill(waits, signal.SIGSTOP)
    until(lambda: state_letter(waits) == "T", "it is stopped")
    with pytest.raises(DeadlineExceeded, match="not brought back"):
        bring_back(in_job.state, order(deadline=0.3))
    os.kill(waits, signal.SIGCONT)
    # It obeys the order all the same: asked again, that is found.
    until(lambda: in_job.record().phase is Phase.RUNNING, "it runs")
    assert bring_back(in_job.state, order())["how"] == "restored"


def test_a_file_is_complete_when_it_is_fresh_full_and_quiet(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    since = time.time()
    assert size_and_time(str(path)) is None
    with pytest.raises(DeadlineExceeded, match="no such file"):
        wait_complete(str(path), since, 0, 0.3)
    path.touch()
    with pytest.raises(DeadlineExceeded, match="it is empty"):
        wait_complete(str(path), since, 0, 0.3)
    path.write_bytes(b"half")
    os.utime(path, (since - GRAIN - 60, since - GRAIN - 60))
    with pytest.raises(DeadlineExceeded, match="61 s before the signal"):
        wait_complete(str(path), since, 0, 0.3)
    path.write_bytes(b"whole")
    found = wait_complete(str(path), since, 0, 5)
    assert (found["bytes"], found["path"]) == (5, str(path))


def test_a_file_that_still_grows_is_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    ended = threading.Event()

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while not ended.wait(0.05):
                file.write(b"x")

    since = time.time()
    writer = threading.Thread(target=grow)
    writer.start()
    try:
        with pytest.raises(DeadlineExceeded, match="it still changes"):
            wait_complete(str(path), since, 0.5, 1.5)
    finally:
        ended.set()
        writer.join()
    size = path.stat().st_size
    assert wait_complete(str(path), since, 0.5, 5)["bytes"] == size


def test_a_directory_is_no_checkpoint(tmp_path: Path) -> None:
    assert size_and_time(str(tmp_path)) is None
    assert size_and_time(str(tmp_path / "a" / "b")) is None
