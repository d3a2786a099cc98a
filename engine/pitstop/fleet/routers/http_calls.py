"""Any router with HTTP calls that a person has declared."""

from __future__ import annotations

import json
from urllib.parse import quote

from pitstop.fleet.routers.api import Api, number
from pitstop.fleet.routers.metrics import total
from pitstop.fleet.routers.router import Before, CannotCount, NotUnderstood, ReplicaState, Router
from pitstop.model.errors import PermanentError
from pitstop.model.router import Call, HttpRouter
from pitstop.node.answers import json_field

PLACE = "{replica}"


class DeclaredRouter(Router):
    """A router known by its declared calls alone."""

    def __init__(self, name: str, spec: HttpRouter) -> None:
        super().__init__(name)
        self._spec = spec
        self._api = Api(spec.token_file, spec.timeout)
        self.counts = spec.in_flight is not None

    def look(self, replica: str) -> ReplicaState:
        """See `Router.look`."""
        reading = self._spec.admission
        answer = self._api.get(_filled(reading.url, replica))
        value = json_field(answer.text, reading.json_field, answer.asked)
        said = value if isinstance(value, str) else json.dumps(value)
        if said not in (reading.open, reading.closed):
            raise NotUnderstood(
                answer.asked,
                f"{reading.json_field} is {said[:100]!r}, "
                f"neither {reading.open!r} nor {reading.closed!r}",
            )
        return ReplicaState(said == reading.open, f"{reading.json_field} is {said}")

    def in_flight(self, replica: str) -> int:
        """See `Router.in_flight`."""
        count = self._spec.in_flight
        if count is None:
            raise CannotCount(f"router {self.name}", "no in_flight is declared")
        answer = self._api.get(_filled(count.url, replica))
        if count.json_field is not None:
            value = json_field(answer.text, count.json_field, answer.asked)
            return number(value, count.json_field, answer.asked)
        labels = {name: value.replace(PLACE, replica) for name, value in count.labels.items()}
        found = total(answer.text, str(count.metric), labels, answer.asked)
        if found is None:
            raise NotUnderstood(answer.asked, f"{count.metric} has no series with {labels}")
        return number(found, str(count.metric), answer.asked)

    def _close(self, replica: str) -> None:
        self._call(self._spec.close, replica)

    def _open(self, replica: str, _before: Before) -> None:
        self._call(self._spec.open, replica)

    def _call(self, call: Call, replica: str) -> None:
        body = call.body
        if body is not None and PLACE in body:
            # Within a JSON text, so that no name can end it.
            body = body.replace(PLACE, json.dumps(replica)[1:-1])
        answer = self._api.call(call.method, _filled(call.url, replica), body)
        if answer.status != call.status:
            raise PermanentError(
                answer.asked, f"HTTP {answer.status}, not {call.status}: {answer.text[:300]!r}"
            )


def _filled(url: str, replica: str) -> str:
    return url.replace(PLACE, quote(replica, safe=""))
