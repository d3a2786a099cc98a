"""The environment that pages and Markdown are rendered in.

Whatever a template puts out goes through `finalize`: it is made visible and bounded, then
escaped. A template cannot forget it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from jinja2 import Environment, FunctionLoader, StrictUndefined, Undefined
from markupsafe import Markup

from pitstop.report.prose import code_span
from pitstop.report.text import (
    bounded,
    one_line,
    quoted,
    readable_time,
    rfc3339,
    seconds,
    size,
    visible,
)
from pitstop.templates import report_template

LIMIT = 20_000
"""Characters of any one value; what is shown longer was bounded before, with its size."""


class Plain(str):
    """Markdown that pitstop made itself; everything else becomes a code span."""

    __slots__ = ()


@cache
def html_environment() -> Environment:
    """Return the environment of the HTML pages."""
    return _environment(_html, autoescape=True)


@cache
def markdown_environment() -> Environment:
    """Return the environment of Markdown documents: each value is a code span."""
    environment = _environment(_markdown, autoescape=False)
    environment.filters["plain"] = lambda value: Plain(visible(str(value)))
    return environment


def _environment(finalize: Callable[[object], object], autoescape: bool) -> Environment:
    environment = Environment(
        loader=FunctionLoader(report_template),
        undefined=StrictUndefined,
        autoescape=autoescape,  # noqa: S701 - off for Markdown alone, whose finalize escapes
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seconds=seconds,
        size=size,
        readable_time=readable_time,
        rfc3339=rfc3339,
        quoted=quoted,
        one_line=one_line,
    )
    return environment


def _html(value: object) -> object:
    if isinstance(value, Undefined | Markup):
        return value
    return "–" if value is None else visible(bounded(str(value), LIMIT))


def _markdown(value: object) -> object:
    if isinstance(value, Undefined | Plain):
        return value
    if value is None:
        return "–"
    return code_span(str(value)) if isinstance(value, str) else str(value)
