"""Execute one step: once, whoever asks and however often.

finished already      -> its recorded result
failed for good       -> its recorded error
executed by another   -> Busy
else                  -> the verb runs; on the node it attaches to work of the same id
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from pitstop.decide.attempts import Standing, is_final
from pitstop.model.errors import PitstopError, Unexpected
from pitstop.model.words import Verb
from pitstop.node.locks import held
from pitstop.steps.context import RunContext
from pitstop.steps.verbs import VERBS


def execute(ctx: RunContext, verb: Verb, subject: str) -> dict[str, Any]:
    """Execute a step and return its result.

    Raises:
        PitstopError: it failed; `retryable` on the error and the policy's count say whether
            asking again makes sense, and the journal has the failure.
    """
    # Held by the process that executes: a second one on this machine must not join in.
    with held(ctx.directory / f"{subject}.{verb.value}.lock", subject, f"step {verb.value}"):
        found = ctx.standing(verb, subject)
        if (result := recorded(found)) is not None:
            return result
        ctx.progress(f"{subject}: {verb.value.replace('_', ' ')}")
        attempt = found.attempt
        begun = _start(ctx, verb, subject, attempt)
        try:
            result = VERBS[verb](ctx, subject, attempt)
        except PitstopError as error:
            _failed(ctx, verb, subject, attempt, error, found.recent_failures)
            raise
        except Exception as error:
            wrapped = Unexpected(subject, f"{type(error).__name__}: {error}")
            _failed(ctx, verb, subject, attempt, wrapped, found.recent_failures)
            raise wrapped from error
        ctx.journal.append(
            ctx.run,
            "step.finished",
            ctx.actor,
            subject,
            verb.value,
            attempt,
            {"seconds": round((datetime.now(UTC) - begun).total_seconds(), 3), "result": result},
        )
        return result


def recorded(found: Standing) -> dict[str, Any] | None:
    """Return the result a step has come to, or None while it has come to nothing.

    Raises:
        PitstopError: it failed for good; as it was then.
    """
    if found.result is None and found.failure is not None:
        raise PitstopError.from_json(found.failure)
    return found.result


def may_retry(ctx: RunContext, verb: Verb, subject: str) -> bool:
    """Tell whether a step that failed may be executed again."""
    found = ctx.standing(verb, subject)
    return found.result is None and found.failure is None


def perform(ctx: RunContext, verb: Verb, subject: str) -> dict[str, Any]:
    """Execute a step with its declared retries, waiting in between.

    Front ends with retries of their own call `execute` instead.

    Raises:
        PitstopError: it failed for good.
    """
    delays = ctx.retry(verb).delays()
    while True:
        try:
            return execute(ctx, verb, subject)
        except PitstopError as error:
            if not delays or not error.retryable or not may_retry(ctx, verb, subject):
                raise
            delay = delays.pop(0)
            ctx.progress(f"{subject}: {verb.value} failed ({error.cause}); again in {delay:g} s")
            time.sleep(delay)


def _start(ctx: RunContext, verb: Verb, subject: str, attempt: int) -> datetime:
    """Record the start of an attempt, once, and return when it was."""
    for event in ctx.events():
        if event.kind == "step.started" and (event.verb, event.subject, event.attempt) == (
            verb.value,
            subject,
            attempt,
        ):
            return datetime.fromisoformat(event.time)
    event = ctx.journal.append(ctx.run, "step.started", ctx.actor, subject, verb.value, attempt)
    return datetime.fromisoformat(event.time)


def _failed(
    ctx: RunContext,
    verb: Verb,
    subject: str,
    attempt: int,
    error: PitstopError,
    recent_failures: int,
) -> None:
    final = is_final(error.retryable, recent_failures + 1, ctx.retry(verb).count)
    ctx.journal.append(
        ctx.run,
        "step.failed",
        ctx.actor,
        subject,
        verb.value,
        attempt,
        {"error": error.to_json(), "final": final}
        | ({"result": error.evidence} if error.evidence else {}),
    )
