"""Whole runs on a real Slurm: jobs survive, their owners come first, foreign drains stay."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from pitstop.demo.slurm_scenario import play
from pitstop.model.errors import PitstopError, Refused
from pitstop.model.result import RunResult
from pitstop.model.words import Outcome, Strategy, Verb
from pitstop.steps.execute import execute
from pitstop.steps.runs import drive, open_run
from tests.rigs.lab import require_lab
from tests.rigs.slurm import require_slurm
from tests.rigs.slurm_site import NODE, Cut, SlurmRuns, hooked, one


def test_cancelled_while_it_is_held_in_the_queue(runs: SlurmRuns) -> None:
    job = runs.counter()
    plan = runs.plan(runs.slurm_command("scancel", job))
    result = runs.run(plan)
    assert (result.state, one(result).outcome) == ("done", Outcome.UNTOUCHED)
    assert "CANCELLED" in one(result).cause
    assert runs.cluster.state(job) in ("", "CANCELLED")
    assert runs.images(f"counter-{job}") == []
    assert runs.node_line() == "idle|none"


def test_cancelled_when_it_is_saved_and_its_launcher_waits(runs: SlurmRuns) -> None:
    """Slurm would requeue even a cancelled job: then its owner's word would be undone."""
    job = runs.counter()

    def cancel(verb: Verb, _subject: str) -> None:
        if verb is Verb.REQUEUE:
            assert runs.cluster.state(job) == "RUNNING"  # its launcher stays
            runs.cluster.run("scancel", job)

    result = runs.run(runs.plan(), cancel)
    assert (result.state, one(result).outcome) == ("done", Outcome.UNTOUCHED)
    assert runs.cluster.state(job) in ("", "CANCELLED")
    assert runs.images(f"counter-{job}") == []


def test_a_checkpoint_that_nobody_can_verify_where_it_lands(runs: SlurmRuns) -> None:
    """Without the keys its launcher starts it cold, and the report says why."""
    job = runs.counter()
    state = runs.cluster.lab.root / "nodes"

    def lose_the_launcher(verb: Verb, _subject: str) -> None:
        if verb is Verb.RELEASE:
            for name in ("n1", "n2", "n3"):
                keys = state / name / "state" / "keys"
                keys.rename(keys.with_name("keys-away"))

    try:
        result = runs.run(runs.plan(), lose_the_launcher)
    finally:
        for name in ("n1", "n2", "n3"):
            keys = state / name / "state" / "keys-away"
            if (keys.with_name("keys")).exists():
                shutil.rmtree(keys.with_name("keys"))
            keys.rename(keys.with_name("keys"))
    assert one(result).outcome is Outcome.COLD_STARTED, (result.cause, one(result).cause)
    assert "no key" in one(result).cause or "trusts" in one(result).cause
    assert runs.cluster.state(job) == "RUNNING"


def test_a_saved_job_that_dies_with_its_launcher_keeps_its_checkpoint(runs: SlurmRuns) -> None:
    job = runs.counter()

    def kill(verb: Verb, _subject: str) -> None:
        if verb is Verb.REQUEUE:
            record = runs.slurm.shared / "workloads" / f"counter-{job}" / "record.json"
            launcher = json.loads(record.read_text())["launcher_pid"]
            runs.cluster.lab.node(NODE).run(["kill", "-KILL", str(launcher)])
            runs.cluster.until(lambda: runs.cluster.state(job) in ("", "FAILED"), "it failed")

    result = runs.run(runs.plan(), kill)
    assert (result.state, one(result).outcome) == ("partial", None)
    assert "is kept" in one(result).cause
    assert [image.endswith("sealed") for image in runs.images(f"counter-{job}")] == [True]


