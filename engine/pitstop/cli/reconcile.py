"""reconcile: what is true of a node after a disaster, and the safe way on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pitstop.cli.options import Home, Json, SiteFile
from pitstop.cli.output import emit, errors, out, printable, progress
from pitstop.cli.runs import FrontEnd, front_end
from pitstop.decide.reconcile import Act, Finding
from pitstop.steps.files import load_site
from pitstop.steps.home import home_of
from pitstop.steps.reconcile import Reconciler


def reconcile(
    node: Annotated[str, typer.Argument(help="The node's name in site.yaml.")],
    site: SiteFile = Path("site.yaml"),
    home: Home = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do what is safe.")] = False,
    take_over: Annotated[
        list[str] | None,
        typer.Option(help="With --apply: also bring back what this run left. Look first."),
    ] = None,
    on: FrontEnd = "steps",
    json: Json = False,
) -> None:
    """Say what is true of a node: from the node, the journal and the leases.

    Exit status 4 when something remains that does not end by itself.
    """
    with errors(json):
        reconciler = Reconciler(load_site(site), node, home_of(home), progress)
        done = reconciler.apply(front_end(on), frozenset(take_over or ())) if apply else []
        found = reconciler.look()
        data = {
            "schema": "pitstop/reconcile/v1",
            "node": node,
            "done": [asdict(f) for f in done],
            "findings": [asdict(f) for f in found],
        }
        emit(data, json, lambda: _show(node, found))
        if any(f.act is not Act.WAIT for f in found):
            raise typer.Exit(4)


def _show(node: str, found: list[Finding]) -> None:
    if not found:
        out.print(f"{node}: nothing is left over, and all that belongs there runs", markup=False)
        return
    # Lines and no table: the way on is there to be copied.
    for f in found:
        out.print(f"{f.subject}: {printable(f.fact)}", markup=False)
        out.print(f"  {f.act.value}: {printable(f.way)}", markup=False)
