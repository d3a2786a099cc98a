"""Runbooks: parsed, bound and rendered, with data that stays data."""

from __future__ import annotations

import hashlib
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markupsafe import Markup

from pitstop.model.errors import BadInput
from pitstop.report.prose import code_span, prose_html, prose_markdown
from pitstop.report.runbook import bind, parse_runbook
from pitstop.report.text import visible
from pitstop.templates import report_template, runbook_names, runbook_source

HEAD = """\
---
schema: pitstop/runbook/v1
title: Patch
required: [pkg]
variables:
  undo: null
  limit: 60
changes:
  host.kernel: "{{ pkg }}"
---
"""
STEP = """\
```pitstop
step: one
kind: command
command: ["install", "{{ pkg }}"]
timeout: "{{ limit }}"
rollback: "{{ undo }}"
```
"""
QUIET = STEP.replace("{{ pkg }}", "x")
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "{{ 7*7 }} {% raw %} {# x #}",
    "[x](javascript:alert(1))",
    "![i](http://192.0.2.1/x)",
    "`a` ``b`` ```",
    "# head\n\n- list\n\n    code",
    "a|b\n|-|-|\n|c|d|",
    "\x1b[2J\x1b[31mred\x07",
    "\u202egnp.exe",
    "nul\0 \x9b \ud800",
    "&lt;b&gt; &#60;",
    "\\",
    "",
    " ",
)


def fails(source: str, **values: Any) -> BadInput:
    with pytest.raises(BadInput) as caught:
        bind(parse_runbook(source, "r.md.j2"), values)
    return caught.value


def bound(body: str = STEP, **values: Any) -> Any:
    return bind(parse_runbook(HEAD + body, "r.md.j2"), {"pkg": "x", **values})


