"""The example DAGs, found and imported as Airflow's DAG processor does it."""

from __future__ import annotations

from pathlib import Path

from airflow.dag_processing.dagbag import DagBag

import pitstop.provider.example_dags

FOLDER = Path(pitstop.provider.example_dags.__path__[0])


def test_examples_import_without_an_error_and_warn_of_lateness(airflow_db: str) -> None:
    bag = DagBag(dag_folder=str(FOLDER))
    assert bag.import_errors == {}
    assert set(bag.dags) == {"pitstop_example_maintenance"}
    [dag] = bag.dags.values()
    assert isinstance(dag.deadline, list)
    [deadline] = dag.deadline
    assert deadline.callback.path == "pitstop.provider.deadlines.alarm"
    assert len([p for p in FOLDER.glob("*.py") if p.stem != "__init__"]) == len(bag.dags)
