"""Whole nodes and jobs, from every form; what cannot be read is an error, never "no jobs"."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.fleet.slurm.records import (
    JOB_KEYS,
    NotUnderstood,
    read_jobs,
    read_jobs_squeue,
    read_jobs_text,
    read_nodes,
    read_nodes_text,
    waiting_tasks,
)

COMMAND = "squeue --json"


def wrapped(value: int | None, infinite: bool = False) -> dict[str, Any]:
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


def old_job(**changes: Any) -> dict[str, Any]:
    """As 22.05 writes it: plain numbers, a state in one word."""
    return {
        "job_id": 41,
        "array_job_id": 0,
        "array_task_id": None,
        "array_task_string": "",
        "het_job_id": 0,
        "het_job_offset": 0,
        "job_state": "RUNNING",
        "name": "größe |=; $(id)",
        "nodes": "a[1-2]",
        "start_time": 1764460800,
        "end_time": 1764547200,
        "time_limit": 1440,
        "tres_alloc_str": "cpu=16,gres/gpu=4",
        "user_name": "u1",
        "requeue": True,
        **changes,
    }


def new_job(**changes: Any) -> dict[str, Any]:
    """The same as newer ones write it: numbers in objects, the state a list."""
    job = old_job()
    for field in ("array_job_id", "array_task_id", "het_job_id", "het_job_offset"):
        job[field] = wrapped(job[field])
    for field in ("start_time", "end_time", "time_limit"):
        job[field] = wrapped(job[field])
    return {**job, "job_state": ["RUNNING"], **changes}


def answer(*jobs: Any, **more: Any) -> str:
    return json.dumps({"jobs": list(jobs), "errors": [], "warnings": [], **more})


def test_old_and_new_json_say_the_same() -> None:
    [old], [new] = read_jobs(COMMAND, answer(old_job())), read_jobs(COMMAND, answer(new_job()))
    assert old == new
    assert (old.key, old.nodes, old.gpus, old.time_limit) == ("41", ("a1", "a2"), 4, 86400)
    assert (old.name, old.waiting, old.state.holds_node) == ("größe |=; $(id)", 0, True)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"array_job_id": 40, "array_task_id": 3}, "40_3"),
        ({"array_job_id": wrapped(40), "array_task_id": wrapped(0)}, "40_0"),
        # The last task of an array has the array's own id.
        ({"job_id": 40, "array_job_id": 40, "array_task_id": 9}, "40_9"),
        ({"array_job_id": wrapped(0), "array_task_id": wrapped(None)}, "41"),
        ({"het_job_id": 40, "het_job_offset": 2}, "40+2"),
        ({"het_job_id": wrapped(0), "het_job_offset": wrapped(0)}, "41"),
    ],
)
def test_a_job_is_called_what_its_siblings_are_not(changes: dict[str, Any], key: str) -> None:
    [job] = read_jobs(COMMAND, answer(old_job(**changes)))
    assert job.key == key


def test_pending_array_is_one_record_of_many_tasks_on_no_node() -> None:
    changes = {
        "job_state": ["PENDING"],
        "array_task_string": "0-9:3,20%2",
        "nodes": "",
        "tres_alloc_str": "",
    }
    [job] = read_jobs(COMMAND, answer(new_job(**changes)))
    assert (job.waiting, job.nodes, job.state.holds_node) == (5, (), False)
    assert job.gpus is None  # not known, which is not none
    [job] = read_jobs(COMMAND, answer(new_job(**changes, tres_req_str="gres/gpu=8")))
    assert job.gpus == 8


@pytest.mark.parametrize(
    ("text", "tasks"), [("", 0), ("7", 1), ("3-40%4", 38), ("1,5-9:2", 4), ("N/A", 0)]
)
def test_waiting_tasks(text: str, tasks: int) -> None:
    assert waiting_tasks(text) == tasks


@pytest.mark.parametrize("text", ["1-3,...", "9-3", "x", "1-9:0", "-3"])
def test_no_list_of_tasks(text: str) -> None:
    with pytest.raises(ValueError, match="no list of tasks"):
        waiting_tasks(text)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (wrapped(0, infinite=True), "unlimited"),
        ({"set": False, "infinite": True, "number": 0}, "unlimited"),
        (wrapped(None), None),
        (wrapped(90), 5400),
        (None, "unlimited"),  # as 22.05 writes it of a job that runs
    ],
)
def test_time_limits(limit: object, seconds: object) -> None:
    """Without one there is no end, though some versions write one that is a year ahead."""
    [job] = read_jobs(COMMAND, answer(new_job(time_limit=limit)))
    assert (job.time_limit, job.end) == (seconds, 1764547200 if seconds == 5400 else None)
    pending = new_job(time_limit=None, job_state=["PENDING"], nodes="")
    assert read_jobs(COMMAND, answer(pending))[0].time_limit is None


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        # Where accounting does not name GPUs, the trackable resources hold none.
        ({"gres_detail": ["gpu:a:2(IDX:0-1)", "gpu:a:1(IDX:3),gpu:b:4(IDX:0-3)"]}, 7),
        ({"gres_detail": [], "tres_per_node": "gres:gpu:2"}, 4),
        ({"gres_detail": [], "tres_per_node": "gres/gpu:h100:2,gres/shard:9"}, 4),
        ({"gres_detail": [], "tres_per_job": "gres:gpu:3", "tres_per_node": ""}, 3),
        ({"gres_detail": [], "tres_per_job": "", "tres_per_node": ""}, 0),
        ({"tres_per_task": "gres/gpu:2"}, None),
        ({"tres_per_task": "cpu=8", "tres_per_node": ""}, 0),
        ({"gres_detail": ["gpu:(null):8(IDX:0-7)"]}, 8),
        # Not understood, which costs the number of GPUs and nothing else.
        ({"tres_per_job": "gres:gpu:a:b:c"}, None),
        ({"tres_alloc_str": "gres/gpu=many"}, None),
        ({"tres_alloc_str": ""}, None),
        ({"tres_alloc_str": "cpu=1,gres/gpu=5", "tres_per_node": "gres:gpu:2"}, 5),
    ],
)
def test_gpus_are_never_overlooked(fields: dict[str, Any], count: int | None) -> None:
    job = old_job(**{"tres_alloc_str": "cpu=2,node=2", **fields})
    assert read_jobs(COMMAND, answer(job))[0].gpus == count


WHOLE = answer(old_job(), new_job())


@given(st.integers(0, len(WHOLE) - 1))
def test_a_truncated_answer_is_an_error(length: int) -> None:
    with pytest.raises(NotUnderstood, match=r"squeue --json.*JSON"):
        read_jobs(COMMAND, WHOLE[:length])


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller", "no JSON"),
        ("[]", "no object"),
        ("{}", "no list `jobs`"),
        ('{"jobs": null}', "no list `jobs`"),
        (answer(errors=[{"error": "Protocol authentication error"}]), "authentication"),
        (answer("job"), r"jobs\[0\] is no object"),
        (answer(last_update="soon"), "squeue --json: last_update: 'soon' is no number"),
    ],
)
def test_no_answer_is_never_no_jobs(output: str, named: str) -> None:
    with pytest.raises(NotUnderstood, match=named):
        read_jobs(COMMAND, output)


NEEDED = ("job_id", "job_state", "nodes", "start_time", "end_time", "time_limit", "requeue")


@pytest.mark.parametrize("field", NEEDED)
def test_a_missing_field_is_named(field: str) -> None:
    job = new_job()
    del job[field]
    with pytest.raises(NotUnderstood, match=rf"jobs\[1\].{field}: is missing"):
        read_jobs(COMMAND, answer(old_job(), job))


@given(
    st.sampled_from([*NEEDED, "array_job_id", "tres_alloc_str", "array_task_string"]),
    st.sampled_from([{"a": 1, "number": "x"}, [["x"]], 1.5, True, "\0[", "n[1-", {"set": 1}]),
)
def test_a_field_of_another_type_is_named_or_understood(field: str, value: Any) -> None:
    """Never another exception, and never a job that is silently left out."""
    try:
        found = read_jobs(COMMAND, answer(new_job(**{field: value})))
    except NotUnderstood as error:
        assert f"jobs[0].{field}" in error.cause
    else:
        assert len(found) == 1


def test_nodes_of_json() -> None:
    old = {"name": "a1", "state": "mixed", "state_flags": ["DRAIN"], "gres": "gpu:8(S:0-3)"}
    new = {
        "name": "a1",
        "state": ["MIXED", "DRAIN"],
        "gres": "gpu:8(S:0-3)",
        "reason": "fan",
        "reason_set_by_user": "root",
        "boot_time": wrapped(1764400000),
    }
    first, second = read_nodes("sinfo --json", json.dumps({"nodes": [old, new]}))
    assert first.state == second.state
    assert (first.reason, second.reason, second.reason_by) == ("", "fan", "root")
    assert (first.booted, second.booted) == (None, 1764400000)
    with pytest.raises(NotUnderstood, match=r"nodes\[0\].state: is missing"):
        read_nodes("sinfo --json", json.dumps({"nodes": [{"name": "a1", "gres": ""}]}))


NODE_LINE = (
    "NodeName=a1 Arch=x86_64 Gres=gpu:h100:8(S:0-1) OS=Linux 6.1.0 #1 SMP  State=IDLE+DRAIN "
    "Partitions=gpu  CfgTRES=cpu=8,gres/gpu=8 Reason=swap of fan=2 [root@2026-11-29T22:10:00]"
)


def test_nodes_of_text() -> None:
    [node] = read_nodes_text("scontrol show node", NODE_LINE + "\n\n")
    assert (node.name, str(node.state)) == ("a1", "IDLE+DRAIN")
    assert (node.reason, node.reason_by) == ("swap of fan=2", "root")
    assert node.gres[0].count == 8
    [odd] = read_nodes_text("scontrol show node", NODE_LINE.replace("swap", "s\u2028wap\x85"))
    assert odd.reason == "s\u2028wap\x85 of fan=2"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("State=IDLE+DRAIN ", "", "State: is missing"),
        ("IDLE+DRAIN", "IDLE+MIXED", "State"),
        ("(S:0-1)", "(S:0-1", "Gres"),
        ("fan=2", "State=IDLE", "State: is there twice"),
        ("NodeName=a1 ", "", "not understood"),
    ],
)
def test_a_line_of_text_that_is_not_understood(old: str, new: str, named: str) -> None:
    with pytest.raises(NotUnderstood, match=named):
        read_nodes_text("scontrol show node", NODE_LINE.replace(old, new))


def job_line(name: str = "train", directory: str = "/home/u1", ids: str = "") -> str:
    return (
        f"JobId=41 {ids}JobName={name} UserId=u1(2421) GroupId=domain users(10000) "
        "MCS_label=N/A Account=lab QOS=normal JobState=RUNNING Reason=None Dependency=(null) "
        "Requeue=1 Restarts=0 RunTime=47:11 TimeLimit=1-00:00:00 Partition=gpu "
        "ReqNodeList=(null) NodeList=a[1-2] NumNodes=2 TRES=cpu=16,gres/gpu=16 "
        f"Command=/bin/go --lr=1 WorkDir={directory}"
    )


def test_jobs_of_text() -> None:
    line = job_line("eval of ckpt=12 größe", "/scratch/Team Blue/x=1")
    array = job_line(ids="ArrayJobId=40 ArrayTaskId=3 ")
    first, second = read_jobs_text("scontrol show job", f"{line}\n{array}\n")
    assert (first.key, second.key) == ("41", "40_3")
    assert first.name == "eval of ckpt=12 größe"
    assert (first.user, first.nodes, first.gpus) == ("u1", ("a1", "a2"), 16)
    assert (first.time_limit, first.requeue) == (86400, True)


@given(
    st.sampled_from(sorted(JOB_KEYS)),
    st.sampled_from(["1", "COMPLETED", "(null)", "cpu=1", "x y=z"]),
    st.booleans(),
)
def test_an_owner_cannot_forge_a_field(key: str, value: str, in_name: bool) -> None:
    """By a job's name or directory: it is read as it is, or it is an error."""
    text = f"x {key}={value}"
    line = job_line(name=text) if in_name else job_line(directory=f"/{text}")
    [honest] = read_jobs_text("scontrol show job", job_line())
    try:
        [found] = read_jobs_text("scontrol show job", line)
    except NotUnderstood as error:
        assert "line 1" in error.cause
    else:
        for field in ("key", "user", "state", "nodes", "gpus", "time_limit", "requeue", "waiting"):
            assert getattr(found, field) == getattr(honest, field), field


