"""A workload moves to another node in a flow run: a task for every step of it."""

from __future__ import annotations

import pytest

from pitstop.flows.front_end import drive
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run
from tests.flows import api
from tests.flows.scenes import RESTORED
from tests.rigs.branches import assert_branches
from tests.rigs.two_nodes import TwoNodes, assert_moved

pytestmark = pytest.mark.usefixtures("server")


def test_moves_before_the_maintenance(two_nodes: TwoNodes) -> None:
    rig = two_nodes
    born = rig.start_all()
    create_run(rig.home, plan_from_files(rig.site_file, rig.changes_kernel()), "away", "prefect")
    result = drive(rig.home, "away")
    assert_branches(rig, "away", "moved")
    assert_moved(rig, result.model_dump(mode="json"), born)
    [flow_run] = api.flow_runs("away")
    expected = {*RESTORED, "transfer-web", "drain-api", "stop-api", "gate-api"}
    expected |= {"cold-start-api", "return-to-service-api"}
    assert set(api.task_runs(flow_run["id"], expected)) == expected
