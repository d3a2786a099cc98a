"""Questions asked of a workload on its own node: is it ready, what does it answer, how busy."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pitstop.model.errors import DeadlineExceeded, NotReady, PermanentError, TemporaryError
from pitstop.node.capture import capture
from pitstop.node.clock import running_seconds

BODY_LIMIT = 16 << 20
COMMAND_TIMEOUT = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes


def ask(probe: Mapping[str, Any]) -> Answer:
    """Make the HTTP request that a probe describes (`model.workload.HttpProbe`).

    Proxy settings of the environment are not followed: the workload is on this node.

    Raises:
        TemporaryError: no answer.
    """
    body = probe.get("body")
    request = urllib.request.Request(  # noqa: S310  # the model allows http and https only
        str(probe["url"]),
        method=str(probe.get("method", "GET")),
        data=body.encode() if isinstance(body, str) else None,
        headers=dict(probe.get("headers") or {}),
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=float(probe.get("timeout", 10))) as response:
            return Answer(response.status, response.read(BODY_LIMIT))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(BODY_LIMIT))
    except (OSError, ValueError) as error:
        raise TemporaryError(str(probe["url"]), f"no answer: {error}") from error


def wait_ready(ready: Mapping[str, Any], alive: Callable[[], bool]) -> float:
    """Ask until the answer is good; return the seconds since boot of that moment.

    Raises:
        NotReady: the deadline passed or the workload ended; the cause has the last answer.
    """
    deadline = running_seconds() + float(ready["deadline"])
    last = "it was not asked yet"
    while True:
        last = _not_ready(ready)
        if not last:
            return running_seconds()
        if not alive():
            raise NotReady("readiness", f"the workload ended; before that: {last}")
        if running_seconds() > deadline:
            raise NotReady("readiness", f"not ready after {ready['deadline']:g} s; last: {last}")
        # A server that is not up yet gives no event to wait for.
        time.sleep(float(ready.get("interval", 0.05)))


def _not_ready(ready: Mapping[str, Any]) -> str:
    """Return why it is not ready, or an empty text."""
    if ready.get("http") is not None:
        wanted = int(ready["http"].get("status", 200))
        try:
            status = ask(ready["http"]).status
        except TemporaryError as error:
            return error.cause
        return "" if status == wanted else f"HTTP {status} instead of {wanted}"
    try:
        found = capture([str(part) for part in ready["command"]], COMMAND_TIMEOUT)
    except OSError as error:
        return str(error)
    if found.status is None:
        return f"{ready['command'][0]}: no answer in {COMMAND_TIMEOUT} s"
    return "" if found.status == 0 else f"exit status {found.status} {found.err[-200:]}".strip()


def proof_answer(proof: Mapping[str, Any]) -> str:
    """Return the answer to a proof request as text that can be compared.

    Raises:
        TemporaryError: no answer.
        PermanentError: not the status, or not the field, that is declared.
    """
    probe = proof["http"]
    answer = ask(probe)
    url = str(probe["url"])
    if answer.status != int(probe.get("status", 200)):
        raise PermanentError(url, f"the proof request was answered with HTTP {answer.status}")
    text = answer.body.decode(errors="backslashreplace")
    if not proof.get("field"):
        return text
    return json.dumps(json_field(text, str(proof["field"]), url), sort_keys=True)


def json_field(text: str, path: str, subject: str) -> Any:
    """Follow a dotted path through objects and lists.

    Raises:
        PermanentError: not JSON, or no such field.
    """
    try:
        value = json.loads(text)
        for part in path.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise PermanentError(subject, f"no field {path!r} in the answer: {error}") from error
    return value


def in_flight(gauge: Mapping[str, Any]) -> float:
    """Return the observed number of requests in flight.

    Raises:
        TemporaryError: no answer.
        PermanentError: the number is not there. Unknown is never taken for zero.
    """
    url = str(gauge["url"])
    answer = ask({"url": url})
    if answer.status != 200:
        raise TemporaryError(url, f"HTTP {answer.status}")
    text = answer.body.decode(errors="replace")
    if gauge.get("json_field"):
        value = json_field(text, str(gauge["json_field"]), url)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PermanentError(url, f"{gauge['json_field']} is {value!r}, not a number")
        return _count(value, str(gauge["json_field"]), url)
    return _metric(text, str(gauge["metric"]), url)


def _metric(text: str, name: str, url: str) -> float:
    values = []
    ours = re.compile(re.escape(name) + r"(?=[\s{])")
    for line in text.split("\n"):
        start = ours.match(line)
        if start is None:
            continue
        series = _SERIES.match(line, start.end())
        try:
            value = float(series["value"] if series else "")
        except ValueError:
            raise PermanentError(url, f"metric {name} has no number: {line[:200]!r}") from None
        values.append(_count(value, f"metric {name}", url))
    if not values:
        raise PermanentError(url, f"there is no metric {name}")
    return sum(values)


# What follows a metric's name: labels, whose values may hold any character, and the value.
# A timestamp or an OpenMetrics exemplar may come after it.
_SERIES = re.compile(r'\s*(?:\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\})?\s*(?P<value>\S+)')


def _count(value: float, what: str, url: str) -> float:
    """Return a number that can be a number of requests; NaN is not > 0, yet not idle."""
    if not 0 <= value <= sys.float_info.max:
        raise PermanentError(url, f"{what} is {value}")
    return float(value)


def wait_idle(gauge: Mapping[str, Any], deadline: float, interval: float) -> dict[str, float]:
    """Watch the gauge until it is zero.

    Raises:
        DeadlineExceeded: it was not zero in time; the cause has the last value.
    """
    begun = running_seconds()
    first = value = in_flight(gauge)
    while value > 0:
        if running_seconds() - begun > deadline:
            raise DeadlineExceeded(
                str(gauge["url"]), f"{value:g} requests still in flight after {deadline:g} s"
            )
        # A gauge is sampled; it sends no event.
        time.sleep(interval)
        value = in_flight(gauge)
    return {
        "in_flight_at_start": first,
        "in_flight_at_end": value,
        "waited_seconds": running_seconds() - begun,
    }
