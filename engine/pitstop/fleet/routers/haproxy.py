"""HAProxy by its runtime API: drain, wait, maint, ready."""

from __future__ import annotations

from pitstop.fleet.routers.haproxy_answers import (
    Server,
    parse_in_flight,
    parse_replica,
    parse_state,
)
from pitstop.fleet.routers.machine import Machine
from pitstop.fleet.routers.router import Before, ReplicaState, Router
from pitstop.model.errors import PermanentError
from pitstop.model.router import Haproxy


class HaproxyRouter(Router):
    """One HAProxy process. After its reload another answers, with all servers as configured."""

    def __init__(self, name: str, spec: Haproxy) -> None:
        super().__init__(name)
        self._spec = spec
        self._machine = Machine(name, spec.ssh)

    def look(self, replica: str) -> ReplicaState:
        """See `Router.look`."""
        found = self._server(replica)
        return ReplicaState(found.open, str(found))

    def in_flight(self, replica: str) -> int:
        """Return the server's sessions and those that wait for it; see `Router.in_flight`."""
        backend, server = parse_replica(replica)
        return parse_in_flight(self._ask("show stat"), backend, server)

    def seal(self, replica: str) -> None:
        """Set it to maint: no sticky client comes back, and no health check fails meanwhile.

        A server whose check failed while it was frozen would need several good ones first.
        """
        if not self._server(replica).sealed:
            self._set(replica, "maint")

    def close(self) -> None:
        """See `Router.close`."""
        self._machine.close()

    def _close(self, replica: str) -> None:
        # What was sealed already stays so: a drain would open it for sticky clients.
        if not self._server(replica).sealed:
            self._set(replica, self._spec.close_with)

    def _open(self, replica: str, _before: Before) -> None:
        self._set(replica, "ready")

    def _server(self, replica: str) -> Server:
        backend, server = parse_replica(replica)
        return parse_state(self._ask(f"show servers state {backend}"), backend, server)

    def _set(self, replica: str, state: str) -> None:
        backend, server = parse_replica(replica)
        command = f"set server {backend}/{server} state {state}"
        said = self._ask(command).strip()
        if said:  # it says nothing when it is done
            raise PermanentError(
                f"router {self.name}",
                f"{command}: {said[:300]}",
                "the socket needs `level admin`" if "denied" in said else "",
            )

    def _ask(self, command: str) -> str:
        return self._machine.talk(self._spec.socket, command, self._spec.timeout)
