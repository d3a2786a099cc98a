"""Planning: look at a node, choose strategies, say beforehand what will happen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pitstop.decide.homes import Candidate, home_on, only_spare, spec_on
from pitstop.decide.shape import shape_of
from pitstop.decide.strategy import choose, may_move
from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import BadInput
from pitstop.model.maintenance import Maintenance
from pitstop.model.plan import Plan, WorkloadPlan
from pitstop.model.site import Site
from pitstop.model.words import Strategy
from pitstop.model.workload import Workload
from pitstop.report.runbook import bind, parse_runbook
from pitstop.steps.migrating import Spares, other_homes, target_of
from pitstop.steps.routing import unreachable
from pitstop.steps.scheduler_planning import blockers_of, plan_scheduler, predicted_for
from pitstop.steps.scheduler_planning import no_go as no_go_of_scheduler
from pitstop.steps.specs import inspect_argument


def make_plan(
    site: Site, maintenance: Maintenance, runbook_source: str, runbook_origin: str
) -> Plan:
    """Make the plan of a maintenance. Only looks; nothing on the node is changed.

    Raises:
        BadInput: the runbook or its variables are wrong, or the node is not declared.
        PitstopError: the node cannot be asked.
    """
    name = maintenance.nodes[0]
    if name not in site.nodes:
        raise BadInput(name, "no such node in the site", f"there are: {', '.join(site.nodes)}")
    runbook = bind(parse_runbook(runbook_source, runbook_origin), maintenance.variables)
    changes = {**runbook.changes, **maintenance.changes}
    declared = {n: w for n, w in site.workloads.items() if home_on(w, name) is not None}
    node = RemoteNode(name, site.nodes[name])
    try:
        found = node.call(
            "inspect", workloads={n: inspect_argument(w) for n, w in declared.items()}
        )
        scheduler = plan_scheduler(site, node, changes)
    finally:
        node.close()
    # What is declared here as a spare alone is here only while it runs here.
    declared = {
        n: w
        for n, w in declared.items()
        if not only_spare(w, name) or found["workloads"][n]["running"]
    }
    spares = Spares(site.nodes, site.nodes[name], site.policy.tolerate)
    workloads = tuple(
        _plan_workload(name, n, w, found["workloads"][n], changes, site, spares)
        for n, w in declared.items()
    )
    plan = Plan(
        site=site.name,
        policy=site.policy,
        title=maintenance.title,
        reason=maintenance.reason,
        node=name,
        node_spec=site.nodes[name],
        boot_id=found["boot_id"],
        runbook=runbook.ref(maintenance.runbook).model_copy(update={"changes": changes}),
        workloads=workloads,
        scheduler=scheduler,
        routers={
            w.drain.router.name: site.routers[w.drain.router.name]
            for w in declared.values()
            if w.drain.router is not None
        },
        go=True,
    )
    no_go = (
        *_no_go(found, workloads),
        *no_go_of_scheduler(scheduler, declared),
        *unreachable(plan),
    )
    return plan.model_copy(update={"go": not no_go, "no_go": no_go})


def _plan_workload(
    node: str,
    name: str,
    spec: Workload,
    found: Mapping[str, Any],
    changes: Mapping[str, str],
    site: Site,
    spares: Spares,
) -> WorkloadPlan:
    shape = shape_of(spec.placement)
    verdict = predicted_for(site, found, changes)
    blockers, running = tuple(found["blockers"]), bool(found["running"])
    asked: tuple[Candidate, ...] = ()
    places = other_homes(spec, node)
    if may_move(shape, running, blockers_of(found), verdict):
        asked = spares.candidates(name, spec, found, places)
    choice = choose(
        shape,
        running,
        str(found["why_not"]),
        blockers_of(found),
        verdict,
        spec.policy.on_checkpoint_failure,
        asked,
        spares=bool(places),
    )
    return WorkloadPlan(
        name=name,
        spec=spec_on(spec, node),
        shape=shape,
        strategy=choice.strategy,
        reason=choice.reason,
        running=running,
        fingerprint=found["fingerprint"],
        predicted=verdict.to_json(),
        blockers=blockers,
        target=target_of(spec, choice.target, asked, site.nodes),
    )


def _no_go(found: Mapping[str, Any], workloads: tuple[WorkloadPlan, ...]) -> list[str]:
    reasons = [f"{w.name}: {w.reason}" for w in workloads if w.strategy is Strategy.REFUSE]
    quarantine = found.get("quarantine")
    if quarantine:
        reasons.append(f"the node is quarantined by {quarantine['run']}: {quarantine['cause']}")
    for workload in workloads:
        holder = found["workloads"][workload.name]["holder"]
        if holder:
            reasons.append(f"{workload.name}: held by run {holder}")
    return reasons