def test_the_last_task_of_an_array_is_not_the_array(runs: SlurmRuns) -> None:
    """It has the array's own number: by that all its siblings would be requeued with it."""
    runs.changes["others"] = {"not_launched": "requeue"}
    array = runs.cluster.submit("--array=0-1", "--time=60", "--cpus-per-task=8", "--exclude=n1")
    both = ("squeue", "-h", f"--jobs={array}", "--states=R", "--format=%A %N")
    runs.cluster.until(lambda: len(runs.cluster.run(*both).splitlines()) == 2, "both tasks run")
    at = dict(line.split() for line in runs.cluster.run(*both).splitlines())
    assert sorted(at.values()) == ["n2", "n3"]
    result = runs.run(runs.plan(node=at[array]))
    assert (result.state, one(result).name) == ("done", f"job-{array}")
    assert one(result).outcome is Outcome.REQUEUED
    shown = runs.cluster.run("scontrol", "-o", "show", "job", array)
    restarts = {line.split()[0]: "Restarts=1" in line for line in shown.splitlines()}
    assert sorted(restarts.values()) == [False, True]
    assert restarts[f"JobId={array}"]


def test_cancelled_before_anything(runs: SlurmRuns) -> None:
    job = runs.counter()
    plan = runs.plan()
    runs.cluster.run("scancel", job)
    runs.cluster.until(lambda: runs.cluster.state(job) in ("", "CANCELLED"), "cancelled")
    result = runs.run(plan)
    assert (result.state, one(result).outcome) == ("done", Outcome.UNTOUCHED)
    assert "had ended by itself" in one(result).cause


def test_a_job_that_came_after_the_plan(runs: SlurmRuns) -> None:
    job = runs.counter()
    plan = runs.plan()
    late = runs.submit("sleep 1000")
    result = runs.run(plan)
    assert result.state == "failed"
    assert f"since it was planned: {late} (root)" in result.cause
    assert [runs.cluster.state(j) for j in (job, late)] == ["RUNNING", "RUNNING"]
    assert runs.node_line() == "mixed|none"  # our drain is taken back
    runs.counts()
    assert runs.is_one_process()


def test_somebody_opens_the_node_before_the_first_disruptive_step(runs: SlurmRuns) -> None:
    runs.counter()

    def resume(verb: Verb, _subject: str) -> None:
        if verb is Verb.MAINTAIN:
            runs.cluster.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME")

    result = runs.run(runs.plan(["touch", str(runs.home / "touched")]), resume)
    assert result.state == "failed"
    assert "somebody has opened it" in result.cause
    assert not (runs.home / "touched").exists()
    assert one(result).outcome in (Outcome.RESTORED, Outcome.MIGRATED)
    runs.counts()
    assert runs.is_one_process()


def test_what_slurm_will_not_requeue_comes_back_where_it_is(runs: SlurmRuns) -> None:
    """Saved already, and then given up: the same job goes on, in the same process."""
    job = runs.counter()

    def forbid(verb: Verb, _subject: str) -> None:
        if verb is Verb.REQUEUE:
            runs.cluster.run("scontrol", "update", f"JobId={job}", "Requeue=0")

    result = runs.run(runs.plan(), forbid)
    assert (result.state, one(result).outcome) == ("failed", Outcome.RESTORED)
    assert "presently disabled" in result.cause
    runs.counts()
    assert runs.is_one_process()
    assert runs.cluster.state(job) == "RUNNING"
    restarts = runs.cluster.run("scontrol", "show", "job", job)
    assert "Restarts=0" in restarts
    assert runs.node_line() == "mixed|none"


def test_the_gate_says_no_where_it_lands(runs: SlurmRuns) -> None:
    runs.version.write_text("1.0\n")
    runs.changes["others"] = {"engine": {"command": ["cat", str(runs.version)]}}
    runs.counter()
    plan = runs.plan(["sh", "-c", f"echo 2.0 > {runs.version}"])
    result = runs.run(plan)
    assert (result.state, one(result).outcome) == ("done", Outcome.COLD_STARTED)
    assert "engine.version: 1.0 -> 2.0" in one(result).cause
    runs.counts()
    born = {link[2] for link in runs.links()}
    assert len(born) == 2


