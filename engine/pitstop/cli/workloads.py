"""start, checkpoint, gate, restore, suspend, unsuspend: one workload by hand, outside of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pitstop.cli.options import Json, SiteFile
from pitstop.cli.output import emit, errors, out, printable, progress
from pitstop.decide.gate import compare
from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import Refused
from pitstop.model.fingerprint import Fingerprint
from pitstop.model.site import Site
from pitstop.model.verdict import Verdict
from pitstop.model.workload import Workload
from pitstop.steps.by_hand import (
    checkpoint_by_hand,
    find_home,
    restore_by_hand,
    start_by_hand,
    suspend_by_hand,
    unsuspend_by_hand,
)
from pitstop.steps.files import load_site
from pitstop.steps.specs import probes_of

Name = Annotated[str, typer.Argument(help="The workload's name in site.yaml.")]


def start(workload: Name, site: SiteFile = Path("site.yaml"), json: Json = False) -> None:
    """Cold-start a workload and wait until it is ready to serve."""
    _act(workload, site, json, lambda s, n, w: start_by_hand(s, n, w, workload, progress))


def checkpoint(workload: Name, site: SiteFile = Path("site.yaml"), json: Json = False) -> None:
    """Save a workload and end it. `pitstop restore` brings it back."""
    _act(workload, site, json, lambda s, n, w: checkpoint_by_hand(s, n, w, workload, progress))


def restore(workload: Name, site: SiteFile = Path("site.yaml"), json: Json = False) -> None:
    """Restore a workload from its newest checkpoint, if the gate says yes."""
    _act(workload, site, json, lambda s, n, w: restore_by_hand(s, n, w, workload, progress))


def suspend(workload: Name, site: SiteFile = Path("site.yaml"), json: Json = False) -> None:
    """Park a workload's GPU state in host memory. It does not survive a reboot."""
    _act(workload, site, json, lambda s, n, w: suspend_by_hand(s, n, w, workload, progress))


def unsuspend(workload: Name, site: SiteFile = Path("site.yaml"), json: Json = False) -> None:
    """Bring a suspended workload back onto its GPUs and wait until it is ready to serve."""
    _act(workload, site, json, lambda s, n, w: unsuspend_by_hand(s, n, w, workload, progress))


def gate(workload: Name, site: SiteFile = Path("site.yaml"), json: Json = False) -> None:
    """Compare the newest checkpoint with what is there now. Exit 3 when it is invalid."""
    with errors(json):
        declared, spec, node = _find(workload, site)
        try:
            found = node.call("images.newest", workload=workload)
            if found["fingerprint"] is None:
                raise Refused(workload, "there is no checkpoint that could be restored")
            present = node.call("fingerprint", probes=probes_of(spec))["fingerprint"]
        finally:
            node.close()
        verdict = compare(
            Fingerprint.from_json(found["fingerprint"]),
            Fingerprint.from_json(present),
            declared.policy.tolerate,
        )
        data = {"checkpoint": found["checkpoint"], **verdict.to_json()}
        emit(data, json, lambda: _show(str(found["checkpoint"]), verdict))
        if not verdict.valid:
            raise typer.Exit(3)


def _show(checkpoint_id: str, verdict: Verdict) -> None:
    out.print(f"{checkpoint_id}: {'valid' if verdict.valid else 'invalid'}", markup=False)
    for difference in verdict.differences:
        out.print(f"  {printable(str(difference))}", markup=False)


def _act(
    name: str,
    site: Path,
    as_json: bool,
    action: Callable[[Site, RemoteNode, Workload], dict[str, Any]],
) -> None:
    with errors(as_json):
        declared, spec, node = _find(name, site)
        try:
            result = action(declared, node, spec)
        finally:
            node.close()
        emit(result, as_json, lambda: _print(result))


def _print(result: dict[str, Any]) -> None:
    for key, value in result.items():
        if not isinstance(value, dict | list):
            out.print(f"{key}: {printable(str(value))}", markup=False)


def _find(name: str, site: Path) -> tuple[Site, Workload, RemoteNode]:
    declared = load_site(site)
    node, spec = find_home(declared, name)
    return declared, spec, RemoteNode(node, declared.nodes[node])
