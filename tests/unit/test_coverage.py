"""What share of a queue fits on one node: each source, added up once more by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pitstop.cli import coverage
from pitstop.cli.main import app
from pitstop.coverage.frame import Options
from pitstop.coverage.read import read_source
from pitstop.coverage.shares import add_up
from pitstop.model.coverage import Coverage
from pitstop.model.errors import PitstopError
from pitstop.report.coverage import render_coverage_html

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def of(path: Path, kind: str | None = None, **options: Any) -> Coverage:
    return add_up(read_source(path, kind, Options(**options), NOW), path.name)


def shares(found: Coverage) -> dict[str, tuple[float, float]]:
    return {s.measure: (round(s.covered, 6), round(s.total, 6)) for s in found.shares}


# --- sacct

HEADER = "JobID|User|State|Start|Elapsed|NNodes|AllocTRES|JobName"


def sacct(path: Path, *rows: str, header: str = HEADER) -> Path:
    file = path / "dump.psv"
    file.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return file


def row(
    job: str = "1",
    user: str = "u",
    state: str = "COMPLETED",
    start: str = "2026-11-01T00:00:00",
    elapsed: str = "01:00:00",
    nodes: str = "1",
    tres: str = "cpu=1",
    name: str = "train",
) -> str:
    return "|".join((job, user, state, start, elapsed, nodes, tres, name))


def test_jobs_and_hours_are_two_measures(tmp_path: Path) -> None:
    narrow = [row(str(n), "a") for n in range(99)]
    wide = row("100", "b", nodes="32", elapsed="2-02:00:00", tres="cpu=1,gres/gpu=256")
    found = of(sacct(tmp_path, *narrow, wide))
    assert shares(found) == {
        "jobs": (99, 100),
        "node_hours": (99, 99 + 32 * 50),
        "gpu_hours": (0, 256 * 50),
        "users": (1, 2),
    }
    assert found.share("jobs") is not None
    [missed] = found.not_covered
    assert (missed.job, missed.nodes, missed.gpus, missed.node_hours) == ("100", 32, 256, 1600)
    [reason] = found.reasons
    assert "17 to 32 machines" in reason.reason


def test_what_is_no_job_and_what_never_ran_is_not_counted(tmp_path: Path) -> None:
    found = of(
        sacct(
            tmp_path,
            row("1"),
            row("1.batch", state="CANCELLED"),
            row("1.0", nodes="7"),
            row("1.extern"),
            row("2", state="CANCELLED by 1000", start="None", elapsed="00:00:00"),
            row("3", state="PENDING", start="Unknown", elapsed="", nodes="999"),
            row("4", state="RUNNING"),
            row("5_7", state="TIMEOUT"),
        )
    )
    assert shares(found)["jobs"] == (3, 3)
    assert (found.not_started, found.not_understood) == (2, 0)


def test_a_separator_in_the_last_field_shifts_nothing(tmp_path: Path) -> None:
    found = of(sacct(tmp_path, row(name="a|b|COMPLETED|9|x"), row("2", name='"quoted, "" |')))
    assert shares(found)["jobs"] == (2, 2)
    assert found.not_understood == 0


def test_a_record_that_is_not_understood_is_said(tmp_path: Path) -> None:
    header = "JobID|JobName|State|Start|Elapsed|NNodes"
    good = "1|x|COMPLETED|2026-11-01T00:00:00|01:00:00|1"
    odd = "2|odd|name|RUNNING|2026-11-01T00:00:00|01:00:00|1"
    strange = [
        odd,
        "3|x|COMPLETED",
        "4|x|COMPLETED|2026-11-01T00:00:00|soon|1",
        "5|x|COMPLETED|2026-11-01T00:00:00|01:00:00|many",
        "6|x|COMPLETED|2026-11-01T00:00:00|01:00:00|0",
        "7|x\x1fy|COMPLETED|2026-11-01T00:00:00|01:00:00|1",
    ]
    found = of(sacct(tmp_path, good, *strange, header=header))
    assert shares(found)["jobs"] == (1, 1)
    assert found.not_understood == len(strange)
    assert odd in found.examples


def test_parsable_with_a_separator_at_the_end(tmp_path: Path) -> None:
    found = of(sacct(tmp_path, row() + "|", header=HEADER + "|"))
    assert (shares(found)["jobs"], found.not_understood) == ((1, 1), 0)


def test_parts_of_a_heterogeneous_job_are_one(tmp_path: Path) -> None:
    parts = [row("77+0", tres="gres/gpu=4"), row("77+1", elapsed="02:00:00", tres="gres/gpu=8")]
    found = of(sacct(tmp_path, row("76"), *parts))
    assert shares(found)["jobs"] == (1, 2)
    assert shares(found)["node_hours"] == (1, 5)
    assert [(job.job, job.nodes, job.gpus) for job in found.not_covered] == [("77", 2, 12)]


def test_a_file_is_read_and_no_pattern(tmp_path: Path) -> None:
    sacct(tmp_path, row()).rename(tmp_path / "dump1.psv")
    wide = sacct(tmp_path, row(nodes="9")).rename(tmp_path / "dump[12].psv")
    assert shares(of(wide))["jobs"] == (0, 1)
    table = tmp_path / "t[1].csv"
    table.write_text("nodes,seconds\n9,60\n")
    (tmp_path / "t1.csv").write_text("nodes,seconds\n1,60\n")
    assert shares(of(table))["jobs"] == (0, 1)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=4,gres/gpu=2", 2),
        ("gres/gpu:h100=3,cpu=4", 3),
        ("gres/gpu=3,gres/gpu:h100=3", 3),
        ("gres/gpu:a=1,gres/gpu:b=2,gres/gpumem=80G", 3),
    ],
)
def test_gpus_of_trackable_resources(tmp_path: Path, tres: str, gpus: int) -> None:
    assert shares(of(sacct(tmp_path, row(tres=tres))))["gpu_hours"] == (gpus, gpus)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\x1f"), max_size=8)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 40),
            st.integers(0, 400_000),
            st.integers(0, 64),
            st.booleans(),
            NAMES,
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_dump_adds_up(
    tmp_path_factory: pytest.TempPathFactory,
    jobs: list[tuple[int, int, int, int, bool, str]],
) -> None:
    rows, expected = [], dict.fromkeys(("jobs", "node_hours", "gpu_hours"), (0.0, 0.0))
    fits: dict[int, bool] = {}
    for number, (user, nodes, seconds, gpus, started, name) in enumerate(jobs):
        minutes, second = divmod(seconds, 60)
        hours, minute = divmod(minutes, 60)
        days, hour = divmod(hours, 24)
        rows.append(
            row(
                str(number),
                f"u{user}",
                start="2026-10-01T10:00:00" if started else "None",
                elapsed=f"{days}-{hour:02}:{minute:02}:{second:02}",
                nodes=str(nodes),
                tres=f"cpu=1,gres/gpu={gpus}",
                name=name,
            )
        )
        if not started:
            continue
        fits[user] = fits.get(user, True) and nodes == 1
        for measure, amount in (
            ("jobs", 1.0),
            ("node_hours", nodes * seconds / 3600),
            ("gpu_hours", gpus * seconds / 3600),
        ):
            covered, total = expected[measure]
            expected[measure] = (covered + amount * (nodes == 1), total + amount)
    found = of(sacct(tmp_path_factory.mktemp("dump"), *rows))
    assert found.not_understood == 0
    assert found.not_started == sum(not job[4] for job in jobs)
    for share in found.shares:
        if share.measure == "users":
            assert (share.covered, share.total) == (sum(fits.values()), len(fits))
        else:
            covered, total = expected[share.measure]
            assert math.isclose(share.covered, covered, abs_tol=1e-6)
            assert math.isclose(share.total, total, abs_tol=1e-6)
    render_coverage_html(found)


def test_over_time(tmp_path: Path) -> None:
    found = of(
        sacct(
            tmp_path,
            row("1", start="2026-10-31T23:59:59"),
            row("2", start="2026-11-01T00:00:00"),
            row("3", start="2026-11-30T00:00:00", nodes="3"),
        )
    )
    first, second = found.over_time
    assert (first.month, first.jobs, first.jobs_share) == ("2026-10", 1, 1)
    assert (second.month, second.jobs, second.jobs_share) == ("2026-11", 2, 0.5)
    assert second.node_hours_share == 0.25


# --- Standard Workload Format


def swf_line(
    job: int = 1, wait: int = 0, run: int = 3600, used: int = 4, asked: int = -1, status: int = 1
) -> str:
    return f"{job} 100 {wait} {run} {used} -1 -1 {asked} -1 -1 {status} 7 1 -1 -1 -1 -1 -1"


def swf(path: Path, *rows: str, header: Sequence[str] = ()) -> Path:
    file = path / "trace.swf"
    file.write_text("".join(f"{line}\n" for line in (*header, *rows)))
    return file


def test_workload_format(tmp_path: Path) -> None:
    header = ["; MaxNodes: 16", ";  MaxProcs: 64", "; UnixStartTime: 1764460800", ";"]
    rows = [
        swf_line(1),  # one node of four processors
        swf_line(2, used=5),  # two
        swf_line(3, used=-1, asked=8),  # two, as asked for
        swf_line(4, run=-1, status=5),  # never ran
        swf_line(5, run=0, status=5),  # nor this
        swf_line(6, run=0, status=1),  # this did, for no time
        swf_line(7, used=-1),  # nobody knows
        *(swf_line(1, status=part) for part in (2, 3, 4)),  # parts of the first
        "8 1 2 3",
    ]
    found = of(swf(tmp_path, *rows, header=header))
    assert shares(found)["jobs"] == (2, 4)
    assert shares(found)["node_hours"] == (1, 5)
    assert (found.not_started, found.not_understood) == (2, 2)
    assert found.assumptions == ("processors per node: 4 (64 on 16 nodes)",)
    assert [p.month for p in found.over_time] == ["2025-11"]
    assert shares(of(tmp_path / "trace.swf", processors_per_node=64))["jobs"] == (4, 4)


def test_workload_format_without_a_header(tmp_path: Path) -> None:
    found = of(swf(tmp_path, swf_line(used=1), swf_line(2)))
    assert shares(found)["jobs"] == (1, 2)
    assert "does not say" in found.assumptions[0]


# --- tables


def test_table_with_columns_of_its_makers(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(
        "when,took,cards,team\n2026-10-01 10:00:00,3600,8,a\n2026-10-02T10:00:00,3600,9,ä\n"
        "2026-10-02 10:00:00,x,1,b\n2026-10-02 10:00:00,0,1,b\n"
    )
    columns = {"start": "when", "seconds": "took", "gpus": "cards", "user": "team"}
    found = of(file, columns=columns)
    assert shares(found) == {
        "jobs": (1, 2),
        "node_hours": (1, 3),
        "gpu_hours": (8, 17),
        "users": (1, 2),
    }
    assert (found.not_started, found.not_understood) == (1, 1)
    assert "8 GPUs" in found.assumptions[0]
    assert [job.job for job in found.not_covered] == ["3"]
    assert shares(of(file, columns=columns, gpus_per_node=4))["jobs"] == (0, 2)


@pytest.mark.parametrize(
    "odd",
    [
        "2,x,1,nan",
        "2,x,1,inf",
        "2,x,nan,60",
        "2,x,inf,60",
        "2,x,1,-5e400",
        "2,a comma, too many,60",
        "2,x,1,60,and more,and more",
        "2,x",
    ],
)
def test_one_odd_row_spoils_no_sum(tmp_path: Path, odd: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(f"job,user,nodes,seconds\n1,u,32,3600\n{odd}\n3,,1,3600\n")
    found = of(file)
    assert shares(found)["jobs"] == (1, 2)
    assert shares(found)["node_hours"] == (1, 33)
    assert found.not_understood == 1
    json.loads(found.model_dump_json())


def test_table_with_start_and_end(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("job_id,nodes,start,end\nx,2,2026-10-01T10:00:00,2026-10-01T11:30:00\n")
    assert shares(of(file))["node_hours"] == (0, 3)
    file.write_text("job_id,nodes,start,end\nx,1,1764460800,1764464400\n")
    assert shares(of(file))["node_hours"] == (1, 1)


# --- live


def pod(
    name: str,
    node: str = "",
    gpus: int = 8,
    owner: tuple[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    owners = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": dict(labels or {}),
            "ownerReferences": owners,
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
        "status": {"startTime": "2026-11-30T10:00:00Z"} if node else {},
    }


def test_pods_are_not_jobs(tmp_path: Path) -> None:
    jobset, group = "jobset.sigs.k8s.io/jobset-name", "leaderworkerset.sigs.k8s.io/"
    pods = [
        # One job on two nodes, one on one node, though each has two pods.
        pod("t-0", "n1", labels={jobset: "t"}),
        pod("t-1", "n2", labels={jobset: "t"}),
        pod("s-0", "n3", 4, labels={jobset: "s"}),
        pod("s-1", "n3", 4, labels={jobset: "s"}),
        # Replicas of a service do not need each other.
        pod("web-a", "n4", owner=("ReplicaSet", "web")),
        pod("web-b", "n5", owner=("ReplicaSet", "web")),
        # Each group of these is one replica.
        pod("l-0", "n6", labels={f"{group}name": "l", f"{group}group-index": "0"}),
        pod("l-0-1", "n7", labels={f"{group}name": "l", f"{group}group-index": "0"}),
        pod("l-1", "n8", labels={f"{group}name": "l", f"{group}group-index": "1"}),
        # An operator that is not known: its pods belong together.
        pod("c-0", "n9", owner=("Cluster", "c")),
        pod("c-1", "n10", owner=("Cluster", "c")),
        # Nobody's work.
        pod("dcgm", "n1", 1, owner=("DaemonSet", "dcgm")),
        pod("proxy", "n1", 0),
        pod("waits"),
    ]
    over = pod("t-old", "n20", labels={jobset: "t"})
    failed = pod("s-old", "n21", labels={jobset: "s"})  # tried again on n3
    over["status"]["phase"], failed["status"]["phase"] = "Succeeded", "Failed"
    slices = pod("mig", "n22", 0)
    slices["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.10gb": "7"}
    pods += [over, failed, slices]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"kind": "List", "items": pods}))
    found = of(file)
    assert shares(found) == {
        "jobs": (5, 8),
        "node_hours": (10, 22),
        "gpu_hours": (64, 160),
        "users": (0, 1),
    }
    assert found.not_started == 1
    assert {job.job for job in found.not_covered} == {"team/t", "team/l/0", "team/Cluster/c"}


def test_running_jobs_of_squeue(tmp_path: Path) -> None:
    job = {
        "job_id": 1,
        "job_state": ["RUNNING"],
        "name": "x",
        "user_name": "u",
        "nodes": "n[1-2]",
        "start_time": int(NOW.timestamp()) - 7200,
        "end_time": 0,
        "time_limit": None,
        "tres_alloc_str": "gres/gpu=16",
        "requeue": True,
    }
    jobs = [
        job,
        {**job, "job_id": 2, "nodes": "n3", "tres_alloc_str": "gres/gpu=1"},
        {**job, "job_id": 3, "job_state": ["COMPLETED"], "nodes": "n4"},
        {**job, "job_id": 4, "job_state": ["PENDING"], "nodes": "", "start_time": 0},
        # Two parts that run at once, on two nodes.
        *(
            {**job, "job_id": 5 + n, "het_job_id": 5, "het_job_offset": n, "nodes": f"n{5 + n}"}
            for n in (0, 1)
        ),
        {**job, "job_id": 9, "nodes": "n9", "user_name": "\ud800", "tres_per_task": "cpu=8"},
    ]
    file = tmp_path / "squeue.json"
    file.write_text(json.dumps({"jobs": jobs}))
    found = of(file)
    assert shares(found)["node_hours"] == (4, 12)
    assert shares(found)["gpu_hours"] == (34, 34 + 32 + 64)
    assert found.not_started == 1
    # As of when it was asked, where it says so.
    hour_ago = int(NOW.timestamp()) - 3600
    file.write_text(
        json.dumps({"jobs": jobs[:1], "last_update": {"set": True, "number": hour_ago}})
    )
    assert shares(of(file))["node_hours"] == (0, 2)


# --- sacct --json


def accounted(job_id: int, **changes: Any) -> dict[str, Any]:
    """A job as data_parser v0.0.40 writes it."""
    return {
        "job_id": job_id,
        "user": "u",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {
            "start": {"set": True, "infinite": False, "number": 1764547200},
            "elapsed": 7200,
        },
        "allocation_nodes": 1,
        "array": {"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}},
        "het": {"job_id": 0, "job_offset": {"set": False, "infinite": False, "number": 0}},
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "count": 8},
                {"type": "gres", "name": "gpu", "count": 4},
                {"type": "gres", "name": "gpu:h100", "count": 4},
            ]
        },
        "steps": [{"step": {"id": f"{job_id}.batch"}}],
        **changes,
    }


def sacct_json(path: Path, *jobs: Any, **top: Any) -> Path:
    file = path / "jobs.json"
    file.write_text(json.dumps({"jobs": list(jobs), "errors": [], **top}))
    return file


def test_sacct_as_json(tmp_path: Path) -> None:
    typed = {"allocated": [{"type": "gres", "name": "gpu:a", "count": 2}]}
    old = {"state": {"current": "COMPLETED"}, "time": {"start": 1764547200, "elapsed": 3600}}
    file = sacct_json(
        tmp_path,
        accounted(1),
        accounted(2, allocation_nodes=2),
        accounted(3, **old, tres=typed, array=None, het=None),
        # Two parts at once, on a node each.
        *(accounted(10 + n, het={"job_id": 10, "job_offset": n}) for n in (0, 1)),
        # Requeued: the same job twice, one run after the other.
        *(accounted(20, time={"start": 1764547200 + n * 9999, "elapsed": 3600}) for n in (0, 1)),
        accounted(30, state={"current": ["PENDING"]}, time={"start": 0, "elapsed": 0}),
        accounted(31, state={"current": ["CANCELLED"]}, allocation_nodes=0),
        accounted(40, tres={"allocated": []}),
        {"job_id": 50},
    )
    found = of(file)
    assert found.kind == "sacct"
    assert shares(found)["jobs"] == (5, 7)
    assert shares(found)["node_hours"] == (2 + 1 + 1 + 1 + 2, 2 + 4 + 1 + 4 + 1 + 1 + 2)
    assert found.not_started == 2
    assert found.not_understood == 1
    assert {job.job for job in found.not_covered} == {"2", "10"}


@pytest.mark.parametrize(
    ("top", "cause"),
    [
        ({"errors": [{"error": "no connection"}]}, "no connection"),
        ({"jobs": {}}, "no list `jobs`"),
    ],
)
def test_an_answer_of_sacct_that_is_none(tmp_path: Path, top: dict[str, Any], cause: str) -> None:
    file = sacct_json(tmp_path, accounted(1), **top)
    with pytest.raises(PitstopError, match=cause):
        of(file, "sacct")


# --- the command


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["coverage", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_command(tmp_path: Path) -> None:
    file = sacct(tmp_path, row(user="[bold]ü\x1b[31m", name="<script>"), row("2", nodes="2"))
    page = tmp_path / "page.html"
    code, output = run(str(file), "--html", str(page))
    assert code == 0
    assert "50.0%" in output
    assert "\x1b" not in output
    assert "<script>" not in page.read_text()
    code, output = run(str(file), "--json")
    assert (code, json.loads(output)["schema"]) == (0, "pitstop/coverage/v1")


BAD: dict[str, tuple[str, tuple[str, ...], str]] = {
    "empty": ("", (), "is empty"),
    "nothing that is known": ("hello\n", (), "of no kind"),
    "sacct without its nodes": ("JobID|State|Start|Elapsed\n", (), ":1: has no column NNodes"),
    "table that tells no nodes": ("a,b\n1,2\n", (), ":1: no column tells nodes or gpus"),
    "table that tells no hours": ("nodes,b\n1,2\n", (), ":1: no column tells seconds or end"),
    "column that is not there": ("nodes,b\n1,2\n", ("--column", "seconds=c"), "has no column 'c'"),
    "column of no meaning": ("nodes,b\n1,2\n", ("--column", "colour=b"), "not MEANING=NAME"),
    "kind that is none": ("nodes,b\n1,2\n", ("--kind", "xml"), "is no kind of source"),
    "no JSON": ("{", (), "is no JSON"),
    "another JSON": ("{}", (), "no answer of squeue or sacct"),
    "pods that are none": ('{"items": [{"spec": 1}]}', (), "no list of pods"),
    "no nodes at all": ("nodes,b\n", ("--gpus-per-node", "0"), "--gpus-per-node"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(tmp_path: Path, case: str) -> None:
    text, options, named = BAD[case]
    file = tmp_path / "source"
    file.write_text(text)
    code, output = run(str(file), *options)
    assert code == 2, output
    assert named in " ".join(output.split())
    assert run(str(tmp_path / "missing"))[0] == 2
    assert run(str(sacct(tmp_path, row())), "--html", str(tmp_path / "no" / "page"))[0] == 2


def test_without_polars_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "find_spec", lambda _name: None)
    code, output = run(str(sacct(tmp_path, row())), "--column", "gpus=x")
    assert code == 2
    assert "pitstop[coverage]" in output


@settings(max_examples=15)  # each makes a plan of its own in polars
@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "source"
    for before in (b"", HEADER.encode() + b"\n", b"; MaxNodes: 4\n", b"nodes,seconds\n"):
        file.write_bytes(before + raw)
        code, output = run(str(file))
        assert code in (0, 1, 2), output


def test_nothing_ran(tmp_path: Path) -> None:
    found = of(sacct(tmp_path, row(start="None")))
    assert [s.share for s in found.shares] == [None, None]
    assert "no share" in render_coverage_html(found)


def test_what_slurm_says_wrong_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "squeue.json"
    file.write_text('{"jobs": [{"job_id": 1}]}')
    with pytest.raises(PitstopError, match=r"jobs\[0\].job_state: is missing"):
        of(file)
