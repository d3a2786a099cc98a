"""Airflow as the driver behind `pitstop run --on airflow`.

Airflow runs in processes of its own and is not imported here: that takes seconds, and points
the logging of whatever imports it at its own standard output.
"""

from __future__ import annotations

import atexit
import hashlib
from importlib.util import find_spec
from pathlib import Path

from pitstop.decide.outcome import result_of
from pitstop.model.errors import Unexpected
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.provider.info import CONNECTION_TYPE, DEFAULT_CONNECTION
from pitstop.provider.standalone import Standalone
from pitstop.steps.runs import open_run

if find_spec("airflow") is None:
    raise ImportError("there is no Airflow here")

RUN_DEADLINE = 7 * 86400.0

_running: dict[Path, Standalone] = {}

_DAG = """from datetime import UTC, datetime

from airflow.sdk import DAG

from pitstop.provider.task_group import maintenance_task_group

with DAG(
    dag_id={dag_id!r},
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
):
    maintenance_task_group(
        maintenance="",
        node={node!r},
        workloads={workloads!r},
        spares={spares!r},
        scheduler={scheduler!r},
    )
"""


def drive(home: Path, run_id: str) -> RunResult:
    """Drive a recorded run as a DAG run and return how it ended.

    An Airflow of its own is started for this process, and ended with it.
    """
    context = open_run(home, run_id)
    try:
        plan = context.plan
    finally:
        context.close()
    airflow = _standalone(home)
    dag_id = _write_dag(airflow, plan)
    dag_run = airflow.trigger(dag_id, {"pitstop_run": run_id})
    state = airflow.wait_run(dag_id, dag_run, RUN_DEADLINE)
    context = open_run(home, run_id)
    try:
        events = context.events()
        if not events or events[-1].kind != "run.ended":
            raise Unexpected(run_id, f"the DAG run ended ({state}), the run did not")
        return result_of(context.plan, run_id, events)
    finally:
        context.close()


def _standalone(home: Path) -> Standalone:
    if home not in _running:
        extra = {"home": str(home), "site_file": str(home / "site.yaml")}
        connection = {"conn_type": CONNECTION_TYPE, "extra": extra}
        _running[home] = Standalone({DEFAULT_CONNECTION: connection})
        atexit.register(_running[home].close)
    return _running[home]


def _write_dag(airflow: Standalone, plan: Plan) -> str:
    workloads = [w.name for w in plan.workloads]
    shown = {
        "node": plan.node,
        "workloads": workloads,
        "spares": [w.name for w in plan.workloads if w.target is not None],
        "scheduler": plan.scheduler is not None,
    }
    digest = hashlib.sha256(repr(shown).encode()).hexdigest()[:8]
    dag_id = f"pitstop_{digest}"
    path = airflow.dags / f"{dag_id}.py"
    if not path.exists():
        draft = path.with_suffix(".draft")
        draft.write_text(_DAG.format(dag_id=dag_id, **shown))
        draft.rename(path)
    return dag_id
