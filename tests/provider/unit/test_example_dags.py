"""The example DAGs, found and imported as Airflow's DAG processor does it; the documented one."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag

import pitstop.provider.example_dags

FOLDER = Path(pitstop.provider.example_dags.__path__[0])
DOCUMENT = Path(__file__).parents[3] / "docs" / "airflow.md"


def test_examples_import_without_an_error_and_warn_of_lateness(airflow_db: str) -> None:
    bag = DagBag(dag_folder=str(FOLDER))
    assert bag.import_errors == {}
    assert set(bag.dags) == {"pitstop_example_maintenance"}
    [dag] = bag.dags.values()
    assert isinstance(dag.deadline, list)
    [deadline] = dag.deadline
    assert deadline.callback.path == "pitstop.provider.deadlines.alarm"
    assert len([p for p in FOLDER.glob("*.py") if p.stem != "__init__"]) == len(bag.dags)


def test_documented_dag_is_one() -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)  # noqa: S102  # it is our own
    dag = scope["dag"]
    assert [alert.interval for alert in dag.deadline] == [timedelta(hours=2)]
    assert {"maintenance.plan", "maintenance.restore_chat", "maintenance.finish"} < set(
        dag.task_ids
    )
