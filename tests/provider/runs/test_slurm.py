"""A maintenance of a Slurm node as a DAG run, on a real Slurm."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from pitstop.decide.outcome import result_of
from pitstop.steps.runs import has_run, open_run
from tests.provider.runs.test_maintenance import taken, through
from tests.rigs.engine import until
from tests.rigs.slurm_site import NODE, SlurmRuns

DAG_FILE = """
from datetime import UTC, datetime
from airflow.sdk import DAG
from pitstop.provider.task_group import maintenance_task_group

with DAG(dag_id={name!r}, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
    maintenance_task_group(
        maintenance={maintenance!r}, node="n1", workloads=[], scheduler={scheduler}
    )
"""


@pytest.fixture
def connected(runs: SlurmRuns, monkeypatch: pytest.MonkeyPatch) -> SlurmRuns:
    runs.changes["jobs"] = [
        {"match_name": "short", "not_launched": "wait", "wait_deadline": 100},
        {
            "match_name": "saves-*",
            "multi_node": "signal",
            "signal": {"file": f"{runs.slurm.shared}/{{name}}/complete", "quiet": 0.2},
        },
    ]
    extra = {"site_file": str(runs.site_file()), "home": str(runs.home)}
    connection = {"conn_type": "pitstop", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PITSTOP_DEFAULT", json.dumps(connection))
    return runs


def dag(runs: SlurmRuns, airflow_db: str, scheduler: bool) -> tuple[str, dict[str, str]]:
    name = f"slurm_{uuid.uuid4().hex[:8]}"
    runs.plan()  # writes the maintenance
    text = DAG_FILE.format(
        name=name, maintenance=str(runs.home / "quiet.yaml"), scheduler=scheduler
    )
    return through(airflow_db, name, text)


def test_jobs_go_through_it(connected: SlurmRuns, airflow_db: str) -> None:
    runs = connected
    counter = runs.counter()
    saves = runs.slurm.submit_ranks("saves-itself")
    runs.cluster.wait_job(saves, "RUNNING")
    stop = runs.home / "stop"
    until_told = f"until [ -e {stop} ]; do sleep 0.2; done"
    short = runs.submit(until_told, "--job-name=short", "--time=1")
    teller = threading.Thread(target=when_planned, args=(runs, stop))
    teller.start()
    state, states = dag(runs, airflow_db, scheduler=True)
    teller.join()
    assert state == "success", states
    # No workload of the site lies between, so the jobs are moved by the first of their tasks.
    assert taken(states) == {
        *("plan", "precheck", "drain", "jobs_wait"),
        *("maintain", "validate", "return_to_service", "jobs_bring_back", "finish"),
    }
    with closing(open_run(runs.home, "dag")) as ctx:
        outcomes = {w.name: w.outcome for w in result_of(ctx.plan, "dag", ctx.events()).workloads}
    assert outcomes[f"job-{counter}"] in ("restored", "migrated")
    assert outcomes[f"job-{saves}"] == "requeued"
    assert outcomes[f"job-{short}"] == "untouched"
    runs.counts()
    assert runs.is_one_process()
    assert not runs.node_line().startswith("drain")


def when_planned(runs: SlurmRuns, stop: Path) -> None:
    """End the job that is waited for once it is in a plan."""
    until(lambda: has_run(runs.home, "dag"), "the run is planned", 120, pause=0.2)
    stop.touch()


def test_a_graph_without_tasks_for_jobs_is_refused(connected: SlurmRuns, airflow_db: str) -> None:
    counter = connected.counter()
    state, states = dag(connected, airflow_db, scheduler=False)
    assert (state, states["plan"], taken(states)) == ("failed", "failed", set())
    assert connected.cluster.state(counter) == "RUNNING"
    assert connected.node_line(NODE) == "mixed|none"
