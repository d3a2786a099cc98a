"""What becomes of the node's work when a person kills a task or ends it in the UI."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import conf

from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import PitstopError
from pitstop.model.words import Verb

CANCELLED_WITH_THE_TASK = frozenset({Verb.DRAIN, Verb.CHECKPOINT, Verb.WAIT})
"""Verbs whose work on the node ends when somebody kills the task. The others are in the
middle of a change: cutting them off would leave the node in an unknown state, so they go on,
and the next attempt attaches to them."""

GOES_ON = "the node's work goes on; a retry attaches to it"


def is_cancelled(verb: str) -> bool:
    """Tell whether a step's work on the node ends with its task."""
    return verb in CANCELLED_WITH_THE_TASK


def cancel(node: RemoteNode, identifier: str) -> str:
    """Cancel an operation on the node and say how that went; bounded in time.

    A node that does not answer is no failure of the kill: the operation stays known there,
    and whoever asks for the step again attaches to it.
    """
    try:
        found = node.call("op.cancel", kill_timeout(), id=identifier)
    except PitstopError as error:
        return f"{identifier} could not be cancelled: {error.cause}; {GOES_ON}"
    return f"{identifier} on the node: {found['state']}"


def kill_timeout() -> float:
    """Seconds that cancelling may take; see the provider's configuration."""
    return float(conf.getfloat("pitstop", "kill_timeout", fallback=20.0))
