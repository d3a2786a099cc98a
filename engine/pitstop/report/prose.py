"""A runbook's prose: Jinja, then Markdown, then data, in this order.

While Jinja and Markdown work, each value is an unguessable token of letters and digits. The
value itself comes in last, escaped. So it can never become Markdown, HTML or a link. Each
step block is a slot, filled with what the plan or the report has to show of that step.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.runtime import Context
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from pitstop.model.errors import BadInput
from pitstop.model.plan import Plan
from pitstop.report.blocks import markdown
from pitstop.report.runbook import Runbook
from pitstop.report.sandbox import RENDER_ERRORS, parse, sandbox, template_line
from pitstop.report.text import bounded, one_line, visible

VALUE_LIMIT = 4000
_ALLOWED = (nodes.Output, nodes.If, nodes.For, nodes.Assign)
_HEADING_SHIFT = 2  # the page has its own first and second level


@dataclass(frozen=True, slots=True)
class _Rendered:
    """Markdown with tokens, and what the tokens stand for."""

    nonce: str
    text: str
    values: tuple[str, ...]

    @property
    def token(self) -> re.Pattern[str]:
        return re.compile(f"v{self.nonce}n([0-9]+)e")

    @property
    def slot(self) -> re.Pattern[str]:
        return re.compile(f"s{self.nonce}n([0-9]+)e")


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Return what prose may say of the plan, as `plan.…`."""
    return {
        "site": plan.site,
        "node": plan.node,
        "title": plan.title,
        "reason": plan.reason,
        "digest": plan.digest,
        "risk": plan.runbook.risk,
        "changes": dict(plan.runbook.changes),
        "workloads": [
            {
                "name": workload.name,
                "shape": workload.shape.value,
                "strategy": workload.strategy.value,
                "reason": workload.reason,
                "description": workload.spec.description,
            }
            for workload in plan.workloads
        ]
        + [
            {
                "name": job.name,
                "shape": job.shape.value,
                "strategy": job.strategy.value,
                "reason": job.reason,
                "description": job.title,
            }
            for job in plan.jobs
        ],
    }


def check_prose(runbook: Runbook) -> None:
    """Check the prose as far as that goes without values.

    Raises:
        BadInput: a syntax error, an undeclared name, or a statement other than if, for, set.
    """
    tree = parse(runbook.body, runbook.origin, 1, "prose", {*runbook.variables, "plan"})
    for statement in tree.find_all(nodes.Stmt):
        if not isinstance(statement, _ALLOWED):
            raise BadInput(
                f"{runbook.origin}:{statement.lineno}",
                f"prose: {type(statement).__name__.lower()} is not possible here",
                "only if, for and set are",
            )


def prose_html(
    runbook: Runbook,
    variables: Mapping[str, Any],
    facts: Mapping[str, Any],
    slots: Mapping[str, Markup],
) -> Markup:
    """Return the prose as HTML, with each step's slot filled.

    Args:
        runbook: the parsed runbook.
        variables: as in `BoundRunbook.variables`.
        facts: what `plan` means in it.
        slots: HTML by step name; a step that is not in it is shown by its name.

    Raises:
        BadInput: the prose cannot be rendered; the subject is `file:line`.
    """
    rendered = _render(runbook, variables, facts)
    parser = markdown()
    tokens = _parsed(parser, rendered, runbook)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + _HEADING_SHIFT)}"
    html = parser.renderer.render(tokens, parser.options, {})

    def slot(match: re.Match[str]) -> str:
        name = runbook.blocks[int(match[1])].name
        return str(slots.get(name, Markup("<p><strong>{}</strong></p>").format(name)))

    def value(match: re.Match[str]) -> str:
        shown = escape(visible(bounded(rendered.values[int(match[1])], VALUE_LIMIT)))
        return f'<bdi class="data">{shown}</bdi>'

    # One pass over both, so that nothing that was put in is looked at again.
    either = re.compile(f"<p>{rendered.slot.pattern}</p>|{rendered.token.pattern}")
    return Markup(  # noqa: S704 - markdown-it's own output; data is escaped above
        either.sub(lambda m: slot(m) if m[1] is not None else value(_last(m, rendered)), html)
    )


