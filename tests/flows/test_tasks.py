"""Cache keys and retries, on recorded runs; no server is asked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import TaskRun
from prefect.states import Failed

from pitstop.flows.contexts import opened
from pitstop.flows.tasks import cache_key, task_for
from pitstop.model.errors import Busy, NodeUnreachable, PitstopError, Refused
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run


@pytest.fixture
def run(here: tuple[Path, Path], tmp_path: Path) -> Iterator[RunContext]:
    create_run(tmp_path, plan_from_files(*here), "run", "prefect")
    with opened(str(tmp_path), "run") as found:
        yield found


def key(ctx: RunContext, verb: Verb = Verb.DRAIN, subject: str = "web") -> str:
    parameters = {
        "home": str(ctx.home),
        "run_id": ctx.run,
        "verb": verb.value,
        "subject": subject,
    }
    context: Any = None  # it is not asked
    found: str = cache_key(context, parameters)
    return found


def test_no_two_steps_share_a_key(run: RunContext, here: tuple[Path, Path]) -> None:
    keys = [key(run, verb, subject) for verb, subject in product(Verb, ("web", "chat", "gpu1"))]
    assert len(set(keys)) == len(Verb) * 3
    assert keys[0] == key(run, next(iter(Verb)), "web")  # and a step has the same one always

    # A run of the same id in another home directory is another run.
    create_run(run.home / "other", plan_from_files(*here), "run", "prefect")
    with opened(str(run.home / "other"), "run") as other:
        assert {key(other, verb) for verb in Verb}.isdisjoint(keys)


def test_key_changes_with_a_recovery_and_with_nothing_else(run: RunContext) -> None:
    before = key(run)
    run.journal.append("run", "step.started", "test", "web", "drain", 1)
    run.journal.append("run", "run.resumed", "test", "here", data={"recover": False})
    assert key(run) == before
    run.journal.append("run", "run.resumed", "test", "here", data={"recover": True})
    assert key(run) != before


def test_retries_are_those_of_the_plan(run: RunContext) -> None:
    for verb in Verb:
        task = task_for(str(run.home), "run", verb, "web")
        retry = run.retry(verb)
        assert (task.name, task.retries) == (verb.value.replace("_", "-"), retry.count)
        assert task.retry_delay_seconds == (retry.delays() or 0)
        assert (task.persist_result, task.cache_key_fn) == (True, cache_key)
    assert task_for(str(run.home), "run", Verb.DRAIN, "web").retry_delay_seconds == [1, 2, 4]


def asked(ctx: RunContext, error: Exception, verb: Verb = Verb.DRAIN) -> bool:
    task = task_for(str(ctx.home), ctx.run, verb, "web")
    assert task.retry_condition_fn is not None
    task_run: Any = TaskRun.model_construct()
    return bool(task.retry_condition_fn(task, task_run, Failed(data=error)))


def test_the_errors_class_says_what_is_worth_a_retry(run: RunContext) -> None:
    kinds = PitstopError.registry.values()
    assert {kind.retryable for kind in kinds} == {True, False}
    for kind in kinds:
        assert asked(run, kind("web", "a cause")) is kind.retryable, kind


def test_no_retry_of_a_refusal_a_bug_or_what_the_journal_calls_final(run: RunContext) -> None:
    assert not asked(run, Refused("web", "the gate says no"))
    assert not asked(run, RuntimeError("not ours"))

    def fail(final: bool) -> None:
        error = NodeUnreachable("web", "no route").to_json()
        data = {"error": error, "final": final}
        run.journal.append("run", "step.failed", "test", "web", "drain", 1, data)

    fail(final=False)
    assert asked(run, NodeUnreachable("web", "no route"))
    fail(final=True)  # by another process, say, which used the tries up
    assert not asked(run, NodeUnreachable("web", "no route"))
    assert asked(run, NodeUnreachable("web", "no route"), Verb.STOP)


def test_a_process_has_a_run_open_once(run: RunContext) -> None:
    with pytest.raises(Busy, match="another flow run"), opened(str(run.home), "run"):
        pytest.fail("opened twice")
    assert key(run)  # and the first one's is still open
