"""A workload moves in a DAG run: tasks for both nodes, of which one set is taken."""

from __future__ import annotations

import pytest

from tests.provider.runs.test_maintenance import connect, result, taken, through
from tests.rigs.branches import assert_branches
from tests.rigs.site import WORKLOAD
from tests.rigs.two_nodes import SPARE, STAYS, TwoNodes, assert_moved

DAG_FILE = """
from datetime import UTC, datetime
from airflow.sdk import DAG
from pitstop.provider.task_group import maintenance_task_group

with DAG(dag_id={name!r}, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
    maintenance_task_group(
        maintenance={maintenance!r}, node="gpu1", workloads=["web", "api"], spares={spares!r}
    )
"""


def test_moves_before_the_maintenance(
    two_nodes: TwoNodes, airflow_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = two_nodes
    born = rig.start_all()
    maintenance = str(rig.changes_kernel())
    connect(rig, monkeypatch)

    # A graph without tasks for the move is refused before anything was touched.
    code = DAG_FILE.format(name="no_spares", maintenance=maintenance, spares=[STAYS])
    state, states = through(airflow_db, "no_spares", code)
    assert (state, states["plan"], taken(states)) == ("failed", "failed", set())
    assert (rig.copies_on("gpu1"), rig.copies_on(SPARE)) == (2, 0)

    code = DAG_FILE.format(name="moves", maintenance=maintenance, spares=[WORKLOAD, STAYS])
    state, states = through(airflow_db, "moves", code)
    assert state == "success", states
    assert_branches(rig, "dag", "moved")
    assert_moved(rig, result(rig), born)
    there = {f"{verb}_web_there" for verb in ("gate", "restore", "return_to_service")}
    assert taken(states) == {
        *("plan", "precheck", "drain_web", "drain_api", "checkpoint_web", "transfer_web"),
        *there,
        *("stop_api", "maintain", "validate", "gate_api", "cold_start_api"),
        *("return_to_service_api", "finish"),
    }
    assert {s for n, s in states.items() if n not in taken(states)} == {"skipped"}
