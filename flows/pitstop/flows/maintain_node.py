"""The flow: one node's maintenance, each verb a task, each branch a task that ran or did not.

The order and the branches are `pitstop.steps.sequence`'s. This file only says how a step is
drawn and retried. No transaction and no rollback hook is used: Prefect runs such hooks when
somebody merely restarts a worker, and that must never undrain a node in the middle of a
change. What has to be undone is decided by the sequence, from the journal and the node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed

from pitstop.decide.outcome import result_of
from pitstop.flows.artifacts import show_plan, show_result
from pitstop.flows.blocks import stored_site
from pitstop.flows.contexts import opened, say
from pitstop.flows.tasks import task_for
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.files import plan_for_site, plan_from_files
from pitstop.steps.home import home_of
from pitstop.steps.runs import create_run, drive, ended_as, has_run, new_run_id

BLOCK = "block:"


@flow(name="maintain-node", log_prints=False, persist_result=True, retries=0)
def maintain_node(
    maintenance: str = "",
    site: str = "site.yaml",
    home: str = "",
    run_id: str = "",
) -> State[Any]:
    """Drain, checkpoint, maintain, restore: one node, from plan to report.

    Args:
        maintenance: path of the maintenance.yaml. Not needed for a run that exists.
        site: path of the site.yaml, or `block:NAME` for a stored `PitstopSite`.
        home: directory of journal and reports; else the block's, `PITSTOP_HOME`, or the
            user's state directory.
        run_id: a run to go on with, or the id of a new one. Empty is this flow run's id, so
            that retrying the flow run goes on with the same run.

    Returns:
        Completed with the run's result as plain data, or Failed with its cause.
    """
    directory, identifier = _home(site, home), run_id or _own_id()
    if not has_run(directory, identifier):
        plan = _plan(site, maintenance, directory)
        if not plan.go:
            show_plan(identifier, plan)  # a person wants to see why
        create_run(directory, plan, identifier, "prefect")
    say(f"run {identifier}: if this is cut off, pitstop resume {identifier} --home {directory}")
    with opened(str(directory), identifier) as ctx:
        show_plan(identifier, ctx.plan)
        result = _drive(ctx, str(directory))
        show_result(ctx, result)
    if result.state == "done":
        data = result.model_dump(mode="json", by_alias=True)
        return Completed(data=data, message=_message(result))
    return Failed(message=f"{result.state}: {result.cause}")


def _drive(ctx: RunContext, home: str) -> RunResult:
    events = ctx.events()
    if ended_as(events) not in ("", "partial"):
        # Cut off after its end and started again: there is only its result left to show.
        return result_of(ctx.plan, ctx.run, events)

    def perform(verb: Verb, subject: str) -> dict[str, Any]:
        task = task_for(home, ctx.run, verb, subject)
        result: dict[str, Any] = task(home, ctx.run, verb.value, subject)
        return result

    return drive(ctx, perform)


def _own_id() -> str:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return new_run_id()
    return f"prefect-{context.flow_run.id}"


def _home(site: str, home: str) -> Path:
    if not home and site.startswith(BLOCK):
        home = stored_site(site.removeprefix(BLOCK)).home
    return home_of(Path(home) if home else None)


def _plan(site: str, maintenance: str, home: Path) -> Plan:
    if not site.startswith(BLOCK):
        return plan_from_files(Path(site), Path(maintenance))
    declared = stored_site(site.removeprefix(BLOCK)).get_site(home / "keys")
    return plan_for_site(declared, Path(maintenance))


def _message(result: RunResult) -> str:
    return ", ".join(
        f"{w.name}: {w.outcome.value if w.outcome else 'waits'}" for w in result.workloads
    )
