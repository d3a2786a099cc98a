"""The one place where templates of runbooks meet data.

Data is only ever a value. A template is rendered once, with no globals, in Jinja's immutable
sandbox; the result is never read as a template, as YAML or as a list of words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pitstop.model.errors import BadInput

RESERVED = frozenset({"plan", "loop", "self", "caller", "varargs", "kwargs"})
RENDER_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What an expression may raise; anything else is a bug and passes through."""

_VALUE = "pitstop_value"


def sandbox(finalize: Callable[..., Any] | None = None) -> ImmutableSandboxedEnvironment:
    """Return an environment that knows nothing but its filters and the values given."""
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        autoescape=False,  # output is a command or a placeholder, never HTML
        keep_trailing_newline=True,
        finalize=finalize,
    )
    environment.globals.clear()
    return environment


def parse(text: str, origin: str, line: int, field: str, known: Collection[str]) -> nodes.Template:
    """Parse a template and refuse names that nobody declared.

    Raises:
        BadInput: a syntax error, or an unknown name. `line` is that of the text's first line.
    """
    try:
        tree = sandbox().parse(text)
        unknown = sorted(meta.find_undeclared_variables(tree) - set(known))
    except TemplateSyntaxError as error:
        raise BadInput(
            f"{origin}:{line + error.lineno - 1}", f"{field}: not a template: {error.message}"
        ) from None
    if unknown:
        first = next(n.lineno for n in tree.find_all(nodes.Name) if n.name == unknown[0])
        raise BadInput(
            f"{origin}:{line + first - 1}",
            f"{field}: {unknown[0]!r} is not a variable of this runbook",
            "declare it under variables (with a default) or required",
        )
    return tree


def render_scalar(text: str, values: Mapping[str, object], where: str, field: str) -> Any:
    """Render one string of a step block or of `changes`.

    A string that is exactly one `{{ expression }}` becomes the expression's value, a list
    for instance; any other becomes text, into which only text and numbers may be put.

    Raises:
        BadInput: with `where` (file:line) and the field.
    """
    if "{" not in text:
        return text
    environment = sandbox(_text_only)
    try:
        tree = environment.parse(text)
        expression = _only_expression(tree)
        if expression is None:
            return environment.from_string(tree).render(values)
        target = nodes.Name(_VALUE, "store", lineno=1)
        program = nodes.Template([nodes.Assign(target, expression, lineno=1)], lineno=1)
        program.set_environment(environment)
        result = getattr(environment.from_string(program).make_module(dict(values)), _VALUE)
        if isinstance(result, Undefined):
            str(result)  # StrictUndefined raises its own message
        return plain(result)
    except RENDER_ERRORS as error:
        raise BadInput(where, f"{field}: {error}") from None


def plain(value: object) -> Any:
    """Return a copy made of plain data only.

    Raises:
        TypeError: something else, such as a date that was not quoted.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError("a number must be finite")
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key must be text")
        return {str(key): plain(item) for key, item in value.items()}
    raise TypeError(f"a value of type {type(value).__name__} is not plain data (quote it?)")


def template_line(error: BaseException) -> int | None:
    """Return the template's line in which a rendering error happened."""
    line, entry = None, error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == "<template>":
            line = entry.tb_lineno
        entry = entry.tb_next
    return line


def _only_expression(tree: nodes.Template) -> nodes.Expr | None:
    """Return the expression if the whole template is one `{{ }}` and nothing around it."""
    if len(tree.body) == 1 and isinstance(tree.body[0], nodes.Output):
        parts = tree.body[0].nodes
        if len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData):
            return parts[0]
    return None


def _text_only(value: object) -> object:
    if isinstance(value, Undefined | str | int | float):
        return value
    kind = "nothing (null)" if value is None else f"a {type(value).__name__}"
    raise TypeError(
        f"{kind} cannot be put into a text; a list must be the whole value: '{{{{ name }}}}'"
    )
