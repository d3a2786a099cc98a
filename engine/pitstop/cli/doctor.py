"""doctor: what can be saved on a machine and what cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from pitstop.cli.options import Json, SiteFile
from pitstop.cli.output import emit, errors, out, printable
from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import BadInput
from pitstop.steps.files import load_site

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "absent": "dim"}


def doctor(
    node: Annotated[str | None, typer.Argument(help="A node of the site; default here.")] = None,
    site: SiteFile = Path("site.yaml"),
    state_dir: Annotated[str | None, typer.Option(help="The engine's directory, here.")] = None,
    trial: Annotated[bool, typer.Option(help="Save and restore a throw-away process.")] = True,
    json: Json = False,
) -> None:
    """Say what can be saved, each line with its reason and the exact fix."""
    with errors(json):
        found = _here(state_dir, trial) if node is None else _there(node, site, trial)
        emit(found, json, lambda: _show(found))
        if not found["able"]:
            raise typer.Exit(1)


def _here(state_dir: str | None, trial: bool) -> dict[str, Any]:
    from pitstop.node.doctor import examine
    from pitstop.node.paths import StateDir

    return examine(StateDir.at(state_dir), trial=trial)


def _there(name: str, site: Path, trial: bool) -> dict[str, Any]:
    declared = load_site(site)
    if name not in declared.nodes:
        raise BadInput(name, "no such node in the site", ", ".join(declared.nodes))
    node = RemoteNode(name, declared.nodes[name])
    try:
        return node.call("doctor", trial=trial)
    finally:
        node.close()


def _show(found: dict[str, Any]) -> None:
    for check in found["checks"]:
        colour = _COLOURS.get(check["state"], "magenta")
        out.print(
            f"[{colour}]{check['state']:8}[/{colour}] {escape(printable(check['what']))}: "
            f"{escape(printable(str(check['found'])))}"
        )
        if check["state"] not in ("ok", "absent"):
            for key in ("why", "fix"):
                if check.get(key):
                    out.print(f"         {key}: {escape(printable(check[key]))}")
    out.print("able to save workloads" if found["able"] else "NOT able to save workloads")
