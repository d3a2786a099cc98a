"""Plans and reports with a scheduler's jobs and pods in them, whatever those are called."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from pitstop.decide.outcome import result_of
from pitstop.model.jobs import JobPlan, JobPolicy, PodPlan
from pitstop.model.plan import Plan, SchedulerPlan
from pitstop.model.slurm import SlurmSpec
from pitstop.model.words import Shape, Strategy
from pitstop.report.change_record import (
    render_plan_html,
    render_plan_markdown,
    render_report_html,
)
from pitstop.report.headline import headline, plan_headline
from tests.unit.test_job_sequence import SAVED, SIGNALLED, WAITED, started
from tests.unit.test_report import Log, make_plan

HOSTILE = "<script>alert(1)</script> {{ 7*7 }} \x1b[31m \u202e**b** | `c`"


def plan(*jobs: JobPlan, reason: str = "", pods: tuple[PodPlan, ...] = ()) -> Plan:
    scheduler = SchedulerPlan(
        spec=SlurmSpec(kind="slurm"),
        node="gpu-1",
        claim="foreign" if reason else "nobody",
        reason=reason,
        state="MIXED+DRAIN",
        jobs=jobs,
        pods=pods,
    )
    return make_plan([], scheduler=scheduler)


def odd(**changes: object) -> JobPlan:
    job = JobPlan(
        name="job-9",
        key="9",
        number=9,
        title=HOSTILE,
        user=HOSTILE,
        nodes=("gpu-1", "gpu-2"),
        gpus=2,
        shape=Shape.MULTI_NODE,
        strategy=Strategy.APPLICATION,
        reason=HOSTILE,
        policy=JobPolicy(),
        notes=(HOSTILE,),
    )
    return job.model_copy(update=changes)


def test_every_job_is_in_the_plan_with_what_becomes_of_it() -> None:
    made = plan(SAVED, SIGNALLED, WAITED, reason="fan swap, ticket 4411")
    for text in (render_plan_html(made), render_plan_markdown(made)):
        for job in (SAVED, SIGNALLED, WAITED):
            assert job.name in text
            assert job.strategy.value in text
        assert "fan swap, ticket 4411" in text
        assert "gpu-1" in text
    assert "saves itself and is requeued" in plan_headline(made)


@pytest.mark.parametrize("reason", ["", HOSTILE])
def test_what_an_owner_calls_a_job_does_nothing_to_a_page(reason: str) -> None:
    pod = PodPlan(uid="u", key=HOSTILE, action="evict", reason=HOSTILE)
    made = plan(odd(), reason=reason, pods=(pod,))
    page = render_plan_html(made)
    assert "<script>alert" not in page
    assert "49" not in page.partition('id="jobs"')[2].partition("</section>")[0]
    # As a page that shows Markdown would show it, with HTML in it allowed.
    shown = MarkdownIt("commonmark", {"html": True}).render(render_plan_markdown(made))
    assert "<script>alert" not in shown
    assert "<strong>b</strong>" not in shown
    for text in (page, shown):
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_pods_are_in_the_plan() -> None:
    pods = (
        PodPlan(uid="a", key="ns/web-1", action="checkpoint", reason="under the launcher"),
        PodPlan(uid="b", key="ns/exporter", action="leave", reason="DaemonSet"),
    )
    made = plan(pods=pods)
    for text in (render_plan_html(made), render_plan_markdown(made)):
        for pod in pods:
            assert pod.key in text
            assert pod.reason in text


def test_the_report_says_where_a_job_is_now() -> None:
    made = plan(SAVED, SIGNALLED)
    log = Log()
    log.add(0, "run.started", plan_digest=made.digest, front_end="steps")
    log.step(1, 2, "n1", "drain", claim="foreign", reason="theirs")
    log.step(2, 3, "job-1", "checkpoint", checkpoint="ck", image_bytes=1, generation=1)
    log.step(3, 4, "job-2", "requeue", requeued=True, state="PENDING")
    log.step(4, 5, "job-1", "requeue", requeued=True, state="PENDING")
    log.step(5, 6, "n1", "return_to_service", claim="foreign", reason="theirs", given_back=False)
    back = {"how": "restored", "node": "gpu-2", "ready_seconds": 1.5, "cause": ""}
    log.step(6, 9, "job-1", "release", **back)
    log.step(9, 9.5, "job-2", "release", **started())
    log.add(10, "run.ended", state="done", cause="", node_state="drained")
    events = log.events
    result = result_of(made, "run-1", events)
    assert result.node_state == "drained"
    assert "stays drained in its scheduler" in headline(result)
    page = render_report_html(made, events, result, log.chain)
    assert "job-1" in page
    assert "restored on gpu-2" in page
    assert "it goes on from its own checkpoint" in page
