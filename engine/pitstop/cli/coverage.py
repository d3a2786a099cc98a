"""coverage: what share of a queue fits on one node."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pitstop.cli.options import Json
from pitstop.cli.output import emit, errors, out, printable
from pitstop.model.coverage import Coverage
from pitstop.model.errors import BadInput
from pitstop.report.coverage import WORDS, headline, render_coverage_html


def coverage(
    source: Annotated[Path, typer.Argument(help="A dump, a trace or a list; see --kind.")],
    kind: Annotated[
        str | None,
        typer.Option(
            help="sacct (--parsable2), swf, csv, squeue (--json) or pods "
            "(kubectl get pods -A -o json). Default: what it looks like."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int, typer.Option(min=1, help="Where the source does not tell nodes.")
    ] = 8,
    processors_per_node: Annotated[
        int | None, typer.Option(min=1, help="For swf. Default: what the trace says.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="For csv: MEANING=NAME, as in gpus=num_gpus. May be repeated."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many jobs are named.")] = 10,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts here.")] = None,
    json: Json = False,
) -> None:
    """Say what share of a queue pitstop can keep through a maintenance, and what it cannot."""
    with errors(json):
        _check_polars()
        columns = _columns(column or [])
        found = _read(source, kind, gpus_per_node, processors_per_node, columns, top)
        if html:
            try:
                html.write_text(render_coverage_html(found), encoding="utf-8")
            except OSError as error:
                raise BadInput(str(html), f"cannot be written: {error.strerror}") from error
        emit(found.model_dump(mode="json", by_alias=True), json, lambda: _show(found))


def _check_polars() -> None:
    if find_spec("polars") is None:
        raise BadInput("coverage", "polars is not installed", "pip install 'pitstop[coverage]'")


def _read(
    source: Path,
    kind: str | None,
    gpus_per_node: int,
    processors_per_node: int | None,
    columns: dict[str, str],
    top: int,
) -> Coverage:
    import polars.exceptions

    from pitstop.coverage.frame import Options
    from pitstop.coverage.read import read_source
    from pitstop.coverage.shares import add_up

    options = Options(gpus_per_node, processors_per_node, columns)
    try:
        return add_up(read_source(source, kind, options, datetime.now(UTC)), source.name, top)
    except polars.exceptions.PolarsError as error:
        raise BadInput(str(source), f"cannot be read: {str(error)[:300]}") from error


def _columns(given: list[str]) -> dict[str, str]:
    from pitstop.coverage.tables import MEANINGS

    found = {}
    for text in given:
        meaning, separator, name = text.partition("=")
        if not separator or meaning not in MEANINGS:
            raise BadInput(f"--column {text}", f"not MEANING=NAME, of {', '.join(MEANINGS)}")
        found[meaning] = name
    return found


def _show(found: Coverage) -> None:
    out.print(printable(f"{found.source} ({found.kind}): {headline(found)}"), markup=False)
    shares = Table("fits on one node", "share", "of")
    for share in found.shares:
        percent = "–" if share.share is None else f"{share.share:.1%}"
        numbers = f"{share.covered:,.0f} of {share.total:,.0f}"
        shares.add_row(WORDS[share.measure], percent, numbers)
    out.print(shares)
    for assumption in found.assumptions:
        out.print(printable(f"assumed: {assumption}"), markup=False)
    if found.not_started:
        out.print(f"not counted: {found.not_started:,} that never started", markup=False)
    if found.not_understood:
        out.print(f"not understood: {found.not_understood:,}, such as", markup=False)
        for line in found.examples:
            out.print(printable(f"  {line}"), markup=False)
    for reason in found.reasons:
        hours = f"{reason.jobs:,} jobs, {reason.node_hours:,.0f} node-hours"
        out.print(f"not covered: {reason.reason}: {hours}", markup=False)
    for job in found.not_covered:
        text = (
            f"  {job.job} of {job.user or '?'}: {job.nodes} nodes, {job.node_hours:,.0f} node-hours"
        )
        out.print(printable(text), markup=False)