def prose_markdown(
    runbook: Runbook,
    variables: Mapping[str, Any],
    facts: Mapping[str, Any],
    slots: Mapping[str, str],
) -> str:
    """Return the prose as Markdown, values in code spans, each step's slot filled.

    Raises:
        BadInput: it cannot be rendered, or a value would change the text's structure (next
            to an odd backtick, say). Then it must not be shown.
    """
    rendered = _render(runbook, variables, facts)
    tokens = _parsed(markdown(), rendered, runbook)
    in_code = {
        int(match[1])
        for token in _walk(tokens)
        if token.type in ("fence", "code_block", "code_inline")
        for match in rendered.token.finditer(token.content)
    }

    lines = rendered.text.split("\n")
    for token in tokens:
        if token.type == "heading_open" and token.map and token.markup.startswith("#"):
            at = token.map[0]
            lines[at] = re.sub("#+", lambda m: "#" * min(6, len(m[0]) + 2), lines[at], count=1)
    outline = "\n".join(lines)

    def fill(harmless: bool) -> str:
        def value(match: re.Match[str]) -> str:
            text = "x" if harmless else rendered.values[int(match[1])]
            if int(match[1]) in in_code:
                return one_line(text, VALUE_LIMIT).replace("`", "ˋ") or "(empty)"
            return code_span(text, VALUE_LIMIT)

        return rendered.token.sub(value, outline)

    text = fill(harmless=False)
    if _structure(text) != _structure(fill(harmless=True)):
        raise BadInput(runbook.origin, "prose: a value stands where it would become Markdown")

    def slot(match: re.Match[str]) -> str:
        name = runbook.blocks[int(match[1])].name
        return f"\n\n{slots.get(name, code_span(name))}\n\n"

    return re.sub(f"\n*{rendered.slot.pattern}\n*", slot, text).strip("\n")


def code_span(text: str, limit: int = 2000) -> str:
    """Return text as a Markdown code span that it cannot leave."""
    shown = one_line(text, limit)
    if not shown.strip():
        return "`(blank)`" if shown else "`(empty)`"
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    pad = " " if "`" in (shown[0], shown[-1]) or shown[0] == shown[-1] == " " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _render(runbook: Runbook, variables: Mapping[str, Any], facts: Mapping[str, Any]) -> _Rendered:
    check_prose(runbook)
    nonce = secrets.token_hex(12)
    values: list[str] = []

    @pass_context  # also keeps Jinja from folding constants: each output has its own token
    def finalize(_: Context, value: object) -> str:
        if isinstance(value, Undefined):
            str(value)  # StrictUndefined raises
        values.append("" if value is None else str(value))
        return f"v{nonce}n{len(values) - 1}e"

    lines = runbook.body.split("\n")
    for index, block in enumerate(runbook.blocks):
        # As many lines as before, so that messages name the right one.
        lines[block.first : block.end] = [
            "",
            f"s{nonce}n{index}e",
            *[""] * (block.end - block.first - 2),
        ]
    try:
        template = sandbox(finalize).from_string("\n".join(lines))
        text = template.render({**variables, "plan": dict(facts)})
    except RENDER_ERRORS as error:
        line = template_line(error)
        where = f"{runbook.origin}:{line}" if line else runbook.origin
        raise BadInput(where, f"prose: {error}") from None
    return _Rendered(nonce, text, tuple(values))


def _parsed(parser: MarkdownIt, rendered: _Rendered, runbook: Runbook) -> list[Token]:
    """Parse, and make sure that all steps are there and no value is part of a link."""
    env: dict[str, Any] = {}
    tokens = parser.parse(rendered.text, env)
    for token in _walk(tokens):
        if rendered.nonce in token.info or any(
            rendered.nonce in str(value) for value in token.attrs.values()
        ):
            raise BadInput(
                runbook.origin, "prose: a value cannot be part of a link or a code block's name"
            )
    if rendered.nonce in str(env.get("references", "")):
        raise BadInput(runbook.origin, "prose: a value cannot be part of a link")
    shown = [
        int(match[1])
        for before, token in pairwise(tokens)
        if before.type == "paragraph_open" and before.level == 0
        if (match := rendered.slot.fullmatch(token.content))
    ]
    if shown != list(range(len(runbook.blocks))):
        wrong = next(
            (b for i, b in enumerate(runbook.blocks) if i >= len(shown) or shown[i] != i),
            runbook.blocks[-1],
        )
        raise BadInput(
            f"{runbook.origin}:{wrong.first + 1}",
            f"step {wrong.name!r} would be run but not shown once, in its place",
            "a step block cannot stand inside an if, a for, a comment or other Markdown",
        )
    return tokens


def _walk(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _walk(token.children or [])


def _structure(text: str) -> list[tuple[str, str]]:
    """Return what a reader that does allow HTML and images would make of the text."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return [(token.type, token.tag) for token in _walk(parser.parse(text))]


def _last(match: re.Match[str], rendered: _Rendered) -> re.Match[str]:
    found = rendered.token.fullmatch(match[0])
    if found is None:  # pragma: no cover - the alternation's second half is that pattern
        raise AssertionError(match[0])
    return found
