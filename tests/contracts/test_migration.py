"""A workload moves to another node and back, on real parts; and what is cut off goes on."""

from __future__ import annotations

import json
import os
import signal

import pytest

from pitstop.model.words import Strategy
from pitstop.steps.files import plan_from_files
from tests.rigs.branches import assert_branches
from tests.rigs.command import Command
from tests.rigs.engine import until
from tests.rigs.site import NODE, WORKLOAD
from tests.rigs.two_nodes import SPARE, TwoNodes, assert_moved, by_name


def test_moves_before_the_maintenance_and_back_after_another(two_nodes: TwoNodes) -> None:
    rig = two_nodes
    born = rig.start_all()
    code, result = rig.run(rig.changes_kernel(), "--run", "away")
    assert code == 0, result
    assert_branches(rig, "away", "moved")
    assert_moved(rig, result, born)

    # A supervisor on the node that it left does not start it a second time.
    again = ["pitstop-node", "launch", "--workload", WORKLOAD, "--", "true"]
    command = rig.site["nodes"][NODE]["engine"] + again[1:]
    with rig.node.popen(command, stderr=-1, text=True) as launcher:
        _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 3
    assert f"moved to {SPARE} by run away" in said
    for node in (NODE, SPARE):
        assert rig.said_by(node, "holder", workload=WORKLOAD)["holder"] == ""

    # The plan of the second node finds it there, and its own node as where it may go.
    maintenance = rig.changes_kernel("back", SPARE)
    plan = plan_from_files(rig.site_file, maintenance)
    [web] = plan.workloads
    assert (web.name, web.strategy) == (WORKLOAD, Strategy.MIGRATE), web.reason
    assert web.target is not None
    assert web.target.node == NODE
    code, result = rig.run(maintenance)
    assert (code, by_name(result)[WORKLOAD]["outcome"]) == (0, "migrated"), result
    assert rig.ask_on(NODE, "/proof") == {"born": born, "count": 4}
    assert rig.said_by(NODE, "workload", workload=WORKLOAD)["moved"] is None
    assert rig.said_by(SPARE, "workload", workload=WORKLOAD)["moved"]["to"] == NODE
    assert (rig.copies_on(NODE), rig.copies_on(SPARE)) == (2, 0)


@pytest.mark.parametrize("victim", ["controller", "send", "receive"])
def test_killed_in_the_transfer_it_goes_on(two_nodes: TwoNodes, victim: str) -> None:
    """The controller is resumed; a node's end of the stream is tried again by the run itself."""
    rig = two_nodes
    rig.start_all(WORKLOAD)
    files = (str(rig.changes_kernel()), "--site", str(rig.site_file), "--home", str(rig.home))
    with Command("run", *files, "--run", "cut") as process:
        end = "receive" if victim == "controller" else victim
        found = until(lambda: rig.streaming(end), f"images {end} works", seconds=60)
        os.kill(process.pid if victim == "controller" else found, signal.SIGKILL)
        code = process.wait(120)
    if victim == "controller":
        assert code == -signal.SIGKILL
        until(lambda: not rig.streaming("receive"), "what it had begun has ended")
        code, _ = rig.resume("cut")
    assert code == 0
    result = json.loads(rig.cli("report", "cut", "--home", str(rig.home), "--json").stdout)
    assert result["chain_faults"] == []
    assert by_name(result["result"])[WORKLOAD]["outcome"] == "migrated"
    assert rig.ask_on(SPARE, "/count")["count"] == 4
    assert (rig.copies_on(NODE), rig.copies_on(SPARE)) == (0, 1)
    assert rig.checkpoints(NODE) == ["handed-over"]
    assert rig.checkpoints(SPARE) == ["consumed"]
