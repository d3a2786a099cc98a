"""The router of vLLM's production stack: a backend is taken out of its configuration file.

Not by `POST /sleep`: that puts the engine itself to sleep, which ends its requests in flight
(vLLM's default mode is `abort`, and the router passes no other on) and would be saved asleep.

Source: vllm-project/production-stack, src/vllm_router: `dynamic_config.py` (the file is read
again every few seconds), `routers/main_router.py` (`GET /health` shows the configuration in
use), `routers/metrics_router.py` (`vllm:num_requests_running` by `server`, counted by the
router from the request it takes to the last byte).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from pitstop.fleet.routers.api import Api, number
from pitstop.fleet.routers.fields import entry
from pitstop.fleet.routers.machine import Machine
from pitstop.fleet.routers.metrics import total
from pitstop.fleet.routers.router import Before, NotUnderstood, ReplicaState, Router
from pitstop.model.errors import BadInput, DeadlineExceeded, PermanentError, Refused
from pitstop.model.router import VllmStack

PAUSE = 0.1
"""Seconds between two looks at the configuration in use: the router reads the file by a timer."""

_BACKENDS = "static_backends"
_PARALLEL = (_BACKENDS, "static_models", "static_model_labels", "static_model_types")
"""Lists, comma-separated, of which the n-th entries belong together; not every version has all."""


class VllmStackRouter(Router):
    """One router with `--service-discovery static` and `--dynamic-config-json`."""

    def __init__(self, name: str, spec: VllmStack) -> None:
        super().__init__(name)
        self._spec = spec
        self._url = spec.url.rstrip("/")
        self._api = Api(spec.token_file, spec.timeout)
        self._machine = Machine(name, spec.ssh)

    def look(self, replica: str) -> ReplicaState:
        """See `Router.look`: what the router works by, not what the file says."""
        answer = self._api.get(f"{self._url}/health")
        used = entry(answer.json(), "dynamic_config", dict, answer.asked)
        found = where(used, replica, answer.asked)
        if found is None:
            return ReplicaState(False, "not among its backends")
        return ReplicaState(True, "among its backends", detail={"entry": taken(used, found)})

    def in_flight(self, replica: str) -> int:
        """Return what the router has given it and not got back; see `Router.in_flight`."""
        answer = self._api.get(f"{self._url}/metrics")
        metric = "vllm:num_requests_running"
        found = total(answer.text, metric, {"server": replica}, answer.asked)
        # The router has a series for each server it ever gave a request to.
        return 0 if found is None else number(found, metric, answer.asked)

    def detail_for(self, replica: str, detail: Mapping[str, Any]) -> dict[str, Any]:
        """See `Router.detail_for`: the same entry, with another address."""
        return {"entry": {**detail["entry"], _BACKENDS: replica}}

    def close(self) -> None:
        """See `Router.close`."""
        self._machine.close()

    def _close(self, replica: str) -> None:
        config, text = self._config()
        found = where(config, replica, self._spec.config)
        if found is not None:
            self._write(text, without(config, found, replica))
        self._until_used(replica, False)

    def _open(self, replica: str, before: Before) -> None:
        config, text = self._config()
        if where(config, replica, self._spec.config) is None:
            self._write(text, with_entry(config, before.detail["entry"]))
        self._until_used(replica, True)

    def _config(self) -> tuple[dict[str, Any], str]:
        text = self._machine.read(self._spec.config, self._spec.timeout)
        try:
            config = json.loads(text)
        except ValueError as error:
            raise BadInput(self._spec.config, f"it is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise BadInput(self._spec.config, "it is no JSON object")
        return config, text

    def _write(self, old: str, config: Mapping[str, Any]) -> None:
        new = json.dumps(config, indent=4) + "\n"
        self._machine.replace(self._spec.config, old, new, self._spec.timeout)

    def _until_used(self, replica: str, there: bool) -> None:
        end = time.monotonic() + self._spec.deadline
        while self.look(replica).open is not there:
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"router {self.name}",
                    f"it does not use {self._spec.config} after {self._spec.deadline:g} s",
                    "its log says why it did not take it",
                )
            time.sleep(PAUSE)


def where(config: Mapping[str, Any], replica: str, subject: str) -> int | None:
    """Return the place of a backend in a configuration.

    Raises:
        NotUnderstood: the backends are not static, or the lists do not fit together.
    """
    backends = _entries(config, _BACKENDS)
    if backends is None:
        raise NotUnderstood(subject, f"it has no {_BACKENDS}")
    for name in _PARALLEL:
        entries = _entries(config, name)
        if entries is not None and len(entries) != len(backends):
            raise NotUnderstood(subject, f"{len(backends)} {_BACKENDS}, and {len(entries)} {name}")
    urls = [url.rstrip("/") for url in backends]
    if urls.count(replica.rstrip("/")) > 1:
        raise NotUnderstood(subject, f"{replica} is there several times")
    return urls.index(replica.rstrip("/")) if replica.rstrip("/") in urls else None


def taken(config: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return what belongs to one backend, with its place."""
    found = {name: _entries(config, name) for name in _PARALLEL}
    return {"place": place, **{n: entries[place] for n, entries in found.items() if entries}}


def without(config: Mapping[str, Any], place: int, replica: str) -> dict[str, Any]:
    """Return a configuration without one backend.

    Raises:
        Refused: it is the only one, and the router does not start without any.
    """
    result = dict(config)
    for name in _PARALLEL:
        entries = _entries(config, name)
        if entries is None:
            continue
        if len(entries) == 1:
            raise Refused(replica, "it is the router's only backend")
        result[name] = ",".join([*entries[:place], *entries[place + 1 :]])
    return result


def with_entry(config: Mapping[str, Any], back: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with a backend again, at its old place if that is there.

    Raises:
        PermanentError: the lists are others than they were.
    """
    result = dict(config)
    for name in _PARALLEL:
        entries = _entries(config, name)
        if (entries is None) != (name not in back):
            raise PermanentError(name, "was added or removed meanwhile: put it back by hand")
        if entries is not None:
            place = int(back["place"])
            result[name] = ",".join([*entries[:place], str(back[name]), *entries[place:]])
    return result


def _entries(config: Mapping[str, Any], name: str) -> list[str] | None:
    value = config.get(name)
    if not isinstance(value, str) or not value:
        return None
    return [part.strip() for part in value.split(",")]
