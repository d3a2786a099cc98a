"""NGINX Plus by its API.

`down` rather than `drain`: a draining server still gets the requests that are bound to it.
Source: NGINX documentation, ngx_http_api_module: `/http/upstreams/{name}/servers/{id}` with
`down`, and `/http/upstreams/{name}/` with `peers[].active`.
"""

from __future__ import annotations

from typing import Any

from pitstop.fleet.routers.api import Api, number
from pitstop.fleet.routers.fields import entry, objects
from pitstop.fleet.routers.router import Before, NotUnderstood, ReplicaState, Router
from pitstop.model.errors import BadInput
from pitstop.model.router import NginxPlus


class NginxPlusRouter(Router):
    """One NGINX Plus with an upstream in shared memory (`zone`)."""

    def __init__(self, name: str, spec: NginxPlus) -> None:
        super().__init__(name)
        self._api = Api(spec.token_file, spec.timeout)
        self._upstream = f"{spec.url.rstrip('/')}/http/upstreams/{spec.upstream}"

    def look(self, replica: str) -> ReplicaState:
        """See `Router.look`."""
        server = self._server(replica)
        flags = {name: server.get(name, False) for name in ("down", "drain")}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise NotUnderstood(self._upstream, f"{name} of {replica} is {value!r}")
        closed = [name for name, value in flags.items() if value]
        return ReplicaState(not closed, " ".join(closed) or "up")

    def in_flight(self, replica: str) -> int:
        """Return its active connections; see `Router.in_flight`."""
        answer = self._api.get(self._upstream)
        peers = objects(entry(answer.json(), "peers", list, answer.asked), "peers", answer.asked)
        found = [peer for peer in peers if peer.get("server") == replica]
        if len(found) != 1:
            raise NotUnderstood(answer.asked, f"it has {len(found)} peers of address {replica}")
        return number(found[0].get("active"), "active", answer.asked)

    def _close(self, replica: str) -> None:
        self._patch(replica, down=True)

    def _open(self, replica: str, _before: Before) -> None:
        self._patch(replica, down=False)

    def _patch(self, replica: str, down: bool) -> None:
        identifier = entry(self._server(replica), "id", int, self._upstream)
        url = f"{self._upstream}/servers/{identifier}"
        self._api.call("PATCH", url, {"down": down}).wanted(200)

    def _server(self, replica: str) -> dict[str, Any]:
        answer = self._api.get(f"{self._upstream}/servers")
        servers = objects(answer.json(), "the answer", answer.asked)
        found = [server for server in servers if server.get("server") == replica]
        if len(found) != 1:
            raise BadInput(replica, f"{len(found)} servers of that address at {self._upstream}")
        return found[0]
