"""The router before a workload: closed first, watched to zero, opened last.

What was before is written into the journal before the router is touched. So a step that is
tried again, or a run that is resumed, does not take its own closing for somebody else's.
"""

from __future__ import annotations

from typing import Any

from pitstop.fleet.routers.factory import router_for
from pitstop.fleet.routers.router import Before, Count, Router, wait_idle
from pitstop.model.errors import PitstopError, Refused
from pitstop.model.plan import Plan
from pitstop.model.words import Strategy, Verb
from pitstop.model.workload import AtRouter
from pitstop.steps.context import RunContext
from pitstop.steps.specs import plain

TOPIC = "router before"
IDLE = "idle at router"


def look_at_routers(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return how each workload that is to be moved stands at its router. Changes nothing.

    Raises:
        PitstopError: one cannot be told; its router is named.
    """
    found = {}
    for workload in plan.workloads:
        at = workload.spec.drain.router
        if at is None or workload.strategy in (Strategy.LEAVE, Strategy.REFUSE):
            continue
        with _router(plan, at) as router:
            state = router.look(at.replica)
        found[workload.name] = {
            "router": at.name,
            "replica": at.replica,
            "open": state.open,
            "words": state.words,
        }
        if workload.target is not None and workload.target.router is not None:
            there = workload.target.router
            with _router(plan, there) as router:
                state = router.look(there.replica)
            found[workload.name]["there"] = {"replica": there.replica, "words": state.words}
    return found


def unreachable(plan: Plan) -> list[str]:
    """Say what keeps the routers of a plan from being used."""
    try:
        look_at_routers(plan)
    except PitstopError as error:
        return [str(error)]
    return []


def close_at_router(ctx: RunContext, subject: str, attempt: int) -> dict[str, Any]:
    """Keep new requests away from a workload and wait until it is seen idle; once an attempt.

    A front end may execute an attempt again only to learn how the node's part of it ended.

    Returns:
        `router` with what was before and what was seen; empty for a workload behind none.

    Raises:
        DeadlineExceeded: it was not idle in time. It stays closed until `open_at_router`.
        PitstopError: it was not closed, or is not known to be.
    """
    drain = ctx.workload(subject).spec.drain
    at = drain.router
    if at is None:
        return {}
    done = ctx.noted(subject, IDLE, attempt)
    if done is not None:
        return {"router": done["result"]}
    with _router(ctx.plan, at) as router:
        before = _recorded(ctx, subject) or _record(ctx, subject, at, router)
        seen = wait_idle(
            router,
            at.replica,
            before,
            drain.deadline,
            drain.interval,
            ctx.progress,
            None if router.counts else _own_count(ctx, subject),
        )
    result = {
        "name": at.name,
        "replica": at.replica,
        "before": before.to_json(),
        "closed_by": "pitstop" if before.open else "somebody else, before",
        **seen,
    }
    ctx.note(subject, IDLE, Verb.DRAIN, attempt, result=result)
    return {"router": result}


def still_closed(ctx: RunContext, subject: str) -> None:
    """Ask the router again, right before the first disruptive step.

    Raises:
        Refused: it gives the workload requests, or has some in flight there.
    """
    at = ctx.workload(subject).spec.drain.router
    if at is None:
        return
    with _router(ctx.plan, at) as router:
        state = router.look(at.replica)
        number = router.in_flight(at.replica) if router.counts else 0
    if state.open or not state.settled or number > 0:
        raise Refused(
            subject,
            f"no longer drained at router {at.name}: {state.words}; {number:g} requests in flight",
            "somebody lets requests in; nothing was touched",
        )


def open_at_router(ctx: RunContext, subject: str) -> dict[str, Any]:
    """Let requests in again, if this run has closed the workload at its router.

    Raises:
        PitstopError: it was not done, or is not known to be.
    """
    at = ctx.workload(subject).spec.drain.router
    before = _recorded(ctx, subject)
    if at is None or before is None:
        return {}
    if ctx.is_there(subject):
        return _admit_there(ctx, subject, before)
    with _router(ctx.plan, at) as router:
        opened = router.open_admission(at.replica, before)
    words = "opened" if opened else f"left closed, as it was before: {before.words}"
    return {"router": {"name": at.name, "replica": at.replica, "admission": words}}


def _admit_there(ctx: RunContext, subject: str, before: Before) -> dict[str, Any]:
    """Let requests in where the workload is now; the replica that it was stays closed."""
    target = ctx.workload(subject).target
    there = target.router if target is not None else None
    if there is None:
        return {}
    with _router(ctx.plan, there) as router:
        opened = router.admit(there.replica, before)
    words = "opened" if opened else f"left closed, as the other was before: {before.words}"
    return {"router": {"name": there.name, "replica": there.replica, "admission": words}}


def _router(plan: Plan, at: AtRouter) -> Router:
    return router_for(at.name, plan.routers[at.name])


def _recorded(ctx: RunContext, subject: str) -> Before | None:
    found = ctx.noted(subject, TOPIC)
    return None if found is None else Before.from_json(found["before"])


def _record(ctx: RunContext, subject: str, at: AtRouter, router: Router) -> Before:
    before = router.look(at.replica).before
    ctx.note(
        subject,
        TOPIC,
        Verb.DRAIN,
        router=at.name,
        replica=at.replica,
        before=before.to_json(),
    )
    return before


def _own_count(ctx: RunContext, subject: str) -> Count:
    gauge = ctx.workload(subject).spec.drain.in_flight
    assert gauge is not None  # noqa: S101  # the site's model requires it of such a router
    asked = plain(gauge)
    return lambda: float(ctx.node.call("gauge", in_flight=asked)["in_flight"])
