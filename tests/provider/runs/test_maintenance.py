"""Whole runs as DAG runs, on real parts: the branches are the sequence's own."""

from __future__ import annotations

import importlib.util
import json
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from pitstop.decide.outcome import result_of
from pitstop.model.words import Verb
from pitstop.provider.task_group import maintenance_task_group
from pitstop.steps.runs import open_run
from tests.rigs.maintenance import quiet
from tests.rigs.site import NODE, WORKLOAD, SiteRig

DAG_FILE = """
from datetime import UTC, datetime
from airflow.sdk import DAG
from pitstop.provider.task_group import maintenance_task_group

with DAG(dag_id={name!r}, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
    maintenance_task_group(maintenance={maintenance!r}, node="gpu1", workloads=["web"])
"""

RunDag = Callable[[SiteRig, Path], tuple[str, dict[str, str]]]


@pytest.fixture
def run_dag(airflow_db: str, monkeypatch: pytest.MonkeyPatch) -> RunDag:
    """Run the task group as a DAG; return the DAG run's state and each task's."""

    def run(rig: SiteRig, maintenance: Path) -> tuple[str, dict[str, str]]:
        connect(rig, monkeypatch)
        name = f"maintenance_{uuid.uuid4().hex[:8]}"
        return through(airflow_db, name, DAG_FILE.format(name=name, maintenance=str(maintenance)))

    return run


def connect(rig: SiteRig, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"site_file": str(rig.write()), "home": str(rig.home)}
    connection = {"conn_type": "pitstop", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PITSTOP_DEFAULT", json.dumps(connection))


def through(airflow_home: str, name: str, code: str) -> tuple[str, dict[str, str]]:
    """Run a DAG file from the DAG folder; return the DAG run's state and each task's."""
    path = Path(airflow_home) / "dags" / f"{name}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        dag_run = module.dag.test(run_conf={"pitstop_run": "dag"})
    finally:
        path.unlink()
    states = {
        ti.task_id.removeprefix("maintenance."): str(ti.state)
        for ti in dag_run.get_task_instances()
    }
    return str(dag_run.state), states


def result(rig: SiteRig) -> dict[str, Any]:
    ctx = open_run(rig.home, "dag")
    try:
        return result_of(ctx.plan, "dag", ctx.events()).model_dump(mode="json")
    finally:
        ctx.close()


def taken(states: dict[str, str]) -> set[str]:
    return {name for name, state in states.items() if state == "success"}


def test_restored(rig: SiteRig, run_dag: RunDag) -> None:
    state, states = run_dag(rig, rig.maintenance())
    assert state == "success", states
    assert taken(states) == {
        "plan",
        "precheck",
        f"drain_{WORKLOAD}",
        f"checkpoint_{WORKLOAD}",
        "maintain",
        "validate",
        f"gate_{WORKLOAD}",
        f"restore_{WORKLOAD}",
        f"return_to_service_{WORKLOAD}",
        "finish",
    }
    assert {s for n, s in states.items() if n not in taken(states)} == {"skipped"}
    [workload] = result(rig)["workloads"]
    assert workload["outcome"] == "restored"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)
    assert (rig.home / "runs" / "dag" / "report.html").exists()


def test_declared_change_takes_the_cold_branch(rig: SiteRig, run_dag: RunDag) -> None:
    (rig.root / "new").write_text("2.0\n")
    maintenance = rig.maintenance(
        variables={"patch_command": ["cp", str(rig.root / "new"), str(rig.version_file)]},
        changes={"engine.version": "2.0"},
    )
    state, states = run_dag(rig, maintenance)
    assert state == "success", states
    assert states[f"checkpoint_{WORKLOAD}"] == states[f"restore_{WORKLOAD}"] == "skipped"
    assert states[f"stop_{WORKLOAD}"] == states[f"cold_start_{WORKLOAD}"] == "success"
    [workload] = result(rig)["workloads"]
    assert workload["outcome"] == "cold-started"
    assert "1.0 -> 2.0" in workload["cause"]
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 1)


def test_failed_maintenance_fails_the_dag_run_and_quarantines(
    rig: SiteRig, run_dag: RunDag
) -> None:
    state, states = run_dag(rig, rig.maintenance(variables={"patch_command": ["false"]}))
    assert state == "failed"
    assert states["maintain"] == "failed"
    assert states["rollback"] == states["quarantine"] == "success"
    assert states["finish"] == "failed"
    assert result(rig)["node_state"] == "quarantined"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)


def test_refused_plan_touches_nothing(idle_rig: SiteRig, run_dag: RunDag) -> None:
    rig = idle_rig
    rig.workload["launch"]["command"].append("--ring")
    rig.start()
    state, states = run_dag(rig, rig.maintenance())
    assert (state, states["plan"]) == ("failed", "failed")
    assert taken(states) == set()
    assert rig.copies() == 1
    assert not (rig.root / "patched").exists()


def test_workload_that_nothing_brings_back_fails_the_dag_run(rig: SiteRig, run_dag: RunDag) -> None:
    """Restore is no teardown, whose failure a DAG run would not see: it is a task like others."""
    for verb in ("restore", "cold_start"):
        rig.site["policy"]["retries"][verb] = {"count": 0}
    rig.workload["ready"]["deadline"] = 2
    state, states = run_dag(rig, quiet(rig, ["touch", str(rig.root / "broken")]))
    assert state == "failed", states
    assert states[f"restore_{WORKLOAD}"] == states[f"cold_start_{WORKLOAD}"] == "failed"
    assert states["maintain"] == states["validate"] == "success"
    assert states["finish"] == "failed"
    found = result(rig)
    assert (found["state"], found["workloads"][0]["outcome"]) == ("partial", None)
    assert rig.copies() == 1  # the last one, which answers 503


def tasks(scheduler: bool = False, spares: Sequence[str] = ()) -> set[str]:
    with DAG(dag_id="verbs", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        group = maintenance_task_group(
            maintenance="/m.yaml",
            node=NODE,
            workloads=["a", "b"],
            spares=spares,
            scheduler=scheduler,
        )
    return {name.removeprefix("maintenance.") for name in group.children}


def test_every_verb_of_the_sequence_has_its_task() -> None:
    of_jobs = {Verb.SIGNAL, Verb.REQUEUE, Verb.RELEASE, Verb.EVICT}
    node_verbs = {Verb.PRECHECK, Verb.MAINTAIN, Verb.VALIDATE, Verb.ROLLBACK, Verb.QUARANTINE}
    of_workloads = set(Verb) - node_verbs - of_jobs - {Verb.TRANSFER}
    expected = {verb.value for verb in node_verbs} | {
        f"{verb.value}_{workload}" for verb in of_workloads for workload in "ab"
    }
    assert tasks() == expected | {"plan", "finish"}
    assert tasks(spares=["b"]) - tasks() == {
        "transfer_b",
        *(f"{verb}_b_there" for verb in ("gate", "restore", "cold_start", "return_to_service")),
    }
    assert tasks(scheduler=True) - tasks() == {
        *("drain", "jobs_wait", "jobs_signal", "jobs_move", "evict"),
        *("return_to_service", "jobs_bring_back"),
    }
