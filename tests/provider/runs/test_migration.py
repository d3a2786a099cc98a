"""GPU workloads over a driver upgrade in a DAG run: tasks for both nodes, one set is taken."""

from __future__ import annotations

import pytest

from tests.provider.runs.test_maintenance import connect, result, taken, through
from tests.rigs.gpu_nodes import ALONE, LLM, GpuNodes, assert_moved_at_one_boundary
from tests.rigs.site import NODE

DAG_FILE = """
from datetime import UTC, datetime
from airflow.sdk import DAG
from pitstop.provider.task_group import maintenance_task_group

with DAG(dag_id={name!r}, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
    maintenance_task_group(
        maintenance={maintenance!r}, node="gpu1", workloads=["llm", "alone"], spares={spares!r}
    )
"""


def test_a_driver_upgrade_moves_what_fits_elsewhere(
    gpu_nodes: GpuNodes, airflow_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = gpu_nodes
    rig.start_all()
    before = rig.memory(NODE)
    maintenance = str(rig.upgrade())
    connect(rig, monkeypatch)

    # A graph without tasks for the move is refused before anything was touched.
    code = DAG_FILE.format(name="no_spares", maintenance=maintenance, spares=[ALONE])
    state, states = through(airflow_db, "no_spares", code)
    assert (state, states["plan"], taken(states)) == ("failed", "failed", set())
    assert "lock" not in {traced.call for traced in rig.machines[NODE].trace()}

    code = DAG_FILE.format(name="moves", maintenance=maintenance, spares=[LLM])
    state, states = through(airflow_db, "moves", code)
    assert state == "success", states
    outcomes = {w["name"]: w["outcome"] for w in result(rig)["workloads"]}
    assert outcomes == {LLM: "migrated", ALONE: "cold-started"}
    assert_moved_at_one_boundary(rig, "dag", before)
    there = {f"{verb}_llm_there" for verb in ("gate", "restore", "return_to_service")}
    assert taken(states) == {
        *("plan", "precheck", "drain_llm", "drain_alone", "checkpoint_llm", "transfer_llm"),
        *there,
        *("stop_alone", "maintain", "validate", "gate_alone", "cold_start_alone"),
        *("return_to_service_alone", "finish"),
    }
    assert {s for n, s in states.items() if n not in taken(states)} == {"skipped"}
