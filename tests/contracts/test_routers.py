"""Whole runs behind real routers: not one request fails, and what was closed opens again."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pitstop.demo.setup import node_data
from pitstop.fleet.routers.factory import router_for
from pitstop.journal.store import Journal
from pitstop.lab.lab import Lab
from pitstop.model.errors import TemporaryError
from pitstop.model.router import Haproxy
from pitstop.steps.by_hand import start_by_hand
from pitstop.steps.files import load_site
from pitstop.steps.routing import IDLE
from tests.rigs.engine import until
from tests.rigs.maintenance import quiet
from tests.rigs.routers import (
    KINDS,
    Clients,
    RealHaproxy,
    RealNginx,
    built,
    ended,
    fetch,
    replica_command,
    require_routers,
)
from tests.rigs.site import NODE, PORT, WORKLOAD, SiteRig, in_network, site_data

SECOND = "second"
SECOND_PORT, THERE = 8091, 8092
"""`web` is a replica behind HAProxy and `second` one behind nginx; the other replica of both
runs outside of the node, in its network."""

FRONTS = {WORKLOAD: 8100, SECOND: 8101}
PORTS = {WORKLOAD: PORT, SECOND: SECOND_PORT}


@dataclass
class Behind:
    """A site with a workload behind each router."""

    rig: SiteRig
    routers: dict[str, RealHaproxy | RealNginx]

    def open(self, workload: str) -> bool:
        real = self.routers[workload]
        with built(real) as router:
            return router.look(real.replicas[0]).open

    def clients(self, workload: str) -> Clients:
        return Clients(FRONTS[workload], self.rig.node.netns, threads=2)

    @property
    def let_go(self) -> Path:
        return self.rig.root / "let-go"

    def hang(self) -> threading.Thread:
        """Have a request that came through HAProxy hang at `web` until `let_go` is there."""
        self.let_go.unlink(missing_ok=True)

        def ask() -> None:
            # Only ours hangs, and round robin comes to it soon.
            for _ in range(2):
                in_network(
                    self.rig.node, lambda: fetch(f"http://127.0.0.1:{FRONTS[WORKLOAD]}/slow")
                )

        hanging = threading.Thread(target=ask, daemon=True)
        hanging.start()
        until(lambda: self.rig.ask("/inflight")["in_flight"] > 0, "a request hangs")
        return hanging

    def let_go_once_closed(self) -> None:
        until(lambda: not self.open(WORKLOAD), "closed at the router", 60)
        self.let_go.touch()

    def seen(self, run: str) -> dict[str, Any]:
        """What each workload's router said in its drain."""
        journal = Journal(self.rig.home / "journal.db")
        try:
            events = journal.events(run)
        finally:
            journal.close()
        return {e.subject: e.data["result"] for e in events if e.data.get("topic") == IDLE}


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    require_routers()
    node, root = lab.node(NODE), tmp_path_factory.mktemp("site")
    (root / "version").write_text("1.0\n")
    rig = SiteRig(lab, root, site_data(node, root))
    second = copy.deepcopy(rig.workload)
    command = second["launch"]["command"]
    command[command.index(str(PORT))] = str(SECOND_PORT)
    for place in (second["ready"], second["proof"]):
        place["http"]["url"] = place["http"]["url"].replace(str(PORT), str(SECOND_PORT))
    for place in (second["drain"]["begin"]["http"], second["drain"]["end"]["http"]):
        place["url"] = place["url"].replace(str(PORT), str(SECOND_PORT))
    second["drain"]["in_flight"]["url"] = f"http://127.0.0.1:{SECOND_PORT}/inflight"
    rig.site["workloads"][SECOND] = second
    (root / "at-once").touch()
    with ExitStack() as stack:
        stack.enter_context(ended(node.popen_net(replica_command(THERE, root / "at-once"))))
        start(rig)
        until(lambda: answers(rig, THERE), "the other replica answers")
        routers: dict[str, RealHaproxy | RealNginx] = {}
        for name, kind in ((WORKLOAD, RealHaproxy), (SECOND, RealNginx)):
            own = root / name
            own.mkdir()
            real = kind(own, FRONTS[name], [PORTS[name], THERE], node.popen_net)
            stack.enter_context(ended(real.process))
            routers[name] = real
            rig.site.setdefault("routers", {})[f"lb-{name}"] = real.spec
            drain = rig.site["workloads"][name]["drain"]
            drain["router"] = {"name": f"lb-{name}", "replica": real.replicas[0]}
            drain["interval"] = 0.05
        yield Behind(rig, routers)


