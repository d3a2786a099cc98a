"""SGLang's model gateway: a worker is taken off its list and put on it again.

Source: read and tried with sglang-router 0.3.2 and smg 1.13.0. `GET /workers` lists workers
with `id`, `url` and, in newer ones, `status`. `DELETE /workers/{id}` is answered with 202; the
worker is gone at once (0.3.2) or `draining` for `drain_settle_secs` first (smg), a timer that
does not look at its requests; these go on either way. `POST /workers` registers one, which is
there once it was found healthy. A worker tells its load at `/v1/loads` or, if it
is older, at `/get_load`, where `num_reqs` is all that it has; not tried with a real worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pitstop.fleet.routers.api import Api, number, read_token
from pitstop.fleet.routers.fields import entry, objects
from pitstop.fleet.routers.router import Before, NotUnderstood, ReplicaState, Router
from pitstop.model.errors import DeadlineExceeded
from pitstop.model.router import SglangGateway

PAUSE = 0.1
"""Seconds between two looks: the gateway works in the background and tells nobody."""

_KEPT = ("model_id", "worker_type", "priority", "cost", "labels")
"""What a worker was registered with and is registered with again."""


class SglangRouter(Router):
    """One gateway. It must not find its workers by service discovery: that would undo this."""

    def __init__(self, name: str, spec: SglangGateway) -> None:
        super().__init__(name)
        self._spec = spec
        self._url = spec.url.rstrip("/")
        self._api = Api(spec.token_file, spec.timeout)
        self._worker_api = Api(spec.worker_token_file, spec.timeout)

    def look(self, replica: str) -> ReplicaState:
        """See `Router.look`."""
        worker = self._worker(replica)
        if worker is None:
            return ReplicaState(False, "not registered")
        status = worker.get("status")
        healthy = entry(worker, "is_healthy", bool, self._url)
        words = str(status) if status is not None else "registered"
        words += "" if healthy else ", not healthy"
        if "labels" not in worker and isinstance(worker.get("metadata"), dict):
            worker = {**worker, "labels": worker["metadata"]}
        kept = {name: worker[name] for name in _KEPT if worker.get(name) not in (None, {})}
        return ReplicaState(status != "draining", words, detail=kept)

    def in_flight(self, replica: str) -> int:
        """Return what the worker itself has, running and waiting; see `Router.in_flight`."""
        url = replica.rstrip("/")
        answer = self._worker_api.call("GET", f"{url}/v1/loads?include=core")
        if answer.status == 404:
            answer = self._worker_api.get(f"{url}/get_load")
            ranks = objects(answer.json(), "the load", answer.asked)
            if not ranks:
                raise NotUnderstood(answer.asked, "it tells the load of no rank")
            return sum(number(rank.get("num_reqs"), "num_reqs", answer.asked) for rank in ranks)
        answer.wanted(200)
        ranks = objects(entry(answer.json(), "loads", list, answer.asked), "loads", answer.asked)
        if not ranks:
            raise NotUnderstood(answer.asked, "it tells the load of no rank")
        return sum(
            number(rank.get(name), name, answer.asked)
            for rank in ranks
            for name in ("num_running_reqs", "num_waiting_reqs")
        )

    def _close(self, replica: str) -> None:
        worker = self._worker(replica)
        if worker is None or worker.get("status") == "draining":
            return
        identifier = entry(worker, "id", str, self._url)
        self._api.call("DELETE", f"{self._url}/workers/{identifier}").wanted(200, 202, 404)
        self._until(lambda: not self.look(replica).open, f"{replica} is still registered")

    def _open(self, replica: str, before: Before) -> None:
        # While it is draining it cannot be registered again: it is there already.
        self._until(lambda: self._state(replica) != "draining", f"{replica} is still draining")
        if self._worker(replica) is None:
            body = {"url": replica, **before.detail}
            if self._spec.worker_token_file is not None:
                body["api_key"] = read_token(self._spec.worker_token_file)
            self._api.call("POST", f"{self._url}/workers", body).wanted(200, 201, 202, 409)
        self._until(lambda: self._ready(replica), f"{replica} is not registered as healthy")

    def _ready(self, replica: str) -> bool:
        worker = self._worker(replica)
        return (
            worker is not None
            and worker.get("status") in (None, "ready")
            and entry(worker, "is_healthy", bool, self._url)
        )

    def _state(self, replica: str) -> str | None:
        worker = self._worker(replica)
        return None if worker is None else worker.get("status")

    def _worker(self, replica: str) -> dict[str, Any] | None:
        answer = self._api.get(f"{self._url}/workers")
        workers = objects(
            entry(answer.json(), "workers", list, answer.asked), "workers", answer.asked
        )
        found = [
            worker
            for worker in workers
            if entry(worker, "url", str, answer.asked).rstrip("/") == replica.rstrip("/")
        ]
        if len(found) > 1:
            raise NotUnderstood(answer.asked, f"{len(found)} workers have the URL {replica}")
        return found[0] if found else None

    def _until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self._spec.deadline
        while not done():
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"router {self.name}", f"{what} after {self._spec.deadline:g} s"
                )
            time.sleep(PAUSE)
