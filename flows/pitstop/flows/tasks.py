"""One task per verb, with Prefect's own retries."""

from __future__ import annotations

from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext

from pitstop.flows.contexts import context
from pitstop.model.errors import PitstopError
from pitstop.model.words import Verb
from pitstop.steps.execute import execute


def cache_key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Return run, step, subject and recovery: Prefect's default would mix up steps.

    `cache_policy=INPUTS` gives two verbs with the same arguments one key, so the second is
    reported as `Cached` and never runs. The verb is part of the key here. The journal stays
    the truth: a step asks it first and returns its recorded result.
    """
    return "pitstop/{run_id}/{verb}/{subject}/{recovery}".format(**parameters)


def worth_a_retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Say whether the error's class allows another attempt. A gate's refusal never does."""
    error: object = state.result(raise_on_failure=False)
    return isinstance(error, PitstopError) and error.retryable


def step(run_id: str, verb: str, subject: str, recovery: int, home: str) -> dict[str, Any]:
    """Execute one step of a run."""
    del recovery  # part of the cache key alone
    return execute(context(home, run_id), Verb(verb), subject)


def task_for(home: str, run_id: str, verb: Verb) -> Task[..., dict[str, Any]]:
    """Return the task of a verb, with the retries that this run's plan declares for it."""
    retry = context(home, run_id).retry(verb)
    name = verb.value.replace("_", "-")
    return Task(
        fn=step,
        name=name,
        task_run_name=name + "-{subject}",
        retries=retry.count,
        retry_delay_seconds=retry.delays() or None,
        retry_condition_fn=worth_a_retry,
        cache_key_fn=cache_key,
        persist_result=True,
        log_prints=False,
    )