class Page(HTMLParser):
    """Collects tags with their attributes, and the text of data elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.data: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        if tag == "bdi":
            self.inside = True
            self.data.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "bdi"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data[-1] += data


def page(html: str) -> Page:
    parser = Page()
    parser.feed(html)
    parser.close()
    return parser


def test_built_in_runbook_binds() -> None:
    assert "patch-and-restart" in runbook_names()
    source = runbook_source("patch-and-restart")
    book = parse_runbook(source, "patch-and-restart")
    assert book.digest == "sha256:" + hashlib.sha256(source.encode()).hexdigest()
    patch, reboot, verify = bind(book, {"patch_command": ["apply", "--now"]}).steps
    assert (patch.step, patch.command, patch.rollback, patch.timeout) == (
        "patch",
        ("apply", "--now"),
        None,
        1800,
    )
    assert (reboot.step, reboot.kind) == ("reboot", "reboot")
    assert (verify.step, verify.phase, verify.command) == ("verify", "validate", ("true",))
    with_undo = bind(book, {"patch_command": ["apply"], "patch_rollback": ["undo", "it"]})
    assert with_undo.steps[0].rollback == ("undo", "it")


@pytest.mark.parametrize("undo", [None, ["undo"]])
def test_built_in_runbook_renders(undo: list[str] | None) -> None:
    book = parse_runbook(runbook_source("patch-and-restart"), "p")
    made = bind(book, {"patch_command": ["apply"], "patch_rollback": undo})
    facts = {"node": "n1", "reason": "", "workloads": []}
    html = prose_html(book, made.variables, facts, {"reboot": Markup("<hr>")})
    assert html.count("<hr>") == 1
    assert ("No rollback command was given" in html) == (undo is None)
    for heading in ("Objective", "Impact", "Go or no-go", "Procedure", "Validation", "Sign-off"):
        assert f"<h3>{heading}</h3>" in html


@pytest.mark.parametrize("name", ["../runbooks/patch-and-restart", "nope", "", "style.css"])
def test_unknown_runbook(name: str) -> None:
    with pytest.raises(KeyError):
        runbook_source(name)


def test_unknown_report_template() -> None:
    with pytest.raises(KeyError):
        report_template("../__init__.py")


def test_values_keep_their_type_and_are_never_split() -> None:
    made = bound(pkg="a b; {{ 7*7 }} $(x)", limit=5, undo=["u", "{{ pkg }}"])
    step = made.steps[0]
    assert step.command == ("install", "a b; {{ 7*7 }} $(x)")
    assert step.timeout == 5
    assert step.rollback == ("u", "{{ pkg }}")
    assert made.changes == {"host.kernel": "a b; {{ 7*7 }} $(x)"}
    assert made.variables == {"pkg": "a b; {{ 7*7 }} $(x)", "limit": 5, "undo": ["u", "{{ pkg }}"]}


def test_text_that_looks_like_a_list_stays_text() -> None:
    body = STEP.replace('["install", "{{ pkg }}"]', '"{{ pkg }}"')
    error = fails(HEAD + body, pkg="['rm', '-rf']")
    assert (error.subject, error.cause) == ("r.md.j2:14", "command: Input should be a valid tuple")


def test_null_drops_the_key() -> None:
    assert bound().steps[0].rollback is None
    head = HEAD.replace("{{ pkg }}", "{{ undo }}")
    assert bind(parse_runbook(head + STEP, "r"), {"pkg": "x"}).changes == {}


@given(st.text())
def test_data_is_a_value(text: str) -> None:
    made = bound(undo=[text.replace("\0", ""), "x"])
    assert made.steps[0].rollback == (text.replace("\0", ""), "x")


def test_line_endings_do_not_move_lines() -> None:
    error = fails((HEAD + STEP).replace("\n", "\r\n"), pkg=["list"])
    assert error.subject == "r.md.j2:9"


@pytest.mark.parametrize(
    ("source", "values", "subject", "cause"),
    [
        ("# no front matter", {}, "r.md.j2:1", "front matter"),
        ("---\nschema: x\n", {}, "r.md.j2:1", "not closed"),
        (HEAD, {}, "r.md.j2:1", "no step block"),
        (HEAD + STEP, {}, "r.md.j2:4", "variables.pkg: a value is required"),
        (HEAD + STEP, {"pkg": "x", "pgk": 1}, "r.md.j2:5", "variables.pgk: this runbook has no"),
        (HEAD + STEP, {"pkg": ["a"]}, "r.md.j2:9", "changes.host.kernel: one value is expected"),
        (HEAD + STEP, {"pkg": object()}, "r.md.j2:5", "variables.pkg: a value of type object"),
        (HEAD + STEP, {"pkg": float("nan")}, "r.md.j2:5", "variables.pkg: a number must be"),
        (HEAD + STEP, {"pkg": "a\0"}, "r.md.j2:14", "command.1"),
        (HEAD + STEP, {"pkg": "x", "limit": "soon"}, "r.md.j2:15", "timeout"),
        (HEAD + STEP, {"pkg": "x", "limit": 0}, "r.md.j2:15", "timeout"),
        (HEAD + STEP.replace("pkg }}", "pgk }}"), {"pkg": "x"}, "r.md.j2:14", "'pgk' is not"),
        (HEAD + STEP.replace("pkg }}", "pkg.a.b }}"), {"pkg": "x"}, "r.md.j2:14", "command.1"),
        (HEAD + STEP.replace("pkg }}", "pkg"), {"pkg": "x"}, "r.md.j2:14", "not a template"),
        (HEAD + STEP.replace('"{{ pkg', '"a{{ undo'), {"pkg": "x"}, "r.md.j2:14", "null"),
        (HEAD + STEP.replace('"{{ limit }}"', "{{ limit }}"), {"pkg": "x"}, "r.md.j2:15", "key"),
        (HEAD + STEP.replace("timeout", "timeuot"), {"pkg": "x"}, "r.md.j2:15", "timeuot"),
        (HEAD + STEP.replace("step: one", "step: a/b"), {"pkg": "x"}, "r.md.j2:12", "step"),
        (HEAD + STEP.replace("step: one", 'step: "{{ pkg }}"'), {}, "r.md.j2:12", "template"),
        (HEAD + STEP.replace("kind: command", "kind: comand"), {"pkg": "x"}, "r.md.j2:13", "kind"),
        (
            HEAD + STEP.replace("kind: command", "kind: reboot"),
            {"pkg": "x"},
            "r.md.j2:12",
            "reboot",
        ),
        (HEAD + STEP + STEP, {"pkg": "x"}, "r.md.j2:19", "another step 'one'"),
        (HEAD + STEP.replace("```pitstop", "```Pitstop"), {}, "r.md.j2:11", "exactly"),
        (HEAD + STEP.replace("```pitstop", "```pitstop x"), {}, "r.md.j2:11", "exactly"),
        (HEAD + STEP[:-4], {}, "r.md.j2:11", "not closed"),
        (HEAD + "```pitstop\n```\n", {}, "r.md.j2:11", "empty"),
        (HEAD + "> " + STEP.replace("\n", "\n> "), {}, "r.md.j2:11", "inside a list"),
        (HEAD.replace("undo:", "plan:") + STEP, {}, "r.md.j2:6", "variables.plan: not a name"),
        (HEAD.replace("undo:", "pkg:") + STEP, {}, "r.md.j2:4", "not required"),
        (HEAD.replace("undo: null", "undo: 2026-01-01") + STEP, {}, "r.md.j2:6", "quote it"),
        (HEAD.replace("title", "titel") + STEP, {}, "r.md.j2:", "titel"),
        (HEAD.replace("{{ pkg }}", "{{ nope }}") + STEP, {}, "r.md.j2:9", "changes.host.kernel"),
    ],
)
def test_refused_with_file_and_line(
    source: str, values: dict[str, Any], subject: str, cause: str
) -> None:
    error = fails(source, **values)
    assert error.subject.startswith(subject), error
    assert cause in f"{error.cause} {error.hint}", error


@pytest.mark.parametrize(
    "expression",
    ["cycler", "self", "pkg.__class__", "''.__class__.__mro__", "lipsum.__globals__", "undo.x"],
)
def test_the_sandbox_gives_nothing_away(expression: str) -> None:
    error = fails(HEAD + STEP.replace("{{ pkg }}", "{{ " + expression + " }}"), pkg="x")
    assert error.subject == "r.md.j2:14"


def test_a_step_is_shown_wherever_it_would_run() -> None:
    for body in (
        "{% if undo %}\n\n" + STEP + "\n{% endif %}\n",
        "{% for a in [1, 2] %}\n\n" + STEP + "\n{% endfor %}\n",
        "{#\n\n" + STEP + "\n#}\n",
    ):
        made = bound(body)
        with pytest.raises(BadInput, match="not shown once"):
            prose_html(made.runbook, made.variables, {}, {})


@pytest.mark.parametrize(
    "body",
    [
        "{% macro m() %}{{ pkg }}{% endmacro %}{{ m() }}",
        "{% set x %}{{ pkg }}{% endset %}{{ x }}",
        "{% filter upper %}{{ pkg }}{% endfilter %}",
        "{% include 'x' %}",
        "[a]({{ pkg }})",
        "[a][b]\n\n[b]: {{ pkg }}",
        "[b]: {{ pkg }}",
        "<https://x.example/{{ pkg }}>",
        "```{{ pkg }}\nx\n```",
    ],
)
def test_data_cannot_be_put_where_it_would_act(body: str) -> None:
    made = bound(body + "\n\n" + STEP)
    for render in (prose_html, prose_markdown):
        with pytest.raises(BadInput):
            render(made.runbook, made.variables, {}, {})


def test_prose_error_names_the_line() -> None:
    made = bound("\nfine\n\n{{ plan.nope }}\n\n" + STEP)
    with pytest.raises(BadInput) as caught:
        prose_html(made.runbook, made.variables, {}, {})
    assert caught.value.subject == "r.md.j2:14"


PROSE = (
    "# About {{ pkg }}\n\n{{ pkg }} and *{{ pkg }}*\n\n- {{ pkg }}\n\n"
    "`{{ pkg }}`\n\n| a | b |\n|---|---|\n| {{ pkg }} | x |\n\n```text\n{{ pkg }}\n```\n\n"
)


@given(st.one_of(st.sampled_from(HOSTILE), st.text(), st.text(alphabet="<>&\"'`[]()!*_#|\\\n-: a")))
def test_data_never_becomes_html(text: str) -> None:
    plain, real = bound(PROSE + QUIET), bound(PROSE + QUIET, pkg=text)
    harmless = page(prose_html(plain.runbook, plain.variables, {}, {}))
    found = page(prose_html(real.runbook, real.variables, {}, {}))
    assert found.tags == harmless.tags
    assert found.data == [visible(text)] * 7


@given(st.one_of(st.sampled_from(HOSTILE), st.text(), st.text(alphabet="<>&\"'`[]()!*_#|\\\n-: a")))
def test_data_never_becomes_markdown(text: str) -> None:
    body = PROSE.replace("| {{ pkg }} |", "| x |") + QUIET
    # Emphasis right around a code span depends on what stands next to it, so none here.
    made = bound(body.replace("*", ""), pkg=text)
    result = prose_markdown(made.runbook, made.variables, {}, {})
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    kinds = {
        token.type for block in reader.parse(result) for token in [block, *(block.children or [])]
    }
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open", "hr"}
    assert result.count("## About") == 1


def test_an_odd_backtick_beside_data_is_refused() -> None:
    made = bound("a ` {{ pkg }}\n\n" + STEP, pkg="x` <b>bold</b>")
    with pytest.raises(BadInput, match="become Markdown"):
        prose_markdown(made.runbook, made.variables, {}, {})
    assert "<b>" not in prose_html(made.runbook, made.variables, {}, {})


@given(st.text(min_size=1))
def test_code_span_holds_its_text(text: str) -> None:
    span = code_span(text)
    html = MarkdownIt("commonmark", {"html": True}).renderInline(f"a {span} b")
    assert html.startswith("a <code>")
    assert html.count("<code>") == 1
    assert html.endswith("</code> b")


def test_prose_has_no_outside_requests() -> None:
    made = bound('![x](http://192.0.2.1/x.png) <img src="http://192.0.2.1/"> <b>\n\n' + STEP)
    tags = {tag for tag, _ in page(prose_html(made.runbook, made.variables, {}, {})).tags}
    assert tags <= {"p", "a", "strong"}
