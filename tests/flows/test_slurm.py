"""A maintenance of a Slurm node as a flow run, on a real Slurm."""

from __future__ import annotations

import pytest

from pitstop.flows.front_end import drive
from pitstop.steps.runs import create_run
from tests.flows import api
from tests.rigs.slurm_site import SlurmRuns

pytestmark = pytest.mark.usefixtures("server")


def test_every_step_on_a_job_is_a_task(runs: SlurmRuns) -> None:
    runs.changes["jobs"] = [
        {
            "match_name": "saves-*",
            "multi_node": "signal",
            "signal": {"file": f"{runs.slurm.shared}/{{name}}/complete", "quiet": 0.2},
        },
    ]
    counter = runs.counter()
    saves = runs.slurm.submit_ranks("saves-itself")
    runs.cluster.wait_job(saves, "RUNNING")
    create_run(runs.home, runs.plan(), "jobs", "prefect")
    result = drive(runs.home, "jobs")
    assert result.state == "done", result.cause
    outcomes = {w.name: w.outcome for w in result.workloads}
    assert outcomes[f"job-{counter}"] in ("restored", "migrated")
    assert outcomes[f"job-{saves}"] == "requeued"
    runs.counts()
    assert runs.is_one_process()
    [flow_run] = api.flow_runs("jobs")
    expected = {
        *("precheck-n1", "drain-n1", "maintain-n1", "validate-n1", "return-to-service-n1"),
        *(f"{verb}-job-{counter}" for verb in ("checkpoint", "requeue", "release")),
        *(f"{verb}-job-{saves}" for verb in ("signal", "requeue", "release")),
    }
    assert set(api.task_runs(flow_run["id"], expected)) == expected
