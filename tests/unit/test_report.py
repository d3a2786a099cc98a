"""The change record and the plan: complete, bounded, and safe to open."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pitstop.model.errors import BadInput
from pitstop.model.event import Event
from pitstop.model.plan import Plan, Target, WorkloadPlan
from pitstop.model.result import RunResult, WorkloadResult
from pitstop.model.site import Node, SitePolicy
from pitstop.model.words import Outcome, Shape, Strategy
from pitstop.model.workload import AtRouter, Drain, HttpProbe, Launch, Ready, Workload
from pitstop.report.change_record import (
    render_plan_html,
    render_plan_markdown,
    render_report_html,
    report_json,
)
from pitstop.report.document import Report
from pitstop.report.runbook import bind, parse_runbook
from pitstop.report.text import (
    bounded,
    parse_time,
    quoted,
    readable_time,
    rfc3339,
    seconds,
    size,
    visible,
)
from pitstop.report.timeline import comparison, timeline
from pitstop.templates import runbook_source

VALID = {"valid": True, "differences": []}
INVALID = {
    "valid": False,
    "differences": [
        {
            "field": "driver.version",
            "saved": "580.95.05",
            "present": "590.48.01",
            "judgement": "invalid",
            "reason": "the checkpoint is only valid against the saved value",
        }
    ],
}
BEGIN = datetime(2026, 11, 3, 2, 11, 4, tzinfo=UTC)
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script></style></title>",
    "{{ 7*7 }} {{ cycler.__init__.__globals__ }} {% raw %}",
    "\"' onmouseover='x",
    "[x](javascript:alert(1)) `a` | b",
    "\x1b[2J\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe \u2066x",
    "nul\0 c1\x9b del\x7f",
    "A" * 50_000,
    "训练-모델 부산시 🦄",
)


def workload(name: str, strategy: Strategy = Strategy.RESTORE, **more: Any) -> WorkloadPlan:
    spec = Workload(
        placement={"n1": 1},
        launch=Launch(command=("serve",)),
        ready=Ready(http=HttpProbe(url="http://127.0.0.1:8000/")),
    )
    fields: dict[str, Any] = {
        "reason": "the declared changes keep its fingerprint",
        "running": True,
        "fingerprint": {},
        "predicted": VALID,
        **more,
    }
    return WorkloadPlan(name=name, spec=spec, shape=Shape.SINGLE_GPU, strategy=strategy, **fields)


def make_plan(workloads: Sequence[WorkloadPlan] | None = None, **more: Any) -> Plan:
    book = parse_runbook(runbook_source("patch-and-restart"), "patch-and-restart")
    made = bind(book, {"patch_command": ["apply", "--all"], "patch_rollback": ["undo"]})
    fields: dict[str, Any] = {
        "title": "Monthly patch",
        "reason": "CVE-2026-1",
        "go": True,
        "runbook": made.ref("patch-and-restart"),
        **more,
    }
    return Plan(
        site="lab",
        policy=SitePolicy(),
        node="n1",
        node_spec=Node(),
        boot_id="boot-a",
        workloads=tuple(
            workloads
            if workloads is not None
            else (
                workload("embed"),
                workload("chat", Strategy.COLD_START, predicted=INVALID, reason="driver changes"),
            )
        ),
        **fields,
    )


class Log:
    """Writes events the way a run does, at given seconds."""

    def __init__(self, actor: str = "mira@ops1") -> None:
        self.events: list[Event] = []
        self.actor = actor

    def add(
        self,
        at: float,
        kind: Any,
        subject: str = "n1",
        verb: str = "",
        attempt: int = 0,
        /,
        **data: Any,
    ) -> None:
        seq = len(self.events) + 1
        self.events.append(
            Event(
                run="r1",
                seq=seq,
                time=(BEGIN + timedelta(seconds=at)).isoformat(),
                kind=kind,
                actor=self.actor,
                subject=subject,
                verb=verb,
                attempt=attempt,
                data=data,
                prev=f"{seq - 1:064x}",
                hash=f"{seq:064x}",
            )
        )

    def step(self, start: float, end: float, subject: str, verb: str, /, **result: Any) -> None:
        self.add(start, "step.started", subject, verb, 1)
        self.add(end, "step.finished", subject, verb, 1, seconds=end - start, result=result)

    def fail(self, start: float, end: float, subject: str, verb: str, /, **error: Any) -> None:
        self.add(start, "step.started", subject, verb, 1)
        self.add(end, "step.failed", subject, verb, 1, error=error, final=True)

    @property
    def chain(self) -> dict[str, Any]:
        return {"valid": True, "head": self.events[-1].hash, "count": len(self.events)}


def ran(step: str, output: str = "fine\n", **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "kind": "command",
        "command": ["apply", "--all"],
        "exit_status": 0,
        "seconds": 3.5,
        "attempts": 1,
        "output_tail": output,
        "output_bytes": len(output),
        "output_digest": "sha256:" + "ab" * 32,
        **more,
    }


def good_run(plan: Plan) -> Log:
    log = Log()
    log.add(0, "run.started", plan_digest=plan.digest, front_end="prefect")
    log.step(1, 11, "embed", "drain", in_flight_at_start=7, in_flight_at_end=0)
    log.step(11, 13, "embed", "checkpoint", checkpoint="embed.r1.1", image_bytes=352_100_000)
    log.add(13, "decision", "chat", topic="save", choice="stop", cause="driver changes")
    log.step(13, 14, "chat", "stop")
    reboot = {
        "step": "reboot",
        "kind": "reboot",
        "boot_id_before": "boot-a",
        "boot_id_after": "boot-b",
        "attempts": 1,
    }
    log.step(14, 74, "n1", "maintain", steps=[ran("patch"), reboot])
    log.step(74, 75, "n1", "validate", steps=[ran("verify", "ok\n", kind="check")])
    log.step(75, 76, "embed", "gate", verdict=VALID)
    log.step(76, 77, "embed", "restore", ready_seconds=0.5, proof="equal")
    log.step(77, 78, "chat", "gate", verdict=INVALID)
    log.step(78, 98, "chat", "cold_start", ready_seconds=19.5)
    log.add(100, "run.ended", state="done", node_state="in-service")
    return log


def result(plan: Plan, **more: Any) -> RunResult:
    fields: dict[str, Any] = {
        "state": "done",
        "node_state": "in-service",
        "workloads": (
            WorkloadResult(
                name="embed",
                outcome=Outcome.RESTORED,
                verdict=VALID,
                checkpoint="embed.r1.1",
                image_bytes=352_100_000,
                frozen_seconds=66.0,
                restore_seconds=0.5,
                earlier_cold_start_seconds=11.0,
            ),
            WorkloadResult(
                name="chat",
                outcome=Outcome.COLD_STARTED,
                cause="driver changes",
                cold_start_seconds=19.5,
            ),
        ),
        **more,
    }
    return RunResult(run="r1", node="n1", plan_digest=plan.digest, **fields)


class Page(HTMLParser):
    """Tags, attributes and text of a page; void elements need no end."""

    VOID = frozenset({"meta", "br", "rect", "line", "img", "input", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def names(self) -> list[str]:
        return [tag for tag, _ in self.tags]


def record(plan: Plan, log: Log, outcome: RunResult, **chain: Any) -> Page:
    return Page(render_report_html(plan, log.events, outcome, {**log.chain, **chain}))


def check_safe(page: Page) -> None:
    names = page.names()
    assert not page.open, "every element is closed"
    assert not {"script", "img", "iframe", "object", "link", "base", "form"} & set(names)
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "src", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value == "#main", (tag, value)
    csp = next(
        a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert csp is not None
    assert csp.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


def test_good_run_says_what_happened() -> None:
    plan = make_plan()
    page = record(plan, good_run(plan), result(plan))
    check_safe(page)
    for expected in (
        "n1 was serviced and is back in service: embed restored in 0.50 s, "
        "chat cold-started in 19.5 s.",
        "journal verified",
        "mira@ops1 with prefect",
        "embed.r1.1 352.1 MB",
        "same answer as before",
        "earlier, 22.0 times the restore",
        "driver.version 580.95.05 590.48.01 invalid",
        "as predicted",
        '["apply", "--all"]',
        "exit status 0",
        "boot-a → boot-b",
        "rebooted",
        "sha256:" + "ab" * 32,
        plan.digest,
        plan.runbook.digest,
        f"{len(good_run(plan).events):064x}",
        "No step failed.",
        "3 Nov 2026, 02:11:04 UTC",
        "2026-11-03T02:11:04Z",
    ):
        assert expected in page.text, expected


def test_page_is_accessible() -> None:
    plan = make_plan()
    page = record(plan, good_run(plan), result(plan))
    names = page.names()
    assert [a for t, a in page.tags if t == "html"] == [{"lang": "en"}]
    assert names.count("h1") == 1
    assert names.count("main") == 1
    assert all(a.get("scope") in ("col", "row") for t, a in page.tags if t == "th")
    levels = [int(n[1]) for n in names if re.fullmatch("h[1-6]", n)]
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(set((a.get("aria-labelledby") or "").split()) <= set(ids) for _, a in page.tags)
    svgs = [a for t, a in page.tags if t == "svg"]
    assert len(svgs) == 2
    assert all(a["role"] == "img" and (a.get("aria-label") or "tl-title") for a in svgs)


def test_failed_maintenance_is_shown_at_its_step() -> None:
    plan = make_plan([workload("embed")])
    log = Log()
    log.add(0, "run.started", plan_digest=plan.digest)
    log.fail(
        1,
        9,
        "n1",
        "maintain",
        code="maintenance_failed",
        subject="patch",
        cause="exit status 100",
        hint="look at the package sources",
    )
    log.add(9, "decision", topic="maintenance", choice="roll back", cause="exit status 100")
    undo = ran("patch", "undone\n", command=["undo"], undoes="patch")
    broken = {"step": "verify", "error": {"cause": "exit status 1"}}
    log.step(9, 12, "n1", "rollback", valid=False, steps=[undo, broken])
    log.add(13, "run.ended", state="partial")
    waiting = WorkloadResult(name="embed", outcome=Outcome.LOST, cause="gone")
    page = record(
        plan,
        log,
        result(
            plan,
            state="partial",
            node_state="quarantined",
            cause="patch: exit status 100",
            workloads=(waiting,),
        ),
    )
    check_safe(page)
    assert "n1 is quarantined and a person is needed: patch: exit status 100; embed LOST." in (
        page.text
    )
    patch = page.text[page.text.index("patch command") : page.text.index("Then the node is")]
    assert "failed" in patch
    assert "exit status 100" in patch
    assert "Rollback exit status 0" in patch
    assert '["undo"]' in patch
    assert "no evidence: not finished or not reached" in page.text
    assert "look at the package sources" in page.text
    assert "patch: exit status 100 maintenance_failed" in page.text


def test_refused_run() -> None:
    plan = make_plan()
    log = Log()
    log.add(0, "run.started", plan_digest=plan.digest)
    log.add(1, "run.ended", state="refused")
    untouched = tuple(
        WorkloadResult(name=w.name, outcome=Outcome.UNTOUCHED) for w in plan.workloads
    )
    page = record(
        plan, log, result(plan, state="refused", cause="embed: held by run r0", workloads=untouched)
    )
    assert "n1 was not touched: embed: held by run r0." in page.text


def notes_of(plan: Plan, log: Log, **chain: Any) -> str:
    data = report_json(plan, log.events, result(plan), {**log.chain, **chain})
    return "; ".join(data["chain"]["notes"])


def test_chain_findings_are_told_apart() -> None:
    plan = make_plan()
    log = good_run(plan)
    assert notes_of(plan, log) == ""
    assert "does not verify" in notes_of(plan, log, valid=False)
    assert "does not verify" in notes_of(plan, log, valid="yes")
    assert "counts 99 events" in notes_of(plan, log, count=99)
    assert "head is not" in notes_of(plan, log, head="0" * 64)
    cut = Log()
    cut.events = log.events[:-1]
    assert notes_of(plan, cut) == "the run has no end in the journal: it goes on, or was cut off"
    other = make_plan(title="Another")
    assert "another plan" in notes_of(other, log)
    empty = report_json(plan, [], result(plan), {"valid": True, "head": "", "count": 0})
    assert empty["chain"]["notes"] == ["the journal holds no event of this run"]
    page = record(plan, log, result(plan), valid=False)
    assert "journal does not verify" in page.text
    assert "journal verified" not in page.text


def test_json_is_the_published_model() -> None:
    plan = make_plan()
    log = good_run(plan)
    data = report_json(plan, log.events, result(plan), log.chain)
    assert data["schema"] == "pitstop/report/v1"
    again = Report.model_validate(json.loads(json.dumps(data)))
    assert [w.ratio for w in again.workloads] == [22.0, None]
    assert [w.in_flight for w in again.workloads] == ["7 → 0", None]
    assert [(g.workload, g.when, g.valid) for g in again.gates] == [
        ("embed", "predicted", True),
        ("chat", "predicted", False),
        ("embed", "found", True),
        ("chat", "found", False),
    ]
    assert [e.step for e in again.evidence] == ["patch", "reboot", "verify"]
    assert again.seconds == 100


def test_long_output_keeps_both_ends_size_and_digest() -> None:
    plan = make_plan()
    log = Log()
    output = "BEGINNING" + "x" * 500_000 + "ENDING"
    log.step(0, 1, "n1", "maintain", steps=[ran("patch", output)])
    html = render_report_html(plan, log.events, result(plan), log.chain)
    assert "BEGINNING" in html
    assert "ENDING" in html
    assert "characters left out" in html
    assert "500.0 kB" in html
    assert len(html) < 100_000


def test_a_million_rows_do_not_make_a_large_page() -> None:
    plan = make_plan()
    log = Log()
    for n in range(3000):
        log.add(n, "decision", topic=f"t{n}", choice="<c>" * 500, cause="&" * 9000)
        log.step(n, n + 0.5, "n1", "validate", steps=[ran("verify", "<" * 9000)])
    html = render_report_html(plan, log.events, result(plan), log.chain)
    assert len(html) < 5_000_000
    page = Page(html)
    assert "8500 events in the middle are not shown here" in page.text
    assert "2800 of 3000 decisions are left out in the middle" in page.text
    assert "2800 of 3000 step results are left out in the middle" in page.text
    assert "2800 bars of n1 in the middle are not drawn" in page.text
    assert "t0" in page.text
    assert "t2999" in page.text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(text: str) -> None:
    plain = text.replace("\0", "")
    plan = make_plan(title=text[:200], reason=text, no_go=(text,))
    log = Log(actor=text)
    log.add(0, "run.started", text, text, plan_digest=text, front_end=text)
    log.add(
        1,
        "decision",
        text,
        topic=text,
        choice=text,
        cause=text,
        verdict={
            "valid": False,
            "differences": [
                dict.fromkeys(("field", "saved", "present", "judgement", "reason"), text)
            ],
        },
    )
    log.fail(2, 3, text, text, code=text, subject=text, cause=text, hint=text)
    steps = [ran("patch", text, command=[text], output_digest=text, boot_id_after=text)]
    steps.append(ran(text, text, kind=text, undoes=text))
    log.step(4, 5, "n1", "maintain", steps=steps)
    outcome = result(
        plan,
        state="failed",
        cause=text,
        workloads=(WorkloadResult(name="embed", outcome=None, cause=text, checkpoint=text),),
    )
    baseline = make_plan(title="t", reason="t", no_go=("t",))
    page = Page(render_report_html(plan, log.events, outcome, {**log.chain, "head": text}))
    check_safe(page)
    assert not set(
        re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.text)
    )
    shown = visible(bounded(text, 4000), keep="")
    assert " ".join(shown.split()) in page.text
    page = Page(render_plan_html(plan))
    check_safe(page)
    assert page.names() == Page(render_plan_html(baseline)).names()
    assert " ".join(visible(bounded(plain, 4000)).split())[:100] in page.text.replace("␀", "")
    reader = MarkdownIt("commonmark", {"html": True})
    tokens = reader.parse(render_plan_markdown(plan))
    kinds = {t.type for block in tokens for t in [block, *(block.children or [])]}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                (
                    "steps",
                    "result",
                    "error",
                    "verdict",
                    "differences",
                    "valid",
                    "seconds",
                    "command",
                    "cause",
                    "subject",
                    "exit_status",
                    "output_tail",
                    "in_flight_at_start",
                    "step",
                )
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                (
                    "step.started",
                    "step.finished",
                    "step.failed",
                    "decision",
                    "run.started",
                    "run.ended",
                    "note",
                    "run.resumed",
                )
            ),
            st.sampled_from(("n1", "embed", "?")),
            st.sampled_from(("drain", "checkpoint", "maintain", "gate", "restore", "stop", "x")),
            st.sampled_from(
                (
                    "2026-11-03T02:11:04Z",
                    "2026-11-03T02:12:04.5+01:00",
                    "x",
                    "",
                    "2026-11-03",
                    "0001-01-01T00:00:00+23:00",
                )
            ),
            st.dictionaries(
                st.sampled_from(
                    (
                        "result",
                        "error",
                        "seconds",
                        "verdict",
                        "topic",
                        "final",
                        "cause",
                        "plan_digest",
                    )
                ),
                JSON,
                max_size=4,
            ),
        ),
        max_size=8,
    ),
    JSON,
)
def test_any_event_data_makes_a_page(rows: list[Any], odd: Any) -> None:
    plan = make_plan()
    log = Log()
    for kind, subject, verb, time, data in rows:
        log.add(0, kind, subject, verb, 1, **data)
        log.events[-1] = log.events[-1].model_copy(update={"time": time})
    chain = {"valid": odd, "head": odd, "count": odd}
    check_safe(Page(render_report_html(plan, log.events, result(plan), chain)))
    json.dumps(report_json(plan, log.events, result(plan), chain), allow_nan=False)


def test_report_of_a_runbook_that_cannot_be_shown() -> None:
    plan = make_plan()
    ref = plan.runbook.model_copy(update={"source": plan.runbook.source + "\nchanged"})
    changed = plan.model_copy(update={"runbook": ref})
    page = record(changed, good_run(changed), result(changed))
    assert "the runbook's text is not the one that its digest names" in page.text
    assert "exit status 0" in page.text
    with pytest.raises(BadInput, match="digest"):
        render_plan_html(changed)


def test_plan_says_what_will_happen() -> None:
    plan = make_plan()
    page = Page(render_plan_html(plan))
    check_safe(page)
    for expected in (
        "n1 is drained, serviced and put back into service: "
        "embed is checkpointed and restored, chat is stopped and cold-started.",
        plan.digest,
        plan.runbook.digest,
        "driver.version 580.95.05 590.48.01 invalid",
        '["apply", "--all"]',
        'undone by ["undo"]',
        "At most 30 min",
    ):
        assert expected in page.text, expected
    markdown = render_plan_markdown(plan)
    for expected in (f"`{plan.digest}`", "**checkpoint-restore**", '`["apply", "--all"]`'):
        assert expected in markdown, expected


def test_plan_says_at_which_router_a_workload_is_closed() -> None:
    behind = workload("api")
    drain = Drain(router=AtRouter(name="lb", replica="be/<s>"))
    behind = behind.model_copy(update={"spec": behind.spec.model_copy(update={"drain": drain})})
    plan = make_plan([behind])
    page = Page(render_plan_html(plan))
    check_safe(page)
    assert "closed first at router lb as be/<s>" in page.text
    assert "at router `lb` as `be/<s>`" in render_plan_markdown(plan)


def moving_plan() -> Plan:
    there = AtRouter(name="lb", replica="be/n2")
    target = Target(node="n2", node_spec=Node(), predicted=VALID, router=there)
    moving = workload("chat", Strategy.MIGRATE, predicted=INVALID, target=target)
    drain = Drain(router=AtRouter(name="lb", replica="be/n1"))
    return make_plan(
        [moving.model_copy(update={"spec": moving.spec.model_copy(update={"drain": drain})})]
    )


def test_plan_says_where_a_workload_moves_and_what_the_gate_says_there() -> None:
    plan = moving_plan()
    page = Page(render_plan_html(plan))
    check_safe(page)
    for expected in (
        "chat is moved to another node",
        "invalid on n2: valid",
        "be/n1, and opened there last as be/n2",
    ):
        assert expected in page.text, expected
    markdown = render_plan_markdown(plan)
    assert "moves to `n2`; gate there, predicted: valid" in markdown
    assert "at router `lb` as `be/n1`, which is `be/n2` there" in markdown


def test_record_says_where_a_workload_is_now_and_how_it_came_there() -> None:
    plan = moving_plan()
    log = Log()
    log.add(0, "run.started", plan_digest=plan.digest)
    log.step(1, 2, "chat", "checkpoint", checkpoint="chat.r1.1", image_bytes=352_100_000)
    log.step(2, 6, "chat", "transfer", to="n2", bytes=352_100_000, seconds=4.0)
    log.step(6, 7, "chat", "gate", verdict=VALID, node="n2")
    log.step(7, 8, "chat", "restore", ready_seconds=0.5)
    log.add(9, "run.ended", state="done", node_state="in-service")
    chat = WorkloadResult(
        name="chat",
        outcome=Outcome.MIGRATED,
        cause="restored on n2",
        verdict=VALID,
        checkpoint="chat.r1.1",
        image_bytes=352_100_000,
        node="n2",
        transfer_bytes=352_100_000,
        transfer_seconds=4.0,
        restore_seconds=0.5,
    )
    outcome = result(plan, workloads=(chat,))
    page = record(plan, log, outcome)
    check_safe(page)
    for expected in (
        "n1 was serviced and is back in service: chat migrated to n2 in 0.50 s.",
        "now on n2",
        "brought to n2 in 4.00 s",
        "chat: asked on n2 valid",
        "chat: predicted by the plan invalid",
    ):
        assert expected in page.text, expected
    assert page.text.count("chat: asked on n2") == 1
    drawn = timeline("n1", ["chat"], log.events)
    assert drawn is not None
    assert [bar.kind for bar in drawn.lanes[1].steps] == [
        *("checkpoint", "transfer", "gate", "restore"),
    ]
    data = report_json(plan, log.events, outcome, log.chain)
    assert {gate["node"] for gate in data["gates"]} == {"n1", "n2"}
    assert (data["workloads"][0]["node"], data["workloads"][0]["transfer_seconds"]) == ("n2", 4.0)

    shared = chat.model_copy(update={"transfer_bytes": 0, "transfer_seconds": 0.0})
    page = record(plan, log, result(plan, workloads=(shared,)))
    assert "nothing was copied: n2 sees the same storage" in page.text


def test_plan_that_is_no_go() -> None:
    blocked = workload(
        "api", Strategy.REFUSE, reason="io_uring", blockers=({"what": "io_uring", "fd": 9},)
    )
    plan = make_plan([blocked], go=False, no_go=("api: io_uring",))
    text = Page(render_plan_html(plan)).text
    assert "n1 will not be touched" in text
    assert "api: io_uring" in text
    assert "what io_uring, fd 9" in text
    assert "**No go:**" in render_plan_markdown(plan)


def kinds(bars: Any) -> list[tuple[str, float, float]]:
    return [(b.kind, b.start, b.end) for b in bars]


def test_timeline_geometry() -> None:
    plan = make_plan()
    drawn = timeline("n1", ["embed", "chat"], good_run(plan).events)
    assert drawn is not None
    assert drawn.span == 100
    node, embed, chat = drawn.lanes
    assert kinds(node.steps) == [("maintain", 14, 74), ("validate", 74, 75)]
    assert kinds(embed.states) == [
        ("serving", 0, 1),
        ("draining", 1, 11),
        ("frozen", 11, 77),
        ("serving", 77, 100),
    ]
    assert kinds(chat.states) == [("serving", 0, 13), ("stopped", 13, 98), ("serving", 98, 100)]
    assert (drawn.x(embed.states[2]), drawn.width(embed.states[2])) == (11, 66)
    assert [t.label for t in drawn.ticks] == [
        "start",
        "15 s",
        "30 s",
        "45 s",
        "1 min",
        "1 min 15 s",
        "1 min 30 s",
    ]


def test_timeline_of_failed_and_open_steps() -> None:
    log = Log()
    log.add(0, "run.started")
    log.fail(1, 3, "a", "checkpoint", cause="x")
    log.step(3, 4, "a", "checkpoint")
    log.fail(5, 6, "a", "restore", cause="x")
    log.add(6, "step.started", "a", "cold_start", 1)
    log.step(7, 8, "b", "drain")
    log.step(8, 9, "b", "return_to_service")
    log.add(10, "note")
    drawn = timeline("n1", ["a", "b"], log.events)
    assert drawn is not None
    _, a, b = drawn.lanes
    assert kinds(a.states) == [("serving", 0, 3), ("frozen", 3, 6), ("stopped", 6, 10)]
    assert [(s.kind, s.failed, s.open) for s in a.steps] == [
        ("checkpoint", True, False),
        ("checkpoint", False, False),
        ("restore", True, False),
        ("cold_start", False, True),
    ]
    assert kinds(b.states) == [("serving", 0, 7), ("draining", 7, 9), ("serving", 9, 10)]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6),
            st.floats(-10, 1e5),
            st.sampled_from(("drain", "checkpoint", "stop", "restore", "cold_start", "maintain")),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_bars_stay_within_the_picture(rows: list[tuple[float, float, str, bool]]) -> None:
    log = Log()
    for start, length, verb, failed in rows:
        (log.fail if failed else log.step)(start, start + length, "a", verb)
    drawn = timeline("n1", ["a"], log.events)
    if drawn is None:
        return
    for bar in (*drawn.lanes[1].states, *drawn.lanes[1].steps):
        assert 0 <= drawn.x(bar) <= 100
        assert 0 <= drawn.width(bar) <= 100.001
    ends = [(b.start, b.end) for b in drawn.lanes[1].states]
    assert ends[0][0] == 0
    assert ends[-1][1] == drawn.span
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    assert 1 <= len(drawn.ticks) <= 15


def test_timeline_needs_times() -> None:
    log = Log()
    log.add(0, "run.started")
    assert timeline("n1", [], log.events) is None
    assert timeline("n1", [], []) is None


def test_comparison_only_of_what_was_measured() -> None:
    both = WorkloadResult(
        name="a", outcome=Outcome.RESTORED, restore_seconds=2, earlier_cold_start_seconds=8
    )
    found = comparison(both)
    assert found is not None
    assert (found.ratio, found.restore_percent, found.cold_percent) == (4, 25, 100)
    slower = both.model_copy(update={"restore_seconds": 16.0})
    found = comparison(slower)
    assert found is not None
    assert (found.ratio, found.restore_percent, found.cold_percent) == (0.5, 100, 50)
    assert comparison(both.model_copy(update={"restore_seconds": None})) is None
    assert comparison(both.model_copy(update={"earlier_cold_start_seconds": None})) is None


@given(st.text())
def test_visible_text_has_nothing_that_acts(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    harmless = ("Zs", "Cn", "Co")  # spaces; not assigned yet, as far as this Python knows
    assert all(
        c.isprintable() or c in "\n\t\u200c\u200d" or unicodedata.category(c) in harmless
        for c in shown
    )
    assert not set("\u202e\u2066\u200f\ufeff\u2028\x1b\0\x9b\ud800") & set(shown)
    assert [c for c in shown if c.isprintable() and c in text] or not [
        c for c in text if c.isprintable()
    ]


def test_text_for_people() -> None:
    assert visible("a\x1b[0m\u202e\x7f") == "a␛[0m⟨U+202E⟩␡"
    assert bounded("abcdefghij", 4) == "ab[… 6 characters left out …]ij"
    assert quoted(["a b", 'c"d\\', "e\nf"]) == '["a b", "c\\"d\\\\", "e␊f"]'
    assert [seconds(s) for s in (None, 0.484, 9.999, 59.94, 60, 245, 3600, 7380)] == [
        "–", "0.48 s", "10.0 s", "59.9 s", "1 min", "4 min 05 s", "1 h", "2 h 03 min",
    ]  # fmt: skip
    assert [size(n) for n in (None, 0, 999, 352_100_000, 999_960, 10**15)] == [
        "–", "0 B", "999 B", "352.1 MB", "1.0 MB", "1000.0 TB",
    ]  # fmt: skip


def test_times_are_utc() -> None:
    assert rfc3339("2026-11-30T02:00:00+08:00") == "2026-11-29T18:00:00Z"
    assert readable_time("2026-11-30T02:00:00+08:00") == "29 Nov 2026, 18:00:00 UTC"
    assert parse_time("2026-11-30T02:00:00") is None, "no offset: not guessed"
    assert readable_time("yesterday") == "yesterday"
