"""A whole maintenance as a task group, with every branch drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow.sdk import Label, TaskGroup, chain

from pitstop.model.words import Verb
from pitstop.provider.hooks import PitstopHook
from pitstop.provider.operators import (
    FinishOperator,
    JobsOperator,
    PitstopOperator,
    PlanOperator,
    StepOperator,
)

MakeStep = Callable[..., StepOperator]

ALWAYS = "all_done"
"""Every step's task runs when those before it have ended, however they ended: whether its
turn has come is asked of the engine, and a branch that is not taken skips."""


def maintenance_task_group(
    *,
    maintenance: str,
    node: str,
    workloads: Sequence[str],
    spares: Sequence[str] = (),
    scheduler: bool = False,
    group_id: str = "maintenance",
    pitstop_conn_id: str = PitstopHook.default_conn_name,
) -> TaskGroup:
    """Return a task group that takes one node through its maintenance.

    :param maintenance: path of the maintenance.yaml; a template.
    :param node: the node it names.
    :param workloads: the workloads that site.yaml places on that node, or that were moved there.
    :param spares: those of them that site.yaml gives spares: they have tasks for a move.
    :param scheduler: whether site.yaml declares one: then there are tasks for its jobs.
    :param group_id: the group's id.
    :param pitstop_conn_id: connection of type `pitstop`.
    """
    with TaskGroup(group_id=group_id) as group:

        def step(verb: Verb, subject: str, there: bool = False) -> StepOperator:
            name = f"{verb.value}_{subject}" if subject != node else verb.value
            return StepOperator(
                task_id=f"{name}_there" if there else name,
                verb=verb,
                subject=subject,
                there=there,
                pitstop_conn_id=pitstop_conn_id,
                trigger_rule=ALWAYS,
            )

        def of_node(verb: Verb) -> list[PitstopOperator]:
            return [step(verb, node)] if scheduler else []

        def jobs(name: str) -> list[PitstopOperator]:
            """Tasks for jobs: those are known only when the run is planned."""
            if not scheduler:
                return []
            return [
                JobsOperator(task_id=name, pitstop_conn_id=pitstop_conn_id, trigger_rule=ALWAYS)
            ]

        plan = PlanOperator(
            task_id="plan",
            maintenance=maintenance,
            spares=spares,
            scheduler=scheduler,
            pitstop_conn_id=pitstop_conn_id,
        )
        closing = [step(Verb.PRECHECK, node), *of_node(Verb.DRAIN), *jobs("jobs_wait")]
        draining = [*(step(Verb.DRAIN, w) for w in workloads), *jobs("jobs_signal")]
        before = _in_line(plan, [*closing, *draining])
        for workload in workloads:
            before = _save(step, workload, before)
            if workload in spares:
                before = _move(step, workload, before)
        before = _in_line(before, [*jobs("jobs_move"), *of_node(Verb.EVICT)])
        on_node = (Verb.MAINTAIN, Verb.VALIDATE, Verb.ROLLBACK, Verb.QUARANTINE)
        before = _in_line(before, [step(verb, node) for verb in on_node])
        for workload in workloads:
            before = _bring_back(step, workload, before)
        opening = [step(Verb.RETURN_TO_SERVICE, w) for w in workloads]
        before = _in_line(
            before, [*opening, *of_node(Verb.RETURN_TO_SERVICE), *jobs("jobs_bring_back")]
        )
        finish = FinishOperator(
            task_id="finish", pitstop_conn_id=pitstop_conn_id, trigger_rule=ALWAYS
        )
        chain(before, finish)
    return group


def _in_line(before: PitstopOperator, tasks: Sequence[PitstopOperator]) -> PitstopOperator:
    """Put tasks one after another behind `before`, and return the last."""
    line = (before, *tasks)
    if tasks:
        chain(*line)
    return line[-1]


def _save(step: MakeStep, workload: str, before: PitstopOperator) -> PitstopOperator:
    checkpoint = step(Verb.CHECKPOINT, workload)
    stop = step(Verb.STOP, workload)
    wait = step(Verb.WAIT, workload)
    chain(before, checkpoint)
    chain(before, Label("not worth a dump"), stop)
    chain(checkpoint, Label("failed"), stop)
    chain(stop, wait)
    return wait


def _move(step: MakeStep, workload: str, before: PitstopOperator) -> PitstopOperator:
    """Draw the branch in which a workload comes up on another node, before the maintenance."""
    transfer = step(Verb.TRANSFER, workload)
    cold = _lift(step, workload, transfer, there=True)
    admit = step(Verb.RETURN_TO_SERVICE, workload, there=True)
    chain(before, Label("moves"), transfer)
    chain(transfer, Label("failed"), cold, admit)
    return admit


def _bring_back(step: MakeStep, workload: str, before: PitstopOperator) -> PitstopOperator:
    return _lift(step, workload, before)


def _lift(
    step: MakeStep, workload: str, before: PitstopOperator, there: bool = False
) -> PitstopOperator:
    gate = step(Verb.GATE, workload, there)
    restore = step(Verb.RESTORE, workload, there)
    cold = step(Verb.COLD_START, workload, there)
    chain(before, gate)
    chain(gate, Label("valid"), restore)
    chain(gate, Label("invalid"), cold)
    chain(restore, Label("failed"), cold)
    return cold
