"""A deadline for a maintenance: when it passes, somebody is told what is true and how to go on.

Airflow looks at deadlines in the scheduler and runs the callback in a triggerer, whatever has
become of the DAG run's tasks. Nothing is stopped and nothing is undone: the engine alone knows
what is safe, and a person decides.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import (  # type: ignore[attr-defined]  # its stub leaves them out
    AsyncCallback,
    DeadlineAlert,
    DeadlineReference,
)

from pitstop.model.errors import BadInput, TemporaryError
from pitstop.provider.hooks import PitstopHook, run_id
from pitstop.provider.standing import standing_of

POST_TIMEOUT = 30.0

log = logging.getLogger(__name__)


def maintenance_deadline(
    window: timedelta, *, pitstop_conn_id: str = PitstopHook.default_conn_name
) -> DeadlineAlert:
    """Return a deadline for the DAG of a maintenance: done within `window` of being queued.

    When it is not, the log and the connection's `alarm_url`, if any, are told which run it
    is, which step is due, what holds the node, and the commands to go on with.

    :param window: from the moment the DAG run is queued.
    :param pitstop_conn_id: connection of type `pitstop`.
    """
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=window,
        callback=AsyncCallback(alarm, kwargs={"pitstop_conn_id": pitstop_conn_id}),
    )


async def alarm(*, pitstop_conn_id: str, context: Mapping[str, Any]) -> str:
    """Say how a maintenance stands; Airflow calls it when the deadline has passed.

    What is returned goes into a column of text: anything else would end the triggerer.

    :param context: `dag_run` as Airflow's REST interface shows it, and `deadline`.
    """
    hook = PitstopHook(pitstop_conn_id)
    await hook.aload()
    message = await asyncio.to_thread(_message, hook, context)
    # Who reads the log has the way on, whether or not anybody answers at the URL.
    log.error("%s", message["message"])
    if hook.alarm_url:
        await asyncio.to_thread(_post, hook.alarm_url, message)
    return str(message["message"])


def _message(hook: PitstopHook, context: Mapping[str, Any]) -> dict[str, Any]:
    dag_run = context["dag_run"]
    dag_id, dag_run_id = dag_run["dag_id"], dag_run["dag_run_id"]
    deadline = str(context["deadline"]["deadline_time"])
    found = standing_of(hook, run_id(dag_id, dag_run_id, dag_run.get("conf")))
    return {
        "schema": "pitstop/alarm/v1",
        "dag_id": dag_id,
        "dag_run_id": dag_run_id,
        "deadline": deadline,
        **found.data,
        "message": f"{dag_id} ({dag_run_id}) was not done by {deadline}\n{found.text}",
    }


def _post(url: str, message: Mapping[str, Any]) -> None:
    """Post a message; a failure is the callback's, and never shows the address."""
    if not url.startswith(("https://", "http://")):
        raise BadInput("alarm_url", "an http or https address is expected")
    request = urllib.request.Request(  # noqa: S310  # checked above
        url,
        data=json.dumps(message).encode(),
        headers={"content-type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=POST_TIMEOUT):  # noqa: S310  # likewise
            log.info("the alarm was posted")
    except OSError as error:
        raise TemporaryError("alarm_url", f"the alarm could not be posted: {error}") from None
