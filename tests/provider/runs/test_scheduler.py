"""The shipped example under a whole Airflow: scheduler, triggerer, workers, and its deadline.

`dag.test()` of Airflow 3.3.2 cannot end a DAG that has a deadline (airflow#73428).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pitstop.model.words import Verb
from pitstop.provider.example_dags import example_maintenance
from pitstop.provider.info import CONNECTION_TYPE, DEFAULT_CONNECTION
from pitstop.provider.standalone import Standalone
from pitstop.steps.by_hand import start_by_hand
from pitstop.steps.files import load_site, plan_from_files
from pitstop.steps.runs import create_run
from tests.provider.conftest import LeftOver
from tests.provider.receiver import receiver
from tests.rigs.engine import until
from tests.rigs.maintenance import fifo, quiet
from tests.rigs.site import NODE, WORKLOAD, SiteRig

DAG = "pitstop_example_maintenance"


@pytest.fixture
def rig(idle_rig: SiteRig) -> SiteRig:
    """The site that the example asks for: the workload `chat` on the node `gpu1`."""
    idle_rig.site["workloads"]["chat"] = idle_rig.site["workloads"].pop(WORKLOAD)
    site, node = load_site(idle_rig.write()), idle_rig.remote()
    try:
        start_by_hand(site, node, site.workloads["chat"], "chat", lambda _t: None)
    finally:
        node.close()
    assert idle_rig.count_to(3) == 3
    return idle_rig


@pytest.mark.timeout(900)
def test_late_example_is_told_to_the_site_and_ends_well(rig: SiteRig, left_over: LeftOver) -> None:
    """The run is on record beforehand, so that the alarm finds it however slow Airflow is."""
    maintained = fifo(rig, "maintained")
    maintenance = quiet(rig, ["head", "-n1", str(maintained)])
    create_run(rig.home, plan_from_files(rig.site_file, maintenance), "late", "airflow")
    code = Path(example_maintenance.__file__).read_text()
    assert code.count("timedelta(hours=2)") == 1
    extra = {"site_file": str(rig.site_file), "home": str(rig.home)}
    with receiver() as (url, received):
        connection = {"conn_type": CONNECTION_TYPE, "extra": {**extra, "alarm_url": url}}
        airflow = Standalone({DEFAULT_CONNECTION: connection})
        try:
            file = airflow.dags / "example_maintenance.py"
            file.write_text(code.replace("timedelta(hours=2)", "timedelta(seconds=5)"))
            airflow.wait(f"/api/v2/dags/{DAG}", lambda found: bool(found["dag_id"]))
            variable = {"key": "pitstop_maintenance", "value": str(maintenance)}
            airflow.ask("POST", "/api/v2/variables", variable)
            dag_run = airflow.trigger(DAG, {"pitstop_run": "late"})
            until(lambda: received, "the site was told", 200)
            until(lambda: let_go(maintained), "it is being maintained", 300)
            assert airflow.wait_run(DAG, dag_run, 300) == "success"
            path = f"/api/v2/dags/{DAG}/dagRuns/{dag_run}/taskInstances"
            tasks = airflow.ask("GET", path)["task_instances"]
        finally:
            airflow.close()
    states = {t["task_id"].removeprefix("maintenance."): t["state"] for t in tasks}
    assert states["restore_chat"] == states["finish"] == "success"
    assert states["cold_start_chat"] == "skipped"
    [alarm] = received
    assert (alarm["dag_id"], alarm["dag_run_id"], alarm["run"]) == (DAG, dag_run, "late")
    assert (alarm["state"], alarm["node"], alarm["unknown"]) == ("under way", NODE, "")
    assert alarm["step"]["verb"] in set(Verb)
    assert alarm["go_on"][1] == f"pitstop resume late --home {rig.home}"
    assert (rig.copies(), rig.ask("/count")["count"]) == (1, 4)


def let_go(path: Path) -> bool:
    """Write into a FIFO if somebody reads it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(descriptor, b"go on\n")
    os.close(descriptor)
    return True
