"""images list, images verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from pitstop.cli.options import Json, SiteFile
from pitstop.cli.output import emit, errors, out, printable
from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import BadInput
from pitstop.steps.files import load_site

app = typer.Typer(help="Checkpoints on a node.", no_args_is_help=True)

NodeName = Annotated[str, typer.Argument(help="The node's name in site.yaml.")]
Workload = Annotated[str | None, typer.Option(help="Only this workload's.")]


@app.command("list")
def list_(
    node: NodeName,
    site: SiteFile = Path("site.yaml"),
    workload: Workload = None,
    json: Json = False,
) -> None:
    """List checkpoints with their state."""
    with errors(json):
        found = _ask(node, site, "images.list", workload=workload)
        emit(found, json, lambda: out.print(_table(found)))


@app.command()
def verify(
    node: NodeName,
    site: SiteFile = Path("site.yaml"),
    workload: Workload = None,
    checkpoint: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    json: Json = False,
) -> None:
    """Verify signature and every byte; exit 1 when one is not what was signed."""
    with errors(json):
        found = _ask(node, site, "images.verify", workload=workload, checkpoint=checkpoint)
        emit(found, json, lambda: out.print(_table(found)))
        if any(entry["fault"] for entry in found):
            raise typer.Exit(1)


def _ask(name: str, site: Path, call: str, **arguments: Any) -> list[dict[str, Any]]:
    declared = load_site(site)
    if name not in declared.nodes:
        raise BadInput(name, "no such node in the site", ", ".join(declared.nodes))
    node = RemoteNode(name, declared.nodes[name])
    try:
        return list(node.call(call, timeout=3600, **arguments)["images"])
    finally:
        node.close()


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table()
    for column in ("checkpoint", "state", "bytes", "created", "fault"):
        table.add_column(column, overflow="fold")
    for entry in found:
        table.add_row(
            entry["checkpoint"],
            entry["state"],
            str(entry.get("bytes", "-")),
            str(entry.get("created", "-")),
            printable(str(entry.get("fault") or entry.get("damage") or "")),
        )
    return table
