"""A Slurm cluster from end to end: one job moves, one saves itself, one is left alone.

Somebody has drained the node beforehand, for a reason of their own. pitstop takes it through a
maintenance with a reboot: the job under its launcher is restored on another node, the job of
two nodes is told to save itself and is requeued, and the node is still drained for the same
reason afterwards. The maintenance of another node is refused, since a job of two nodes runs on
it that nobody has said how to save.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from pitstop.demo.counter import expected
from pitstop.demo.slurm_setup import CONTROLLER, NODES, SlurmSite, write_site
from pitstop.lab.lab import Lab
from pitstop.lab.slurm import SlurmCluster, missing_programs
from pitstop.model.errors import BadInput, Refused
from pitstop.model.result import RunResult
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run, new_run_id

Progress = Callable[[str], None]
Drive = Callable[[Path, str], RunResult]

DRAINED = "n1"
REFUSED = "n3"
REASON = "fan swap, ticket 4411"
LINES = 10


def play(home: Path, front_end: str, drive: Drive, progress: Progress) -> dict[str, Any]:
    """Play it and return what came of it.

    Everything but the reports and the journal under `home` is removed again.

    Returns:
        Plain data; `good` says whether all of it is as it should be.

    Raises:
        PitstopError: a part of it did not work.
    """
    missing = missing_programs()
    if missing:
        raise BadInput("pitstop demo", f"not installed: {', '.join(missing)}", "scripts/demo")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pitstop-slurm-")))
        progress("booting four nodes made of namespaces, with Slurm on them")
        lab = stack.enter_context(Lab(root / "lab", [CONTROLLER, *NODES]))
        (root / "slurm").mkdir()
        cluster = SlurmCluster(lab, root / "slurm", CONTROLLER, NODES)
        stack.enter_context(closing(cluster))
        cluster.start_at_boot()
        site = write_site(root, cluster)
        return _play(home, front_end, drive, site, progress)


def _play(
    home: Path, front_end: str, drive: Drive, site: SlurmSite, progress: Progress
) -> dict[str, Any]:
    cluster = site.cluster
    counter, saves = site.submit_counter(), site.submit_ranks("saves-itself")
    plain = site.submit_ranks("plain", f"--exclude={DRAINED}")
    for job in (counter, saves, plain):
        cluster.wait_job(job, "RUNNING")
    cluster.until(lambda: len(_links(site)) >= LINES, "the counter counts")
    progress(f"somebody drains {DRAINED}: {REASON}")
    cluster.run("scontrol", "update", f"NodeName={DRAINED}", "State=DRAIN", f"Reason={REASON}")

    plan = plan_from_files(site.site, site.maintenance(DRAINED))
    run = new_run_id()
    create_run(home, plan, run, front_end)
    for planned in plan.jobs:
        progress(f"{planned.name} ({planned.title}): {planned.strategy.value}")
    before = len(_links(site))
    result = drive(home, run)
    at_end = len(_links(site))
    cluster.until(lambda: len(_links(site)) >= at_end + LINES, "the counter goes on")

    refused = plan_from_files(site.site, site.maintenance(REFUSED))
    found = {
        "front_end": front_end,
        "run": run,
        "state": result.state,
        "jobs": [_job(planned, result) for planned in plan.jobs],
        "counter": _chain(site, before),
        "ranks": _parts(site),
        "drained": _drained(site),
        "refused": {
            "node": REFUSED,
            "go": refused.go,
            "why": list(refused.no_go),
            "recorded": _is_refused(home, refused, front_end),
            "job": cluster.state(plain),
            "node_state": _node(site, REFUSED)[0],
        },
        "report": str(home / "runs" / run / "report.html"),
    }
    return {**found, "good": _good(found)}


def _is_refused(home: Path, plan: Any, front_end: str) -> bool:
    try:
        create_run(home, plan, new_run_id(), front_end)
    except Refused:
        return True
    return False


def _job(planned: Any, result: RunResult) -> dict[str, Any]:
    [found] = [w for w in result.workloads if w.name == planned.name]
    return {
        "name": planned.name,
        "title": planned.title,
        "shape": planned.shape.value,
        "strategy": planned.strategy.value,
        "reason": planned.reason,
        "outcome": found.outcome.value if found.outcome else None,
        "cause": found.cause,
        "restore_seconds": found.restore_seconds,
        "away_seconds": found.frozen_seconds,
    }


def _links(site: SlurmSite) -> list[list[str]]:
    """The counter's whole lines."""
    if not site.counter_log.exists():
        return []
    lines = site.counter_log.read_text(encoding="ascii").split("\n")[:-1]
    return [line.split() for line in lines]


def _chain(site: SlurmSite, before: int) -> dict[str, Any]:
    links = _links(site)
    return {
        "links_before_the_run": before,
        "links": len(links),
        "whole": [link[:2] for link in links] == expected(len(links)),
        "processes": len({link[2] for link in links}),
    }


def _parts(site: SlurmSite) -> dict[str, Any]:
    """Where each rank began, before and after."""
    directory = site.ranks_directory("saves-itself")

    def read(name: str) -> int:
        return int((directory / name).read_text())

    site.cluster.until((directory / "start-1-1").exists, "the ranks have started again")
    return {
        "saved": [read("part-0"), read("part-1")],
        "started_again_at": [read("start-0-1"), read("start-1-1")],
    }


def _drained(site: SlurmSite) -> dict[str, str]:
    state, reason = _node(site, DRAINED)
    return {"node": DRAINED, "state": state, "reason": reason, "reason_before": REASON}


def _node(site: SlurmSite, name: str) -> tuple[str, str]:
    shown = site.cluster.run("sinfo", "--noheader", f"--nodes={name}", "--format=%T|%E")
    state, _, reason = shown.strip().partition("|")
    return state, reason


def _good(found: dict[str, Any]) -> bool:
    outcomes = {job["title"]: job["outcome"] for job in found["jobs"]}
    counter, ranks, refused = found["counter"], found["ranks"], found["refused"]
    return all(
        (
            found["state"] == "done",
            outcomes == {"counter": "migrated", "saves-itself": "requeued"},
            counter["whole"] and counter["processes"] == 1,
            counter["links"] > counter["links_before_the_run"],
            ranks["saved"] == ranks["started_again_at"],
            found["drained"]["state"] == "drained",
            found["drained"]["reason"] == REASON,
            not refused["go"] and refused["recorded"],
            refused["job"] == "RUNNING" and refused["node_state"] == "mixed",
        )
    )
