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
from prefect.states import Completed, Failed

from pitstop.flows.artifacts import show_plan, show_result
from pitstop.flows.blocks import PitstopSite
from pitstop.flows.contexts import opened
from pitstop.flows.tasks import task_for
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.model.words import Verb
from pitstop.steps.context import RunContext
from pitstop.steps.files import find_runbook, load_maintenance, plan_from_files
from pitstop.steps.planning import make_plan
from pitstop.steps.runs import create_run, drive, has_run, new_run_id


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
        home: directory of journal and reports.
        run_id: a run to go on with; empty or unknown starts a new one of that id.

    Returns:
        Completed with the run's result as plain data, or Failed with its cause.
    """
    directory, identifier = str(Path(home).resolve()), run_id or new_run_id()
    if not has_run(Path(directory), identifier):
        plan = _plan(site, maintenance, Path(directory))
        create_run(Path(directory), plan, identifier, "prefect")
    with opened(directory, identifier) as ctx:
        show_plan(identifier, ctx.plan)
        result = _drive(ctx, directory)
        show_result(ctx, result)
    data = result.model_dump(mode="json", by_alias=True)
    if result.state == "done":
        return Completed(data=data, message=_message(result))
    return Failed(message=f"{result.state}: {result.cause}")


def _drive(ctx: RunContext, home: str) -> RunResult:
    def perform(verb: Verb, subject: str) -> dict[str, Any]:
        recovery = sum(1 for e in ctx.events() if e.kind == "run.resumed")
        result: dict[str, Any] = task_for(home, ctx.run, verb)(
            ctx.run, verb.value, subject, recovery, home
        )
        return result

    return drive(ctx, perform)


def _plan(site: str, maintenance: str, home: Path) -> Plan:
    if not site.startswith("block:"):
        return plan_from_files(Path(site), Path(maintenance))
    block = PitstopSite.load(site.removeprefix("block:"))
    assert isinstance(block, PitstopSite)  # noqa: S101  # called from a sync flow
    wanted = load_maintenance(Path(maintenance))
    source, origin = find_runbook(wanted.runbook, Path(maintenance).parent)
    return make_plan(block.get_site(home / "keys"), wanted, source, origin)


def _message(result: RunResult) -> str:
    return ", ".join(
        f"{w.name}: {w.outcome.value if w.outcome else 'waits'}" for w in result.workloads
    )
