"""What the runs in these tests have in common: runbooks, commands, and looks at the node."""

from __future__ import annotations

from typing import Any

from pitstop.journal.store import Journal
from pitstop.model.event import Event
from tests.rigs.site import NODE, WORKLOAD, SiteRig

RESTORED = [
    f"precheck-{NODE}",
    "drain-web",
    "checkpoint-web",
    f"maintain-{NODE}",
    f"validate-{NODE}",
    "gate-web",
    "restore-web",
    "return-to-service-web",
]
"""The task runs of a maintenance that keeps its workload."""

HOLD = """
import pathlib, sys
pathlib.Path(sys.argv[1]).open("a").write("begun\\n")
open(sys.argv[2]).read()
pathlib.Path(sys.argv[1]).open("a").write("ended\\n")
"""
"""A patch that says when it begins and ends, and waits in between for the FIFO."""


def journal(rig: SiteRig, run: str) -> list[Event]:
    """The run's events; none while there is no such run."""
    found = Journal(rig.home / "journal.db")
    try:
        return found.events(run)
    finally:
        found.close()


def look(rig: SiteRig) -> dict[str, Any]:
    """What the node's engine says of itself: quarantine, and the workload's holder."""
    node = rig.remote()
    try:
        found = node.call("inspect", workloads={WORKLOAD: {"probes": {}, "pid_file": None}})
    finally:
        node.close()
    return {
        "quarantine": found["quarantine"],
        "holder": found["workloads"][WORKLOAD]["holder"],
        "running": found["workloads"][WORKLOAD]["running"],
    }


def assert_in_service(rig: SiteRig, count: int) -> None:
    """It runs once, remembers, lets requests in, and nothing holds it or the node."""
    assert rig.copies() == 1
    assert rig.ask("/count")["count"] == count
    assert rig.ask("/")["open"] is True
    assert look(rig) == {"quarantine": None, "holder": "", "running": True}
