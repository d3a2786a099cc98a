"""What the API server's refusals mean. Pure: from a status and a body to an error.

Status codes and bodies (`kind: Status`) as in "Kubernetes API Concepts" and "API-initiated
Eviction" of the Kubernetes documentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pitstop.model.errors import PermanentError, PitstopError, Refused, TemporaryError

WORDS_LIMIT = 500
"""Characters kept of what a server says."""


class NotUnderstood(PermanentError):
    """An answer of the API that cannot be read. Nothing may be concluded from it."""

    code = "kubernetes_answer"


class AccessRefused(PermanentError):
    """The API does not know us (401), or we may not do this (403)."""

    code = "kubernetes_access"


class NotTrusted(PermanentError):
    """The TLS connection to the API could not be made: one side does not trust the other."""

    code = "kubernetes_tls"


class NotThere(PermanentError):
    """What was asked for does not exist (404)."""

    code = "kubernetes_not_there"


class RequestRefused(PermanentError):
    """The API does not accept this request, however often it is made."""

    code = "kubernetes_refused"


class NoDryRun(RequestRefused):
    """An admission webhook of the cluster cannot try this request dry: the answer is unknown."""

    code = "kubernetes_no_dry_run"


class CordonGone(PermanentError):
    """The node was uncordoned, or taken over by another run, while it was being emptied."""

    code = "kubernetes_cordon_gone"


class Conflict(TemporaryError):
    """The object has changed since it was read, or is another one of that name (409)."""

    code = "kubernetes_conflict"


class ListExpired(TemporaryError):
    """A list that was read in pages is too old to be read on (410)."""

    code = "kubernetes_list_expired"


class ApiUnavailable(TemporaryError):
    """The API server cannot answer now (500 and above, or too many requests)."""

    code = "kubernetes_unavailable"
    retry_after: float | None = None
    """Seconds after which the server wants to be asked again; None when it does not say."""


class BudgetBlocks(TemporaryError):
    """A PodDisruptionBudget does not allow this eviction now (429)."""

    code = "kubernetes_budget"
    retry_after: float | None = None
    """As in `ApiUnavailable`."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request in the words of RBAC, for messages.

    Attributes:
        resource: with the subresource behind a slash: `pods/eviction`.
        about: the object or the selection that is meant.
    """

    verb: str
    resource: str
    about: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} ({self.about})"


def of_status(call: Call, status: int, body: str, retry_after: str | None = None) -> PitstopError:
    """Say what an answer means that is no success.

    Args:
        body: with every secret taken out of it.
        retry_after: the header of that name.
    """
    said = _status_object(body)
    words = _words(said, body)
    subject = str(call)
    if status == 401:
        return AccessRefused(
            subject, f"the API does not accept the credentials: {words}", "have they expired?"
        )
    if status == 403:
        return AccessRefused(
            subject,
            f"not allowed: {words}",
            f"RBAC: the verb `{call.verb}` on `{call.resource}`; docs/kubernetes.md has the roles",
        )
    if status == 429:
        kind: type[BudgetBlocks | ApiUnavailable] = (
            BudgetBlocks if _is_budget(said) else ApiUnavailable
        )
        return _with_pause(kind(subject, words), said, retry_after)
    if status in (502, 503, 504):
        return _with_pause(ApiUnavailable(subject, f"HTTP {status}: {words}"), said, retry_after)
    if status == 400 and "does not support dry run" in words:
        return NoDryRun(subject, words)
    kinds: dict[int, type[PitstopError]] = {404: NotThere, 409: Conflict, 410: ListExpired}
    return kinds.get(status, RequestRefused)(subject, f"HTTP {status}: {words}")


def _status_object(body: str) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _words(said: Mapping[str, Any], body: str) -> str:
    """Return the server's words: its message with the causes that it names, or the body."""
    message = said.get("message")
    if not isinstance(message, str) or not message:
        return " ".join(body.split())[:WORDS_LIMIT] or "no words"
    causes = [str(cause["message"]) for cause in _causes(said) if cause.get("message")]
    return " ".join(" ".join([message, *causes]).split())[:WORDS_LIMIT]


def _causes(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = said.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    if not isinstance(causes, list):
        return []
    return [cause for cause in causes if isinstance(cause, dict)]


def _is_budget(said: Mapping[str, Any]) -> bool:
    """Whether a 429 is a budget's: the server's own throttling names no such cause."""
    if any(cause.get("reason") == "DisruptionBudget" for cause in _causes(said)):
        return True
    return "disruption budget" in str(said.get("message", ""))


def _with_pause(
    error: BudgetBlocks | ApiUnavailable, said: Mapping[str, Any], header: str | None
) -> PitstopError:
    details = said.get("details")
    in_body = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    for value in (header, in_body):
        if value is not None and re.fullmatch(r"[0-9]{1,6}", str(value)):
            error.retry_after = float(value)
            break
    return error


def refused_pods(node: str, reasons: list[str]) -> Refused:
    """Return the refusal of an evacuation that would touch what it must not."""
    return Refused(node, "no pod was touched: " + "; ".join(reasons))
