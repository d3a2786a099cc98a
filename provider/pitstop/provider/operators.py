"""Operators: one per verb of a run, and one each for its plan and its end.

Which step is due is the engine's decision, read from the journal. A task whose step is not
due skips: its branch was not taken. So a graph with every possible branch takes exactly
those that the sequence takes, whatever a scheduler does with it: a task started twice, too
early, or again after it was cleared finds the recorded result or finds that it is not due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from pitstop.decide.moves import LIFTS
from pitstop.fleet.node import DeferringNode, Pending
from pitstop.model.errors import PitstopError
from pitstop.model.result import RunResult
from pitstop.model.words import Strategy, Verb
from pitstop.provider.hooks import PitstopHook, run_id_of
from pitstop.provider.killing import GOES_ON, cancel, is_cancelled
from pitstop.provider.links import ReportLink, report_uri
from pitstop.provider.triggers import NodeTrigger
from pitstop.steps.agenda import Due, next_step
from pitstop.steps.context import RunContext
from pitstop.steps.execute import execute, may_retry
from pitstop.steps.runs import create_run, has_run

FEW = 3
"""Retries of a task that only looks and records."""

MANY = 20
"""Retries of a task that executes a step. How often a step is tried is the site's policy,
which the engine keeps in the journal; when that is used up the task fails without further
retries."""


class PitstopOperator(BaseOperator):
    """What all operators of a run share.

    :param pitstop_conn_id: connection of type `pitstop`.
    """

    template_fields: Sequence[str] = ("pitstop_conn_id",)
    operator_extra_links: Sequence[BaseOperatorLink] = (ReportLink(),)
    ui_color = "#e8f1f4"

    def __init__(self, *, pitstop_conn_id: str = PitstopHook.default_conn_name, **kwargs: Any):
        # All of them find what was done before, so a worker that dies costs a retry and no run.
        kwargs.setdefault("retries", FEW)
        kwargs.setdefault("retry_delay", timedelta(seconds=2))
        kwargs.setdefault("retry_exponential_backoff", True)
        kwargs.setdefault("max_retry_delay", timedelta(minutes=1))
        super().__init__(**kwargs)
        self.pitstop_conn_id = pitstop_conn_id
        self.report_uri = ""

    @contextmanager
    def opened(self, context: Context) -> Iterator[RunContext]:
        """Open this DAG run's pitstop run; skip where there is none."""
        hook = PitstopHook(self.pitstop_conn_id)
        run = run_id_of(context)
        if not has_run(hook.home, run):
            raise AirflowSkipException(f"there is no run {run}: it was not planned")
        opened = hook.context(run, self.log.info)
        self.report_uri = report_uri(hook.home, run)
        try:
            yield opened
        finally:
            opened.close()

    def wait_for(self, ctx: RunContext, pending: Pending, verb: Verb) -> None:
        """Give the worker back until what is pending is over."""
        deadline = datetime.now(UTC) + timedelta(seconds=pending.seconds)
        self.defer(
            trigger=NodeTrigger(
                home=str(ctx.home),
                run_id=ctx.run,
                wait=pending.wait,
                deadline=deadline.isoformat(),
                verb=verb.value,
            ),
            method_name="resume",
        )


