"""The hook: which site, which journal, and the key to reach the nodes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook, Connection, Context

from pitstop.fleet.node import DeferringNode
from pitstop.model.errors import BadInput
from pitstop.model.plan import Plan
from pitstop.model.site import Site
from pitstop.provider.info import CONNECTION_TYPE, DEFAULT_CONNECTION
from pitstop.steps.context import RunContext
from pitstop.steps.files import load_site, plan_for_site
from pitstop.steps.identities import with_identity


class PitstopHook(BaseHook):
    """A connection of type `pitstop`.

    Its extra fields are `site_file` and `home`, both paths that every worker and the
    triggerer can reach; its password, if given, is the private key that nodes are reached
    with. `alarm_url`, if given, is told of maintenances that are not done in time.

    :param pitstop_conn_id: the connection's id.
    """

    conn_name_attr = "pitstop_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = CONNECTION_TYPE
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

    @property
    def alarm_url(self) -> str:
        """Where alarms are posted to, or an empty text."""
        return str(self._fields().get("alarm_url") or "")

    async def aload(self) -> None:
        """Read the connection from within an event loop; a triggerer cannot do it otherwise."""
        self._take(await self.aget_connection(self.pitstop_conn_id))

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
        value = self._fields().get(name)
        if not isinstance(value, str) or not value.startswith("/"):
            raise BadInput(
                f"connection {self.pitstop_conn_id}", f"{name}: an absolute path is expected"
            )
        return value

    def _fields(self) -> dict[str, Any]:
        if self._extra is None:
            self._take(self.get_connection(self.pitstop_conn_id))
        assert self._extra is not None  # noqa: S101  # it was taken
        return self._extra

    def _take(self, connection: Connection) -> None:
        self._extra = dict(connection.extra_dejson)
        self._key = connection.password or ""


def run_id_of(context: Context) -> str:
    """Return the pitstop run of a DAG run: the same for every task and every retry of it."""
    dag_run = context["dag_run"]
    return run_id(dag_run.dag_id, dag_run.run_id, dag_run.conf)


def run_id(dag_id: str, dag_run_id: str, conf: Mapping[str, Any] | None) -> str:
    """Return the pitstop run of a DAG run, from what is known of that."""
    given = (conf or {}).get("pitstop_run")
    if given:
        return str(given)
    name = f"{dag_id}-{dag_run_id}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].strip("-") or "run"
    return f"{slug}-{digest}"
