"""demo: the main job, from end to end, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pitstop.cli.options import Home, Json
from pitstop.cli.output import emit, errors, out, printable, progress
from pitstop.cli.runs import front_end
from pitstop.model.errors import BadInput
from pitstop.steps.home import home_of


def demo(
    home: Home = None,
    on: Annotated[str, typer.Option("--on", help="prefect, airflow or steps.")] = "prefect",
    rig: Annotated[
        str, typer.Option("--rig", help="node: a server on one node; slurm: jobs on a cluster.")
    ] = "node",
    json: Json = False,
) -> None:
    """Keep a real inference server, or a cluster's jobs, alive through maintenance."""
    with errors(json):
        if rig == "slurm":
            _slurm(home_of(home), on, json)
            return
        if rig != "node":
            raise BadInput("--rig", f"{rig!r} is neither node nor slurm")
        try:
            from pitstop.demo.scenario import play
        except ImportError as error:
            raise BadInput("pitstop demo", f"not installed: {error}", "scripts/demo") from error
        found = play(home_of(home), on, front_end(on), progress)
        emit(found, json, lambda: _show(found))
        if any(act["exit_code"] for act in found["runs"]):
            raise typer.Exit(1)


def _slurm(home: Path, on: str, json: bool) -> None:
    from pitstop.demo.slurm_scenario import play

    found = play(home, on, front_end(on), progress)
    emit(found, json, lambda: _show_slurm(found))
    if not found["good"]:
        raise typer.Exit(1)


def _show_slurm(found: dict[str, Any]) -> None:
    table = Table(title=f"pitstop demo on Slurm, driven by {found['front_end']}")
    for column in ("job", "shape", "strategy", "outcome", "cause"):
        table.add_column(column, overflow="fold")
    for job in found["jobs"]:
        table.add_row(
            f"{job['name']} ({job['title']})",
            job["shape"],
            job["strategy"],
            str(job["outcome"]),
            printable(job["cause"]),
        )
    out.print(table)
    counter, drained, refused = found["counter"], found["drained"], found["refused"]
    for line in (
        f"the counter went on from link {counter['links_before_the_run']} to {counter['links']}, "
        f"in {counter['processes']} process, "
        + ("no link missing" if counter["whole"] else "WITH A GAP"),
        f"{drained['node']} is {drained['state']} as before: {drained['reason']}",
        f"the maintenance of {refused['node']} was refused: {'; '.join(refused['why'])}",
        f"report: {found['report']}",
    ):
        out.print(printable(line), markup=False)


def _show(found: dict[str, Any]) -> None:
    table = Table(title=f"pitstop demo, driven by {found['front_end']}")
    for column in ("maintenance", "outcome", "restore to ready", "cold start to ready", "turn"):
        table.add_column(column, overflow="fold")
    for act in found["runs"]:
        table.add_row(
            act["title"],
            str(act["outcome"]),
            _seconds(act["restore_seconds"]),
            _seconds(act["cold_start_seconds"]),
            f"{act['turn_before']} -> {act['turn_after']}",
        )
    out.print(table)
    for act in found["runs"]:
        out.print(f"{act['outcome']}: {printable(act['title'])}", markup=False)
        for d in act["differences"]:
            line = f"  {d['field']}: {d['saved']} -> {d['present']} ({d['judgement']})"
            out.print(printable(line), markup=False)
        out.print(f"  report: {act['report']}", markup=False)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