def test_maintenance_fails_and_jobs_go_elsewhere(runs: SlurmRuns) -> None:
    runs.counter()
    result = runs.run(runs.plan(["false"]))
    assert (result.state, result.node_state) == ("partial", "quarantined")
    assert one(result).outcome is Outcome.MIGRATED
    assert runs.node_line() == f"drained|pitstop:{runs.name}"
    runs.counts()
    assert runs.is_one_process()
    with closing(open_run(runs.home, runs.name)) as ctx:
        ctx.node.call("unquarantine", run=runs.name)


def test_a_driver_that_dies_before_and_after_every_step(runs: SlurmRuns) -> None:
    job = runs.counter()
    with closing(runs.begin(runs.plan())):
        pass
    seen: set[tuple[str, Verb]] = set()
    result: RunResult | None = None
    while result is None:
        with closing(open_run(runs.home, runs.name)) as ctx:
            step = hooked(ctx, lambda _v, _s: None)

            def dying(verb: Verb, subject: str, step=step) -> dict[str, object]:  # type: ignore[no-untyped-def]
                for when in ("before", "after"):
                    if when == "after":
                        done: dict[str, object] = step(verb, subject)
                    if (when, verb) not in seen:
                        seen.add((when, verb))
                        raise Cut
                return done

            try:
                result = drive(ctx, dying)
            except Cut:
                continue
    assert {v for _, v in seen} >= {Verb.DRAIN, Verb.CHECKPOINT, Verb.REQUEUE, Verb.RELEASE}
    assert (result.state, one(result).outcome) in [
        ("done", Outcome.RESTORED),
        ("done", Outcome.MIGRATED),
    ]
    runs.counts()
    assert runs.is_one_process()
    assert "Restarts=1" in runs.cluster.run("scontrol", "show", "job", job)
    assert not runs.node_line().startswith("drain")


def test_the_node_dies_when_a_job_is_saved_and_not_requeued_yet(runs: SlurmRuns) -> None:
    """Slurm requeues it, and its launcher elsewhere waits until the run lets go of it."""
    runs.changes["drain_deadline"] = 3  # a node without power is not called empty
    job = runs.counter()
    node = runs.cluster.lab.node(NODE)

    def lose_power(verb: Verb, _subject: str) -> None:
        if verb is not Verb.REQUEUE:
            return
        node.power_cut()
        runs.cluster.run("scontrol", "update", f"NodeName={NODE}", "State=DOWN", "Reason=no power")
        runs.cluster.wait_job(job, "PENDING", 60)
        runs.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        runs.cluster.wait_job(job, "RUNNING", 60)
        node.boot()

    result = runs.run(runs.plan(), lose_power)
    assert one(result).outcome is Outcome.MIGRATED, (result.cause, one(result).cause)
    runs.counts()
    assert runs.is_one_process()
    assert runs.node_line().endswith("|no power")  # whoever said so


def test_its_checkpoint_lies_on_one_node_only(runs: SlurmRuns) -> None:
    runs.changes["shared_state"] = False
    job = runs.counter()
    result = runs.run(runs.plan())
    assert (result.state, one(result).outcome) == ("done", Outcome.RESTORED)
    assert f"ReqNodeList={NODE}" in runs.cluster.run("scontrol", "show", "job", job)
    assert runs.is_one_process()


def test_slurm_reboots_the_node(runs: SlurmRuns) -> None:
    """As an administrator would: so Slurm does not take it for one that fell over."""
    runs.changes["reboot"] = "slurm"
    runs.counter()
    before = runs.cluster.lab.node(NODE).boot_id
    said = (runs.cluster.root / "slurmctld.log").stat().st_size
    result = runs.run(runs.plan(runbook="patch-and-restart"))
    assert result.state == "done", result.cause
    assert one(result).outcome in (Outcome.RESTORED, Outcome.MIGRATED)
    assert runs.cluster.lab.node(NODE).boot_id != before
    log = (runs.cluster.root / "slurmctld.log").read_text()[said:]
    assert "reboot" in log
    assert f"Node {NODE} unexpectedly rebooted" not in log
    runs.counts()
    assert runs.is_one_process()