def start(rig: SiteRig) -> None:
    declared = load_site(rig.write())
    node = rig.remote()
    try:
        for name, spec in declared.workloads.items():
            start_by_hand(declared, node, spec, name, lambda _t: None)
    finally:
        node.close()


def answers(rig: SiteRig, port: int) -> bool:
    try:
        in_network(rig.node, lambda: fetch(f"http://127.0.0.1:{port}/"))
    except OSError:
        return False
    return True


def test_deadline_with_a_hanging_request_lets_requests_in_again(site: Behind) -> None:
    hanging = site.hang()
    data = copy.deepcopy(site.rig.site)
    try:
        site.rig.workload["drain"]["deadline"] = 0.4
        site.rig.site["policy"]["retries"]["drain"] = {"count": 0}
        code, result = site.rig.run(quiet(site.rig, ["true"]))
    finally:
        site.rig.site = data
    assert (code, result["state"]) == (1, "failed"), result
    assert "1 requests still in flight after 0.4 s" in result["cause"]
    assert (site.open(WORKLOAD), site.open(SECOND)) == (True, True)
    site.let_go.touch()
    hanging.join(20)
    assert not hanging.is_alive()


def test_no_request_fails_while_one_of_two_replicas_is_saved_and_restored(site: Behind) -> None:
    with site.clients(WORKLOAD) as haproxy, site.clients(SECOND) as nginx:
        for name, clients in ((WORKLOAD, haproxy), (SECOND, nginx)):
            clients.wait_for(PORTS[name])
            clients.wait_for(THERE)
        there = haproxy.since(THERE), nginx.since(THERE)
        hanging = site.hang()
        letting_go = threading.Thread(target=site.let_go_once_closed)
        letting_go.start()
        code, result = site.rig.run(quiet(site.rig, ["true"]))
        assert (code, result["state"]) == (0, "done"), result
        assert [w["outcome"] for w in result["workloads"]] == ["restored", "restored"]
        # The other replica had the work meanwhile, and the restored ones have it again.
        assert haproxy.since(THERE) > there[0] + 10
        assert nginx.since(THERE) > there[1] + 10
        for name, clients in ((WORKLOAD, haproxy), (SECOND, nginx)):
            clients.wait_for(PORTS[name])
        letting_go.join(60)
        hanging.join(60)
        assert not hanging.is_alive()
    assert (haproxy.failures, nginx.failures) == ([], [])
    seen = site.seen(result["run"])
    assert [seen[name]["before"]["open"] for name in PORTS] == [True, True]
    assert [seen[name]["in_flight_at_end"] for name in PORTS] == [0, 0]
    assert seen[WORKLOAD]["in_flight_at_start"] >= 1
    assert (site.open(WORKLOAD), site.open(SECOND)) == (True, True)


@pytest.mark.parametrize("kind", KINDS)
def test_socket_file_and_processes_of_another_machine(lab: Lab, tmp_path: Path, kind: str) -> None:
    """What stands on a router's machine, by SSH: there is nothing to install."""
    node = lab.node(NODE)
    real = KINDS[kind](tmp_path, 8110, [8111, 8112], node.popen)
    real.spec["ssh"] = node_data(node)["ssh"]
    with ended(real.process), built(real) as router:
        before = router.close_admission(real.replicas[0])
        assert (before.open, router.look(real.replicas[0]).open) == (True, False)
        assert router.open_admission(real.replicas[0], before) is True
    if kind == "haproxy":
        broken = {**real.spec, "socket": "/no/such.sock"}
        not_there = pytest.raises(TemporaryError, match=r"router lb: talk /no/such\.sock")
        with router_for("lb", Haproxy.model_validate(broken)) as gone, not_there:
            gone.look("be/s")