def squeue_line(
    job: str = "41",
    task: str = "N/A",
    state: str = "RUNNING",
    name: str = "x",
    reason: str = "None",
) -> str:
    return f"{job}|40|{task}|{state}|1-00:00:00|a[1-2]||{reason}|u1|{name}"


def test_squeue_without_json() -> None:
    lines = [squeue_line(), squeue_line("42", "3"), squeue_line("43", "4-9%2", "PENDING")]
    first, second, third = read_jobs_squeue("squeue", "\n".join(lines) + "\n")
    assert (first.key, second.key, third.key) == ("41", "40_3", "43")
    assert (first.nodes, first.time_limit, third.waiting) == (("a1", "a2"), 86400, 6)
    assert (first.gpus, first.requeue, first.reason, first.held) == (None, None, "", False)
    assert read_jobs_squeue("squeue", "") == ()


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin"])
def test_a_job_that_is_held(reason: str) -> None:
    [found] = read_jobs_squeue("squeue", squeue_line(state="PENDING", reason=reason))
    assert (found.held, found.state.holds_node) == (True, False)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_name_hides_no_job(name: str) -> None:
    output = "\n".join([squeue_line(name=name), squeue_line("42")])
    try:
        found = read_jobs_squeue("squeue", output)
    except NotUnderstood:
        return
    keys = [job.key for job in found]
    assert keys[0] == "41"
    assert keys[-1] == "42"


@pytest.mark.parametrize(
    "line",
    [
        "slurm_load_jobs error: Unable to contact slurm controller",
        "41|40|N/A|RUNNING",
        squeue_line(state=""),
        squeue_line().replace("1-00:00:00", "soon"),
        squeue_line().replace("a[1-2]", "a[1-"),
    ],
)
def test_a_line_of_squeue_that_is_not_understood(line: str) -> None:
    with pytest.raises(NotUnderstood, match="squeue: line 1"):
        read_jobs_squeue("squeue", line)


def test_no_jobs_is_said_so() -> None:
    assert read_jobs_text("scontrol show job", "No jobs in the system\n") == ()
    with pytest.raises(NotUnderstood, match="line 1"):
        read_jobs_text("scontrol show job", "slurm_load_jobs error: Zero Bytes were transmitted\n")
