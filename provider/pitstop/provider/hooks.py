"""The hook: which site, which journal, and the key to reach the nodes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook, Context

from pitstop.fleet.node import DeferringNode
from pitstop.model.errors import BadInput
from pitstop.model.plan import Plan
from pitstop.model.site import Site
from pitstop.steps.context import RunContext
from pitstop.steps.files import load_site, plan_for_site
from pitstop.steps.identities import with_identity


class PitstopHook(BaseHook):
    """A connection of type `pitstop`.

    Its extra fields are `site_file` and `home`, both paths that every worker and the
    triggerer can reach; its password, if given, is the private key that nodes are reached
    with.

    :param pitstop_conn_id: the connection's id.
    """

    conn_name_attr = "pitstop_conn_id"
    default_conn_name = "pitstop_default"
    conn_type = "pitstop"
    hook_name = "pitstop"

    def __init__(self, pitstop_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.pitstop_conn_id = pitstop_conn_id
        self._extra: dict[str, Any] | None = None
        self._key = ""

    @property
    def home(self) -> Path:
        """Where journal and reports lie."""
        return Path(self._field("home"))

    @property
    def site_file(self) -> Path:
        """The site.yaml."""
        return Path(self._field("site_file"))

    def site(self) -> Site:
        """Return the checked site, with the connection's key put in."""
        site = load_site(self.site_file)
        if not self._key:
            return site
        return with_identity(site, self._key, self.home / "keys")

    def plan(self, maintenance: Path) -> Plan:
        """Make the plan of a maintenance file. Only looks."""
        return plan_for_site(self.site(), maintenance)

    def context(self, run: str, progress: Callable[[str], None]) -> RunContext:
        """Open a run so that waiting for its node can be given up."""
        return RunContext(self.home, run, progress=progress, node=DeferringNode)

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the site can be read."""
        try:
            site = self.site()
        except Exception as error:  # noqa: BLE001  # whatever it is, the form shows it
            return False, str(error)
        return True, f"site {site.name}: {len(site.nodes)} nodes, {len(site.workloads)} workloads"

    def _field(self, name: str) -> str:
        if self._extra is None:
            connection = self.get_connection(self.pitstop_conn_id)
            self._extra = dict(connection.extra_dejson)
            self._key = connection.password or ""
        value = self._extra.get(name)
        if not isinstance(value, str) or not value.startswith("/"):
            raise BadInput(
                f"connection {self.pitstop_conn_id}", f"{name}: an absolute path is expected"
            )
        return value


def run_id_of(context: Context) -> str:
    """Return the pitstop run of a DAG run: the same for every task and every retry of it."""
    dag_run = context["dag_run"]
    given = (dag_run.conf or {}).get("pitstop_run")
    if given:
        return str(given)
    name = f"{dag_run.dag_id}-{dag_run.run_id}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].strip("-") or "run"
    return f"{slug}-{digest}"
