"""LiteLLM's proxy: a deployment is blocked and unblocked.

Source: BerriAI/litellm#27927 (`blocked` of a model), #30125 (`POST /model/block` and
`/model/unblock` with `model_id`; both need the proxy's database), and `GET /model/info`.
Wildcard deployments ignore it: BerriAI/litellm#41580.
"""

from __future__ import annotations

from typing import Any

from pitstop.fleet.routers.api import Api
from pitstop.fleet.routers.fields import entry, objects
from pitstop.fleet.routers.router import Before, CannotCount, NotUnderstood, ReplicaState, Router
from pitstop.model.errors import BadInput
from pitstop.model.router import Litellm


class LitellmRouter(Router):
    """A proxy, all of whose processes read one database."""

    counts = False

    def __init__(self, name: str, spec: Litellm) -> None:
        super().__init__(name)
        self._url = spec.url.rstrip("/")
        self._api = Api(spec.token_file, spec.timeout)
        self.settle_seconds = spec.spreads

    def look(self, replica: str) -> ReplicaState:
        """See `Router.look`."""
        model = self._model(replica)
        asked = f"{self._url}/model/info"
        name = entry(model, "model_name", str, asked)
        if "*" in name:
            raise BadInput(
                replica,
                f"{name} is a wildcard: LiteLLM gives it requests also while it is blocked",
                "BerriAI/litellm#41580",
            )
        blocked = entry(model, "model_info", dict, asked).get("blocked")
        if blocked not in (True, False, None):
            raise NotUnderstood(asked, f"blocked is {blocked!r}")
        return ReplicaState(not blocked, f"{name}: {'blocked' if blocked else 'not blocked'}")

    def in_flight(self, replica: str) -> int:
        """Raise: LiteLLM has no such number for one deployment."""
        raise CannotCount(
            f"router {self.name}",
            f"LiteLLM does not say what {replica} has in flight",
            "declare drain.in_flight of the workload",
        )

    def _close(self, replica: str) -> None:
        self._api.call("POST", f"{self._url}/model/block", {"model_id": replica}).wanted(200)

    def _open(self, replica: str, _before: Before) -> None:
        self._api.call("POST", f"{self._url}/model/unblock", {"model_id": replica}).wanted(200)

    def _model(self, replica: str) -> dict[str, Any]:
        answer = self._api.get(f"{self._url}/model/info")
        models = objects(entry(answer.json(), "data", list, answer.asked), "data", answer.asked)
        found = [
            model
            for model in models
            if entry(model, "model_info", dict, answer.asked).get("id") == replica
        ]
        if len(found) != 1:
            raise BadInput(replica, f"{len(found)} deployments of that id at {self._url}")
        return found[0]
