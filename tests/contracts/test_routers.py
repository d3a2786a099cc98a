"""Whole runs behind a real router: not one request fails, and what was closed opens again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pitstop.journal.store import Journal
from pitstop.steps.routing import TOPIC
from tests.rigs.engine import until
from tests.rigs.maintenance import quiet
from tests.rigs.routers import (
    FRONT,
    HERE,
    KINDS,
    THERE,
    Clients,
    Real,
    built,
    ended,
    fetch,
    replica_command,
    require_routers,
)
from tests.rigs.site import PORT, SiteRig, in_network

assert HERE == PORT


@dataclass
class Behind:
    """A site whose workload is one of two replicas behind a real router."""

    rig: SiteRig
    real: Real

    @property
    def replica(self) -> str:
        return self.real.replicas[0]

    @property
    def let_go(self) -> Path:
        return self.rig.root / "let-go"

    def clients(self) -> Clients:
        return Clients(FRONT, self.rig.node.netns)

    def open(self) -> bool:
        with built(self.real) as router:
            return router.look(self.replica).open

    def notes(self, run: str) -> list[dict[str, Any]]:
        journal = Journal(self.rig.home / "journal.db")
        try:
            return [e.data for e in journal.events(run) if e.data.get("topic") == TOPIC]
        finally:
            journal.close()

    def hang(self) -> threading.Thread:
        """Let one request hang at the workload, as one that came through the router."""
        asked = threading.Thread(target=self._hang, daemon=True)
        asked.start()
        until(lambda: self.rig.ask("/inflight")["in_flight"] == 1, "a request hangs")
        return asked

    def _hang(self) -> None:
        # The other replica does not hang: its file is there. Round robin comes to ours soon.
        for _ in range(4):
            in_network(self.rig.node, lambda: fetch(f"http://127.0.0.1:{FRONT}/slow"))


def answers(rig: SiteRig) -> bool:
    try:
        in_network(rig.node, lambda: fetch(f"http://127.0.0.1:{THERE}/"))
    except OSError:
        return False
    return True


def behind(rig: SiteRig, kind: str) -> Iterator[Behind]:
    require_routers()
    root = rig.root / "router"
    root.mkdir()
    there = rig.root / "there"
    there.touch()
    other = rig.node.popen_net(replica_command(THERE, there))
    with ended(other):
        until(lambda: answers(rig), "the other replica answers")
        real = KINDS[kind](root, FRONT, [HERE, THERE], rig.node.popen_net)
        with ended(real.process):
            rig.site["routers"] = {"lb": real.spec}
            rig.workload["drain"]["router"] = {"name": "lb", "replica": real.replicas[0]}
            rig.workload["drain"]["interval"] = 0.05
            yield Behind(rig, real)


@pytest.fixture(params=KINDS)
def site(rig: SiteRig, request: pytest.FixtureRequest) -> Iterator[Behind]:
    yield from behind(rig, request.param)


@pytest.fixture
def haproxy_site(rig: SiteRig) -> Iterator[Behind]:
    yield from behind(rig, "haproxy")


def test_no_request_fails_while_one_of_two_replicas_is_saved_and_restored(site: Behind) -> None:
    with site.clients() as clients:
        clients.wait_for(HERE)
        clients.wait_for(THERE)
        code, result = site.rig.run(quiet(site.rig, ["true"]))
        assert (code, result["state"]) == (0, "done"), result
        assert result["workloads"][0]["outcome"] == "restored"
        clients.wait_for(HERE)
        clients.wait_for(THERE)
    assert clients.failures == []
    [note] = site.notes(result["run"])
    assert note["before"]["open"] is True
    assert site.open()


def test_deadline_with_a_hanging_request_lets_requests_in_again(haproxy_site: Behind) -> None:
    site = haproxy_site
    hanging = site.hang()
    site.rig.workload["drain"]["deadline"] = 0.4
    site.rig.site["policy"]["retries"]["drain"] = {"count": 0}
    code, result = site.rig.run(quiet(site.rig, ["true"]))
    assert (code, result["state"]) == (1, "failed"), result
    assert "1 requests still in flight after 0.4 s" in result["cause"]
    assert site.open()
    site.let_go.touch()
    hanging.join(20)
    assert not hanging.is_alive()
    with site.clients() as clients:
        clients.wait_for(HERE)
    assert clients.failures == []