def test_jobs_without_a_launcher(runs: SlurmRuns) -> None:
    runs.changes["jobs"] = [
        {"match_name": "short", "not_launched": "wait", "wait_deadline": 100},
        {"match_name": "again", "not_launched": "requeue"},
    ]
    stop = runs.home / "stop"
    until_told = f"until [ -e {stop} ]; do sleep 0.2; done"
    short = runs.submit(until_told, "--job-name=short", "--time=1")
    again = runs.submit(f"date +%s%N >> {runs.home}/starts; sleep 1000", "--job-name=again")
    other = runs.submit("sleep 1000", "--job-name=other")
    plan = runs.plan()
    by_title = {job.title: job for job in plan.jobs}
    assert {title: job.strategy for title, job in by_title.items()} == {
        "short": Strategy.WAIT,
        "again": Strategy.REQUEUE,
        "other": Strategy.REFUSE,
    }
    assert not plan.go
    assert "does not run under `pitstop-node launch`" in by_title["other"].reason
    with pytest.raises(Refused, match="does not run under"):
        runs.begin(plan)
    assert [runs.cluster.state(job) for job in (short, again, other)] == ["RUNNING"] * 3
    runs.cluster.run("scancel", other)
    runs.cluster.until(lambda: runs.cluster.state(other) in ("", "CANCELLED"), "cancelled")

    def end(verb: Verb, _subject: str) -> None:
        if verb is Verb.WAIT:
            stop.touch()

    result = runs.run(runs.plan(), end)
    assert result.state == "done", result.cause
    outcomes = {w.name: w.outcome for w in result.workloads}
    assert outcomes == {f"job-{short}": Outcome.UNTOUCHED, f"job-{again}": Outcome.REQUEUED}
    runs.cluster.until(
        lambda: len((runs.home / "starts").read_text().splitlines()) == 2, "it starts over"
    )


def test_a_job_that_does_not_save_itself_runs_on(runs: SlurmRuns) -> None:
    signal = {"file": f"{runs.home}/never", "deadline": 1, "quiet": 0}
    runs.changes["others"] = {"multi_node": "signal", "signal": signal}
    deaf = "srun sh -c 'trap \"\" USR1; exec sleep 1000'"
    wide = runs.submit(deaf, "--nodes=2", "--ntasks-per-node=1")
    result = runs.run(runs.plan())
    assert (result.state, one(result).outcome) == ("failed", Outcome.UNTOUCHED)
    assert "there is no such file" in result.cause
    assert runs.node_line() == "mixed|none"
    assert wide in runs.cluster.run("squeue", "-h", "--format=%i")


def test_two_runs_at_once(runs: SlurmRuns) -> None:
    runs.counter()
    first = runs.plan()
    with closing(runs.begin(first)) as ctx:
        execute(ctx, Verb.PRECHECK, NODE)
        execute(ctx, Verb.DRAIN, NODE)
        other = SlurmRuns(runs.slurm, runs.home, f"{runs.name}-2", {})
        refused = other.plan()
        assert not refused.go
        assert f"drained by run {runs.name}" in refused.no_go[0]
        assert runs.run_other(first).state == "refused"
    assert runs.node_line() == f"draining|pitstop:{runs.name}"


def test_a_slurm_that_does_not_answer_is_no_empty_node(runs: SlurmRuns) -> None:
    runs.counter()
    runs.changes["conf"] = str(runs.home / "none.conf")
    (runs.home / "none.conf").write_text(
        runs.cluster.conf.read_text() + "SlurmctldPort=6899\nMessageTimeout=2\n"
    )
    with pytest.raises(PitstopError, match="Unable to contact"):
        runs.plan()


def test_the_whole_scenario(tmp_path: Path) -> None:
    """What `pitstop demo --rig slurm` plays, with steps alone."""
    require_lab()
    require_slurm()

    def by_steps(home: Path, run: str) -> RunResult:
        with closing(open_run(home, run)) as ctx:
            return drive(ctx)

    found = play(tmp_path, "steps", by_steps, lambda _t: None)
    assert found["good"], found
