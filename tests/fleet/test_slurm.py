"""Against a real Slurm: what its commands say is read, and only what is ours is undone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from pitstop.decide.shape import shape_of
from pitstop.fleet.scheduler import Claim
from pitstop.fleet.slurm.records import NotUnderstood, read_jobs_text
from pitstop.fleet.slurm.scheduler import Slurm, SlurmRefused
from pitstop.fleet.transport import Completed
from pitstop.model.errors import BadInput, PermanentError, PitstopError, Refused
from pitstop.model.words import Shape
from tests.rigs.engine import until as until_soon
from tests.rigs.slurm import CONTROLLER, GPUS, NODES, InNode, SlurmRig

RUN = "run-7"

# Each look at a cluster is some processes.
until = partial(until_soon, pause=0.2)


@pytest.fixture
def cluster(slurm: SlurmRig) -> Iterator[Slurm]:
    """The cluster with no job on it; afterwards as it was."""
    yield slurm.scheduler()
    slurm.run("scancel", "--quiet", "--state=PENDING")
    slurm.run("scancel", "--quiet", "--state=RUNNING")
    until(lambda: not slurm.run("squeue", "--noheader").strip(), "all jobs are gone", 60)
    shown = slurm.run("scontrol", "--oneliner", "show", "reservation")
    for name in re.findall(r"^ReservationName=(\S+)", shown, re.MULTILINE):
        slurm.run("scontrol", "delete", f"ReservationName={name}")
    for name in NODES:
        state = slurm.run("sinfo", "--noheader", f"--nodes={name}", "--format=%T")
        if state.startswith(("drain", "down")):
            slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
    until(lambda: slurm.run("sinfo", "-h", "--format=%T").split() == ["idle"], "all idle", 30)


def test_an_idle_node(cluster: Slurm) -> None:
    assert cluster.version == (22, 5)
    node = cluster.node("n1")
    assert (str(node.state), node.reason, node.gres[0].count) == ("IDLE", "", GPUS)
    standing = cluster.look("n1", RUN)
    assert (standing.claim, standing.drained, standing.reachable) == (Claim.NOBODY, False, True)
    assert standing.jobs == ()


def test_drained_means_that_nothing_is_left(slurm: SlurmRig, cluster: Slurm) -> None:
    job = slurm.submit("--nodelist=n1", "--gres=gpu:1", "--job-name=größe |=; JobState=COMPLETED")
    slurm.wait_job(job, "RUNNING")
    standing = cluster.drain("n1", RUN)
    assert (standing.claim, standing.reason) == (Claim.OURS, f"pitstop:{RUN}")
    assert (standing.drained, standing.jobs) == (False, (job,))
    assert "DRAIN" in standing.state
    assert cluster.drain("n1", RUN) == standing  # once is enough
    slurm.run("scancel", job)
    until(lambda: cluster.look("n1", RUN).drained, "it is drained", 30)
    assert cluster.give_back("n1", "another-run") is False
    assert cluster.look("n1", RUN).drained
    assert cluster.give_back("n1", RUN) is True
    assert cluster.look("n1", RUN).claim is Claim.NOBODY
    assert cluster.give_back("n1", RUN) is False


def test_what_somebody_else_has_drained_is_left(slurm: SlurmRig, cluster: Slurm) -> None:
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=fan swap ticket 4411")
    standing = cluster.drain("n2", RUN)
    assert (standing.claim, standing.reason) == (Claim.FOREIGN, "fan swap ticket 4411")
    assert standing.drained
    assert cluster.give_back("n2", RUN) is False
    assert cluster.look("n2", RUN) == standing


def test_somebody_takes_over_what_was_ours(slurm: SlurmRig, cluster: Slurm) -> None:
    assert cluster.drain("n2", RUN).claim is Claim.OURS
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=do not use")
    assert cluster.give_back("n2", RUN) is False
    assert cluster.look("n2", RUN).reason == "do not use"


def test_a_reboot_leaves_the_node_to_us(slurm: SlurmRig, cluster: Slurm) -> None:
    """Slurm clears the drain, and writes behind our reason: the node is ours all the same."""
    with pytest.raises(Refused, match=r"not rebooted.*drained by nobody"):
        cluster.reboot("n2", RUN)
    job = slurm.submit("--nodelist=n2")
    slurm.wait_job(job, "RUNNING")
    cluster.drain("n2", RUN)
    with pytest.raises(Refused, match=f"with jobs {job}"):
        cluster.reboot("n2", RUN)
    slurm.run("scancel", job)
    until(lambda: cluster.look("n2", RUN).drained, "it is drained", 30)
    with pytest.raises(Refused, match="drained by foreign"):
        cluster.reboot("n2", "another-run")
    cluster.reboot("n2", RUN)
    cluster.reboot("n2", RUN)  # once is enough
    slurm.reboot_node("n2")
    until(lambda: "reboot complete" in cluster.look("n2", RUN).reason, "it has rebooted", 30)
    standing = cluster.look("n2", RUN)
    assert (standing.claim, standing.drained, standing.state) == (Claim.OURS, True, "DOWN")
    assert cluster.look("n2", "another-run").claim is Claim.FOREIGN
    assert cluster.give_back("n2", RUN) is True
    assert cluster.look("n2", RUN).claim is Claim.NOBODY


def test_a_reservation_keeps_new_jobs_away(slurm: SlurmRig, cluster: Slurm) -> None:
    cluster.reserve("n1", RUN, 0, 90)
    cluster.reserve("n1", RUN, 0, 90)  # once is enough
    slurm.run(
        *("scontrol", "create", "reservation", "ReservationName=theirs", "StartTime=now+1hour"),
        *("Duration=5", "Users=root", "Nodes=n1"),
    )
    waits = slurm.submit("--nodelist=n1", "--time=1")
    until(lambda: "reserved" in slurm.run("squeue", "-h", "-j", waits, "-o", "%r"), "waits", 30)
    until(lambda: "MAINTENANCE" in cluster.look("n1", RUN).state, "it is reserved", 30)
    assert cluster.look("n1", RUN).claim is Claim.NOBODY
    cluster.reserve("n2", RUN, 3600, 1)  # later: what ends before it may still run
    runs = slurm.submit("--nodelist=n2", "--time=1")
    slurm.wait_job(runs, "RUNNING")
    for _ in range(2):
        cluster.unreserve("n1", RUN)
        cluster.unreserve("n2", RUN)
    slurm.wait_job(waits, "RUNNING")
    assert "theirs" in slurm.run("scontrol", "--oneliner", "show", "reservation")


def test_jobs_are_who_holds_the_node(slurm: SlurmRig, cluster: Slurm) -> None:
    done = slurm.submit("--nodelist=n3", script="true")
    wide = slurm.submit("--nodes=2", "--nodelist=n[1-2]", "--gres=gpu:2", "--time=1-00:00:00")
    array = slurm.submit("--nodelist=n3", "--gres=gpu:1", "--array=0-5%2", "--no-requeue")
    slurm.wait_job(wide, "RUNNING")
    until(lambda: len(cluster.jobs_on("n3")) == 2, "two tasks of the array run", 30)
    [found] = cluster.jobs_on("n1")
    assert (found.key, found.nodes, found.gpus) == (wide, ("n1", "n2"), 4)
    assert (found.time_limit, found.requeue) == (86400, True)
    assert found.start is not None and found.end == found.start + 86400
    assert shape_of(dict.fromkeys(found.nodes, 2)) is Shape.MULTI_NODE
    assert cluster.jobs_on("n2") == (found,)
    tasks = cluster.jobs_on("n3")
    assert sorted(task.key for task in tasks) == [f"{array}_0", f"{array}_1"]
    assert [(task.gpus, task.time_limit, task.requeue) for task in tasks] == [
        (1, "unlimited", False)
    ] * 2
    assert done not in [task.key for task in tasks]


def test_text_says_what_json_says(slurm: SlurmRig, cluster: Slurm) -> None:
    job = slurm.submit("--nodelist=n1", "--gres=gpu:2", "--job-name=a b=c", "--time=90")
    array = slurm.submit("--nodelist=n2", "--array=3-9%1")
    slurm.wait_job(job, "RUNNING")
    until(lambda: cluster.jobs_on("n2"), "a task runs", 30)
    shown = [slurm.run("scontrol", "-o", "-d", "show", "job", number) for number in (job, array)]
    text = [found for output in shown for found in read_jobs_text("scontrol", output)]
    for node in ("n1", "n2"):
        [from_json] = cluster.jobs_on(node)
        [from_text] = [j for j in text if j.key == from_json.key]
        for field in ("name", "user", "state", "nodes", "gpus", "time_limit", "requeue"):
            if (field, node) != ("gpus", "n2"):  # without any, text says nothing of them
                assert getattr(from_text, field) == getattr(from_json, field), field
    [pending] = [j for j in text if j.state.base == "PENDING"]
    assert (pending.job_id, pending.waiting, pending.nodes) == (int(array), 6, ())


def test_without_json_no_job_can_hide_another(slurm: SlurmRig, cluster: Slurm) -> None:
    name = "größe |=; JobState=COMPLETED\n1|1|N/A|COMPLETED|1:00|n1|root|gone"
    odd = slurm.submit("--nodelist=n1", f"--job-name={name}", "--time=90")
    array = slurm.submit("--nodelist=n1", "--array=3-4")
    slurm.wait_job(odd, "RUNNING")
    until(lambda: len(cluster.jobs_on("n1")) == 3, "all run", 30)
    by_json = {job.key: job for job in cluster.jobs_on("n1")}
    cluster._has_json = False
    by_text = {job.key: job for job in cluster.jobs_on("n1")}
    assert by_text.keys() == by_json.keys() == {odd, f"{array}_3", f"{array}_4"}
    for key, job in by_text.items():
        for field in ("job_id", "user", "state", "nodes", "time_limit"):
            assert getattr(job, field) == getattr(by_json[key], field), field
    assert cluster.look("n1", RUN).jobs == tuple(by_text)
    assert cluster.jobs_on("n2") == ()


def test_commands_that_are_not_there(slurm: SlurmRig) -> None:
    node = slurm.lab.node(CONTROLLER)

    class Elsewhere(InNode):
        def run(self, argv: Sequence[str], stdin: bytes, timeout: float) -> Completed:
            usual = [w for w in argv if not w.startswith("PATH=")]
            paths = [w.partition(":")[0] for w in argv if w.startswith("PATH=")]
            return super().run([*usual[:2], *paths, *usual[2:]], stdin, timeout)

    with pytest.raises(PermanentError, match="is not there"):
        Slurm(Elsewhere(node), str(slurm.conf), "/opt/none").look("n1", RUN)
    assert Slurm(Elsewhere(node), str(slurm.conf), "/usr/bin").look("n1", RUN).reachable


def test_an_unreachable_node_is_not_given_back(slurm: SlurmRig, cluster: Slurm) -> None:
    cluster.drain("n1", RUN)
    slurm.run("scontrol", "update", "NodeName=n1", "State=NoResp")
    with pytest.raises(SlurmRefused, match="does not reach it"):
        cluster.give_back("n1", RUN)
    assert not cluster.look("n1", RUN).drained


def test_a_users_settings_change_nothing(
    slurm: SlurmRig, cluster: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slurm.submit("--nodelist=n1")
    slurm.wait_job(job, "RUNNING")
    before = cluster.look("n1", RUN), cluster.jobs_on("n1")
    for name, value in {
        "SQUEUE_FORMAT": "%i %u",
        "SQUEUE_STATES": "PENDING",
        "SQUEUE_USERS": "nobody",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_CLUSTERS": "elsewhere",
        "LC_ALL": "C",
    }.items():
        monkeypatch.setitem(os.environ, name, value)
    assert (cluster.look("n1", RUN), cluster.jobs_on("n1")) == before


@pytest.mark.parametrize("name", ["n[1-3]", "n1,n2", "ALL", "all", "", "-n1", "n1 State=IDLE", "é"])
def test_one_node_is_meant_and_no_other(slurm: SlurmRig, cluster: Slurm, name: str) -> None:
    for act in (cluster.look, cluster.drain, cluster.give_back):
        with pytest.raises(BadInput):
            act(name, RUN)
    assert slurm.run("sinfo", "--noheader", "--format=%T").split() == ["idle"]


def test_no_answer_is_an_error_that_names_the_command(slurm: SlurmRig, cluster: Slurm) -> None:
    with pytest.raises(PitstopError, match=r"scontrol.*show node n9"):
        cluster.look("n9", RUN)
    nobody = slurm.root / "nobody.conf"
    nobody.write_text(slurm.conf.read_text() + "SlurmctldPort=6899\nMessageTimeout=2\n")
    lost = Slurm(InNode(slurm.lab.node(CONTROLLER)), str(nobody))
    with pytest.raises(SlurmRefused, match=r"squeue.*Unable to contact"):
        lost.jobs_on("n1")


def test_a_node_without_power_is_not_taken_for_empty(slurm: SlurmRig, cluster: Slurm) -> None:
    """Last: its slurmd is started again for the tests' end."""
    job = slurm.submit("--nodelist=n3", "--no-requeue")
    slurm.wait_job(job, "RUNNING")
    slurm.lab.node("n3").power_cut()
    try:
        standing = cluster.look("n3", RUN)
        assert (standing.drained, standing.jobs) == (False, (job,))
        slurm.run("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=no power")
        until(lambda: "DOWN" in cluster.look("n3", RUN).state, "it is down", 30)
        standing = cluster.look("n3", RUN)
        assert standing.claim is Claim.FOREIGN
        assert not standing.drained  # nobody has seen the job's processes end
    finally:
        slurm.lab.node("n3").boot()
        slurm.start_node("n3")


def test_what_is_no_version(slurm: SlurmRig) -> None:
    class Odd(InNode):
        def run(self, argv: Sequence[str], stdin: bytes, timeout: float) -> Completed:
            return super().run(["echo", *argv[-1:]], stdin, timeout)

    with pytest.raises(NotUnderstood, match="scontrol --version"):
        Slurm(Odd(slurm.lab.node(CONTROLLER))).look("n1", RUN)
