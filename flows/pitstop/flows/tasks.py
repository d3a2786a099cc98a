"""One task per verb, with Prefect's own retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext

from pitstop.flows.contexts import context
from pitstop.model.errors import PitstopError
from pitstop.model.words import Verb
from pitstop.steps.execute import execute, may_retry

RetryCondition = Callable[[Task[..., Any], TaskRun, State[Any]], bool]


def cache_key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Return the step's identity: this very run, verb, subject, and how often it was recovered.

    Prefect's default keys hold arguments and source text only, so two verbs on the same
    subject share one, and the second is reported as `Cached` and never runs. A run is named
    by the hash its journal begins with: run ids may repeat in another home directory. After
    a recovery a validation counts as not yet made, so that is part of the key as well.

    The journal stays the truth. A result that is not cached any more is taken from there.
    """
    events = context(parameters["home"], parameters["run_id"]).events()
    recoveries = sum(1 for e in events if e.kind == "run.resumed" and e.data.get("recover"))
    verb, subject = parameters["verb"], parameters["subject"]
    return f"pitstop/{events[0].hash}/{verb}/{subject}/{recoveries}"


def worth_a_retry(home: str, run_id: str, verb: Verb, subject: str) -> RetryCondition:
    """Return what says whether a failed attempt is followed by another.

    The error's class and the journal say it, which counts attempts of other processes as
    well. A gate's refusal is never worth one.
    """

    def ask(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
        error: object = state.result(raise_on_failure=False)
        return (
            isinstance(error, PitstopError)
            and error.retryable
            and may_retry(context(home, run_id), verb, subject)
        )

    return ask


def step(home: str, run_id: str, verb: str, subject: str) -> dict[str, Any]:
    """Execute one step of a run."""
    return execute(context(home, run_id), Verb(verb), subject)


def task_for(home: str, run_id: str, verb: Verb, subject: str) -> Task[..., dict[str, Any]]:
    """Return the task of a step, with the retries that the run's plan declares for its verb."""
    retry = context(home, run_id).retry(verb)
    name = verb.value.replace("_", "-")
    return Task(
        fn=step,
        name=name,
        task_run_name=name + "-{subject}",
        retries=retry.count,
        retry_delay_seconds=retry.delays() or None,
        retry_condition_fn=worth_a_retry(home, run_id, verb, subject),
        cache_key_fn=cache_key,
        persist_result=True,
        log_prints=False,
    )
