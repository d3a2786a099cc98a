"""The files people write, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from pitstop.model.errors import BadInput
from pitstop.model.maintenance import Maintenance
from pitstop.model.plan import Plan
from pitstop.model.site import Site
from pitstop.model.yamltext import load_model
from pitstop.steps.planning import make_plan
from pitstop.templates import runbook_names, runbook_source

M = TypeVar("M", bound=BaseModel)


def load_site(path: Path) -> Site:
    """Read a site.yaml.

    Raises:
        BadInput: it cannot be read or is wrong; the subject names file and line.
    """
    return _load(Site, path)


def load_maintenance(path: Path) -> Maintenance:
    """Read a maintenance.yaml; raises like `load_site`."""
    return _load(Maintenance, path)


def find_runbook(name: str, beside: Path) -> tuple[str, str]:
    """Return source and origin of a runbook: a built-in name, or a path ending in .md.j2.

    Raises:
        BadInput: there is none.
    """
    if not name.endswith(".md.j2"):
        if name not in runbook_names():
            raise BadInput(
                name, "no such runbook", f"built in: {', '.join(sorted(runbook_names()))}"
            )
        return runbook_source(name), f"{name}.md.j2"
    path = (beside / name).resolve()
    return _text(path), str(path)


def plan_from_files(site_file: Path, maintenance_file: Path) -> Plan:
    """Make the plan that two files describe; see `plan_for_site`."""
    return plan_for_site(load_site(site_file), maintenance_file)


def plan_for_site(site: Site, maintenance_file: Path) -> Plan:
    """Make the plan of a maintenance file. Only looks; nothing is changed.

    Raises:
        BadInput: a file is wrong.
        PitstopError: the node cannot be asked.
    """
    maintenance = load_maintenance(maintenance_file)
    source, origin = find_runbook(maintenance.runbook, maintenance_file.parent)
    return make_plan(site, maintenance, source, origin)


def _load(kind: type[M], path: Path) -> M:
    return load_model(kind, _text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"cannot be read: {error}") from None
