"""The plan that people approve, and the change record that is left after the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from pitstop.model.errors import BadInput
from pitstop.model.event import Event
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.model.runbook import RunbookStep
from pitstop.report.build import build
from pitstop.report.document import Evidence, GateReport, Report
from pitstop.report.headline import STATE_WORDS, plan_headline
from pitstop.report.page import Plain, html_environment, markdown_environment
from pitstop.report.pick import TEXT_LIMIT
from pitstop.report.prose import plan_facts, prose_html, prose_markdown
from pitstop.report.runbook import Runbook, digest_source, parse_runbook
from pitstop.report.text import bounded
from pitstop.report.timeline import Comparison, Timeline, comparison, timeline


def render_plan_html(plan: Plan) -> str:
    """Return the plan as one self-contained HTML page.

    Raises:
        BadInput: the runbook's prose cannot be rendered. Better now than after approval.
    """
    environment = html_environment()
    macros: Any = environment.get_template("macros.html.j2").module
    slots: dict[str, Markup] = {step.step: macros.planned_step(step) for step in plan.runbook.steps}
    prose = prose_html(_runbook(plan), plan.runbook.variables, plan_facts(plan), slots)
    return environment.get_template("plan.html.j2").render(
        plan=plan, prose=prose, headline=plan_headline(plan), variables=_variables(plan)
    )


def render_plan_markdown(plan: Plan) -> str:
    """Return the plan as Markdown, for a pull request or a workflow system's page.

    Raises:
        BadInput: the runbook's prose cannot be rendered.
    """
    environment = markdown_environment()
    step = environment.get_template("step.md.j2")
    slots = {s.step: step.render(step=s).strip() for s in plan.runbook.steps}
    prose = prose_markdown(_runbook(plan), plan.runbook.variables, plan_facts(plan), slots)
    return environment.get_template("plan.md.j2").render(
        plan=plan, prose=Plain(prose), variables=_variables(plan)
    )


def report_json(
    plan: Plan, events: Sequence[Event], result: RunResult, chain: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the change record as plain data (`pitstop/report/v1`)."""
    return build(plan, events, result, chain).model_dump(mode="json", by_alias=True)


def render_report_html(
    plan: Plan, events: Sequence[Event], result: RunResult, chain: Mapping[str, Any]
) -> str:
    """Return the change record as one self-contained HTML page.

    It never fails on what a run left behind: prose that cannot be rendered is replaced by
    the reason, and the steps with their evidence are shown all the same.
    """
    report = build(plan, events, result, chain)
    environment = html_environment()
    macros: Any = environment.get_template("macros.html.j2").module
    slots: dict[str, Markup] = {
        step.step: macros.executed_step(step, _evidence_of(step, report))
        for step in plan.runbook.steps
    }
    prose, no_prose = _prose_or_why(plan, slots)
    drawn = _timeline(plan, events)
    gates = _gates(report)
    known = {step.step for step in plan.runbook.steps}
    return environment.get_template("change-record.html.j2").render(
        report=report,
        state_word=STATE_WORDS[report.state],
        timeline=drawn,
        kinds=_kinds(drawn),
        comparisons=_comparisons(result),
        prose=prose,
        no_prose=no_prose,
        gates=[gate for gate, _ in gates],
        as_predicted=[same for _, same in gates],
        slots=slots,
        other_evidence=[e for e in report.evidence if (e.undoes or e.step) not in known],
    )


def _runbook(plan: Plan) -> Runbook:
    """Parse the text that the plan carries; it must be the one that its digest names.

    Raises:
        BadInput: it is not, or it cannot be parsed.
    """
    ref = plan.runbook
    if digest_source(ref.source) != ref.digest:
        raise BadInput(ref.name, "the runbook's text is not the one that its digest names")
    return parse_runbook(ref.source, ref.name)


def _prose_or_why(plan: Plan, slots: Mapping[str, Markup]) -> tuple[Markup | None, str]:
    try:
        return prose_html(_runbook(plan), plan.runbook.variables, plan_facts(plan), slots), ""
    except BadInput as error:
        return None, str(error)


def _evidence_of(step: RunbookStep, report: Report) -> list[Evidence]:
    return [e for e in report.evidence if step.step in (e.step, e.undoes)]


def _gates(report: Report) -> list[tuple[GateReport, bool]]:
    """Say each answer once: a prediction that came true is only noted as such."""
    predicted = {(g.workload, g.node): g for g in report.gates if g.when == "predicted"}
    asked = {(g.workload, g.node) for g in report.gates if g.when != "predicted"}
    shown = []
    for gate in report.gates:
        before = predicted.get((gate.workload, gate.node))
        same = before is not None and (gate.valid, gate.differences) == (
            before.valid,
            before.differences,
        )
        if gate.when != "predicted":
            shown.append((gate, same))
        elif (gate.workload, gate.node) not in asked or not _came_true(gate, report):
            shown.append((gate, False))
    return shown


def _came_true(predicted: GateReport, report: Report) -> bool:
    return any(
        (g.valid, g.differences) == (predicted.valid, predicted.differences)
        for g in report.gates
        if (g.workload, g.node) == (predicted.workload, predicted.node) and g.when != "predicted"
    )


def _timeline(plan: Plan, events: Sequence[Event]) -> Timeline | None:
    running = [w.name for w in plan.workloads if w.running] + [job.name for job in plan.jobs]
    return timeline(plan.node, running, events)


def _kinds(drawn: Timeline | None) -> set[str]:
    if drawn is None:
        return set()
    return {bar.kind for lane in drawn.lanes for bar in (*lane.states, *lane.steps)}


def _variables(plan: Plan) -> dict[str, str]:
    """Return the runbook's variables as JSON text, in which a list looks like one."""
    return {
        name: bounded(json.dumps(value, ensure_ascii=False, default=str), TEXT_LIMIT)
        for name, value in plan.runbook.variables.items()
    }


def _comparisons(result: RunResult) -> list[Comparison]:
    found = (comparison(workload) for workload in result.workloads)
    return [c for c in found if c is not None]
