"""plan, run, resume, report, runs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pitstop.cli.options import Home, Json, SiteFile
from pitstop.cli.output import emit, errors, out, printable, progress
from pitstop.decide.outcome import result_of
from pitstop.journal.chain import faults
from pitstop.journal.store import Journal
from pitstop.model.errors import BadInput
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.report.change_record import render_plan_html, render_plan_markdown
from pitstop.steps.files import plan_from_files
from pitstop.steps.home import home_of
from pitstop.steps.runs import create_run, drive, new_run_id, open_run, write_report

MaintenanceFile = Annotated[Path, typer.Argument(help="The maintenance.yaml.")]
RunId = Annotated[str, typer.Argument(help="The run's id.")]
FrontEnd = Annotated[
    str, typer.Option("--on", help="What drives it: steps (this process), prefect or airflow.")
]


def plan(
    maintenance: MaintenanceFile,
    site: SiteFile = Path("site.yaml"),
    html: Annotated[Path | None, typer.Option(help="Write the plan as HTML here.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan as JSON here.")] = None,
    json: Json = False,
) -> None:
    """Look at the node and say what would happen; nothing is changed."""
    with errors(json):
        made = plan_from_files(site, maintenance)
        if html:
            html.write_text(render_plan_html(made), encoding="utf-8")
        if save:
            save.write_text(made.model_dump_json(by_alias=True, indent=1), encoding="utf-8")
        data = {**made.model_dump(mode="json", by_alias=True), "digest": made.digest}
        emit(data, json, lambda: out.print(printable(render_plan_markdown(made)), markup=False))
        if not made.go:
            raise typer.Exit(3)


def run(
    maintenance: Annotated[Path, typer.Argument(help="maintenance.yaml, or a plan saved as .json")],
    site: SiteFile = Path("site.yaml"),
    home: Home = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Id of the run; default new.")] = None,
    on: FrontEnd = "steps",
    json: Json = False,
) -> None:
    """Plan (or take a saved plan) and carry it out to the end."""
    with errors(json):
        made = (
            _saved_plan(maintenance)
            if maintenance.suffix == ".json"
            else plan_from_files(site, maintenance)
        )
        directory, identifier, driver = home_of(home), run_id or new_run_id(), front_end(on)
        create_run(directory, made, identifier, on)
        progress(f"run {identifier}: if this is cut off, pitstop resume {identifier}")
        _finish(directory, driver(directory, identifier), json)


def resume(run_id: RunId, home: Home = None, on: FrontEnd = "steps", json: Json = False) -> None:
    """Go on with a run that was cut off or waits for a person, from what is true on the node."""
    with errors(json):
        directory = home_of(home)
        _finish(directory, front_end(on)(directory, run_id), json)


def report(
    run_id: Annotated[str | None, typer.Argument(help="The run; default the newest.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Write a run's report anew, check its journal's chain, and say where it lies."""
    with errors(json):
        directory = home_of(home)
        identifier = run_id or _newest(directory)
        context = open_run(directory, identifier)
        try:
            path = write_report(context)
            events = context.events()
            result = result_of(context.plan, identifier, events)
            wrong = faults(events)
        finally:
            context.close()
        data = {
            "report": str(path),
            "report_json": str(path.with_suffix(".json")),
            "events": len(events),
            "chain_faults": wrong,
            "result": result.model_dump(mode="json", by_alias=True),
        }
        emit(data, json, lambda: _show(result, path, wrong))
        if wrong:
            raise typer.Exit(1)


def runs(home: Home = None, json: Json = False) -> None:
    """List all runs."""
    with errors(json):
        directory = home_of(home)
        journal = Journal(directory / "journal.db")
        try:
            found = [
                result_of(journal.plan(identifier), identifier, journal.events(identifier))
                for identifier, _ in journal.runs()
            ]
        finally:
            journal.close()
        emit(
            [r.model_dump(mode="json", by_alias=True) for r in found],
            json,
            lambda: out.print(_runs_table(found)),
        )


def front_end_steps(home: Path, run_id: str) -> RunResult:
    """Drive a run in this process."""
    context = open_run(home, run_id, progress)
    try:
        return drive(context)
    finally:
        context.close()


def front_end(name: str) -> Callable[[Path, str], RunResult]:
    """Return what drives a run under that name.

    Raises:
        BadInput: there is no such front end, or it is not installed.
    """
    if name == "steps":
        return front_end_steps
    found = entry_points(group="pitstop.front_ends", name=name)
    for point in found:
        try:
            driver: Callable[[Path, str], RunResult] = point.load()
        except ImportError as error:
            raise BadInput(
                f"--on {name}", f"not installed here: {error}", f"install pitstop[{name}]"
            ) from error
        return driver
    raise BadInput(f"--on {name}", "no such front end", "steps, prefect, airflow")


def _saved_plan(path: Path) -> Plan:
    try:
        return Plan.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(str(path), f"not a saved plan: {error}") from None


def _newest(home: Path) -> str:
    journal = Journal(home / "journal.db")
    try:
        found = journal.runs()
    finally:
        journal.close()
    if not found:
        raise BadInput(str(home), "there are no runs yet")
    return found[-1][0]


def _finish(home: Path, result: RunResult, as_json: bool) -> None:
    path = home / "runs" / result.run / "report.html"
    data = {**result.model_dump(mode="json", by_alias=True), "report": str(path)}
    emit(data, as_json, lambda: _show(result, path, []))
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _show(result: RunResult, path: Path, wrong: list[str]) -> None:
    table = Table(title=f"run {result.run}: {_state(result)}, node {result.node_state}")
    for column in ("workload", "outcome", "restore", "cold start", "cause"):
        table.add_column(column, overflow="fold")
    for w in result.workloads:
        cold = w.cold_start_seconds or w.earlier_cold_start_seconds
        table.add_row(
            w.name,
            w.outcome.value if w.outcome else "waits",
            f"{w.restore_seconds:.2f} s" if w.restore_seconds is not None else "-",
            f"{cold:.2f} s" if cold is not None else "-",
            printable(w.cause),
        )
    out.print(table)
    if result.cause:
        out.print(printable(result.cause), markup=False)
    for fault in wrong:
        out.print(f"journal: {fault}", markup=False)
    if not result.ended:
        out.print(f"whether anybody is at it says: pitstop reconcile {result.node}", markup=False)
    elif result.state == "partial":
        out.print(f"a person is needed; afterwards: pitstop resume {result.run}", markup=False)
    out.print(f"report: {path}", markup=False)


def _state(result: RunResult) -> str:
    return result.state if result.ended else "not ended"


def _runs_table(found: list[RunResult]) -> Table:
    table = Table()
    for column in ("run", "node", "state", "node state", "outcomes"):
        table.add_column(column, overflow="fold")
    for r in found:
        outcomes = ", ".join(
            f"{w.name}: {w.outcome.value if w.outcome else 'waits'}" for w in r.workloads
        )
        table.add_row(r.run, r.node, _state(r), r.node_state, outcomes)
    return table