class PlanOperator(PitstopOperator):
    """Makes the plan and begins the run. Changes nothing on the node.

    Doing it again for the same DAG run finds the run that exists.

    :param maintenance: path of the maintenance.yaml.
    :param spares: the workloads for whose move the graph has tasks.
    :param scheduler: whether the graph has tasks for a scheduler's jobs.
    """

    template_fields: Sequence[str] = ("pitstop_conn_id", "maintenance")

    def __init__(
        self,
        *,
        maintenance: str,
        spares: Sequence[str] = (),
        scheduler: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.maintenance = maintenance
        self.spares = tuple(spares)
        self.scheduler = scheduler

    def execute(self, context: Context) -> str:
        """Return the run's id."""
        hook = PitstopHook(self.pitstop_conn_id)
        run = run_id_of(context)
        if has_run(hook.home, run):
            self.report_uri = report_uri(hook.home, run)
            return run
        try:
            plan = hook.plan(Path(self.maintenance))
            if plan.scheduler is not None and not self.scheduler:
                raise AirflowFailException(
                    "site.yaml declares a scheduler, and this DAG has no tasks for its jobs: "
                    "maintenance_task_group(scheduler=True)"
                )
            moving = [w.name for w in plan.workloads if w.strategy is Strategy.MIGRATE]
            if left_out := sorted(set(moving) - set(self.spares)):
                raise AirflowFailException(
                    f"{left_out[0]} is to move to another node, and this DAG has no tasks for "
                    f"that: maintenance_task_group(spares=[{left_out[0]!r}])"
                )
            create_run(hook.home, plan, run, "airflow")
        except PitstopError as error:
            if error.retryable:
                raise
            raise AirflowFailException(str(error)) from error
        self.report_uri = report_uri(hook.home, run)
        for workload in plan.workloads:
            self.log.info("%s: %s: %s", workload.name, workload.strategy.value, workload.reason)
        return run


class StepOperator(PitstopOperator):
    """One step of a run: a verb on a subject.

    :param verb: the verb.
    :param subject: the node or workload.
    :param there: this task is for the node that a workload moves to; else it is for the run's.
    """

    template_fields: Sequence[str] = ("pitstop_conn_id", "subject")

    def __init__(self, *, verb: Verb | str, subject: str, there: bool = False, **kwargs: Any):
        kwargs.setdefault("retries", MANY)
        super().__init__(**kwargs)
        self.verb = Verb(verb).value
        self.subject = subject
        self.there = there

    def execute(self, context: Context) -> dict[str, Any]:
        """Execute the step if it is due, and return its result."""
        return self._step(context, out_of_time=False)

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Go on after waiting. Tolerates any event, also a repeated one: the node is asked."""
        return self._step(context, out_of_time=(event or {}).get("over") is False)

    def on_kill(self) -> None:
        """Cancel the work on the node where that is safe, and let the rest go on."""
        if not is_cancelled(self.verb) or not self._run:
            self.log.info("%s of %s: %s", self.verb, self.subject, GOES_ON)
            return
        ctx = PitstopHook(self.pitstop_conn_id).context(self._run, self.log.info)
        try:
            attempt = ctx.standing(Verb(self.verb), self.subject).attempt
            identifier = ctx.operation_id(Verb(self.verb), self.subject, attempt)
            self.log.info("killed: %s", cancel(ctx.node, identifier))
        finally:
            ctx.close()

    _run = ""

    def _step(self, context: Context, out_of_time: bool) -> dict[str, Any]:
        mine = Due(Verb(self.verb), self.subject)
        self._run = run_id_of(context)
        with self.opened(context) as ctx:
            if mine.verb in _WHERE_IT_IS and ctx.is_there(mine.subject) != self.there:
                raise AirflowSkipException("not taken: that is done on another node")
            recorded = ctx.result(mine.verb, mine.subject)
            if recorded is not None:
                return recorded
            due = next_step(ctx)
            if due != mine:
                raise AirflowSkipException(_why_not(due))
            if isinstance(ctx.node, DeferringNode):
                ctx.node.out_of_time = out_of_time
            try:
                return execute(ctx, mine.verb, mine.subject)
            except Pending as pending:
                self.wait_for(ctx, pending, mine.verb)
            except PitstopError as error:
                if error.retryable and may_retry(ctx, mine.verb, mine.subject):
                    raise
                raise AirflowFailException(str(error)) from error
        raise AssertionError("deferring does not return")


class JobsOperator(PitstopOperator):
    """The steps on a scheduler's jobs that are due, one after the other.

    Which jobs there are is known only when the run is planned, so they have no tasks of their
    own. Each step is a line of the log, and a part of the journal as any other.
    """

    def __init__(self, **kwargs: Any):
        kwargs.setdefault("retries", MANY)
        super().__init__(**kwargs)

    def execute(self, context: Context) -> list[str]:
        """Execute what is due, and return what was done."""
        return self._steps(context, out_of_time=False)

    def resume(self, context: Context, event: dict[str, Any] | None = None) -> list[str]:
        """Go on after waiting. Tolerates any event, also a repeated one: it is asked again."""
        return self._steps(context, out_of_time=(event or {}).get("over") is False)

    def _steps(self, context: Context, out_of_time: bool) -> list[str]:
        done: list[str] = []
        failed: list[str] = []
        with self.opened(context) as ctx:
            while (due := _due_job(ctx)) is not None:
                if isinstance(ctx.node, DeferringNode):
                    ctx.node.out_of_time = out_of_time
                out_of_time = False  # that is said of the first step alone
                try:
                    execute(ctx, due.verb, due.subject)
                    done.append(f"{due.verb.value} {due.subject}")
                except Pending as pending:
                    self.wait_for(ctx, pending, due.verb)
                except PitstopError as error:
                    if error.retryable and may_retry(ctx, due.verb, due.subject):
                        raise
                    failed.append(str(error))
        if failed:
            raise AirflowFailException("; ".join(failed))
        if not done:
            raise AirflowSkipException("no step on a job is due")
        return done


def _due_job(ctx: RunContext) -> Due | None:
    due = next_step(ctx)
    return due if isinstance(due, Due) and ctx.plan.job(due.subject) is not None else None


class FinishOperator(PitstopOperator):
    """Says how the run ended. It fails unless all is done, so that the DAG run does too."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the run's result."""
        run = run_id_of(context)
        if not has_run(PitstopHook(self.pitstop_conn_id).home, run):
            raise AirflowFailException(f"run {run} was never begun; see the task plan")
        with self.opened(context) as ctx:
            found = next_step(ctx)
            if isinstance(found, Due):
                job = ctx.plan.job(found.subject) is not None
                task = "the tasks named jobs_*" if job else "that task"
                raise AirflowFailException(
                    f"the run stands before {found.verb.value} of {found.subject}: "
                    f"clear {task}, or pitstop resume {ctx.run}"
                )
            if found.state != "done":
                raise AirflowFailException(f"{found.state}: {found.cause}")
            return found.model_dump(mode="json", by_alias=True)


_WHERE_IT_IS = (*LIFTS, Verb.RETURN_TO_SERVICE)
"""Verbs that a workload which moves has two tasks for: on one node or on the other."""


def _why_not(due: Due | RunResult) -> str:
    if isinstance(due, Due):
        return f"not taken: due is {due.verb.value} of {due.subject}"
    return f"not taken: the run has ended ({due.state})"


__all__ = [
    "FinishOperator",
    "JobsOperator",
    "PitstopOperator",
    "PlanOperator",
    "StepOperator",
]
