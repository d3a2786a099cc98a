"""A runbook: parsed into front matter, step blocks and prose, then bound to values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import RootModel, TypeAdapter, ValidationError

from pitstop.model.base import Name
from pitstop.model.errors import BadInput
from pitstop.model.plan import RunbookRef
from pitstop.model.runbook import FrontMatter, RunbookStep
from pitstop.model.yamltext import MAX_CHARACTERS, load_model
from pitstop.report.blocks import find_blocks, line_map, line_of, split_front_matter
from pitstop.report.sandbox import RENDER_ERRORS, RESERVED, parse, plain, render_scalar

LITERAL_KEYS = ("step", "kind", "phase")
"""Keys of a step that cannot be templates: which steps there are never depends on data."""

Path = tuple[int | str, ...]


class _Raw(RootModel[dict[str, Any]]):
    """A step block before its values are put in."""


@dataclass(frozen=True, slots=True)
class StepBlock:
    """One step block, not yet rendered.

    Attributes:
        first: index of its first line (the opening fence), from 0; `end` is one past it.
        data: the YAML's data.
        lines: line in the file of every value in it.
    """

    name: str
    first: int
    end: int
    data: dict[str, Any]
    lines: dict[Path, int]


@dataclass(frozen=True, slots=True)
class Runbook:
    """A parsed runbook.

    Attributes:
        origin: file name for messages.
        digest: SHA-256 of the source.
        body: the source with the front matter's lines emptied, so that line numbers hold.
        front_lines: line in the file of every value of the front matter.
    """

    origin: str
    source: str
    digest: str
    front: FrontMatter
    blocks: tuple[StepBlock, ...]
    body: str
    front_lines: dict[Path, int]

    @property
    def variables(self) -> frozenset[str]:
        """The names a run may give values to."""
        return frozenset(self.front.variables) | frozenset(self.front.required)


@dataclass(frozen=True, slots=True)
class BoundRunbook:
    """A runbook with its values: what will really be run.

    Attributes:
        variables: the values used, defaults included.
    """

    runbook: Runbook
    steps: tuple[RunbookStep, ...]
    changes: dict[str, str]
    variables: dict[str, Any]

    def ref(self, name: str) -> RunbookRef:
        """Return what a plan keeps of it, the source included."""
        return RunbookRef(
            name=name,
            title=self.runbook.front.title,
            digest=self.runbook.digest,
            source=self.runbook.source,
            risk=self.runbook.front.risk,
            variables=self.variables,
            changes=self.changes,
            steps=self.steps,
        )


def digest_source(source: str) -> str:
    """Return the digest of a runbook's text."""
    return "sha256:" + hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def parse_runbook(source: str, origin: str) -> Runbook:
    """Parse and check everything that can be checked without values.

    Raises:
        BadInput: the subject is `file:line`, the cause names the field.
    """
    if len(source) > MAX_CHARACTERS:
        raise BadInput(f"{origin}:1", f"longer than {MAX_CHARACTERS} characters")
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    head, after = split_front_matter(text, origin)
    front = load_model(FrontMatter, head, origin, 2)
    body = "\n" * after + "\n".join(text.split("\n")[after:])
    lines = line_map(head, 2)
    runbook = Runbook(origin, source, digest_source(source), front, (), body, lines)
    _check_front(runbook)
    blocks: list[StepBlock] = []
    for raw in find_blocks(body, origin):
        block = _block(raw.text, raw.first, raw.end, runbook)
        if any(block.name == other.name for other in blocks):
            where = f"{origin}:{line_of(block.lines, ('step',))}"
            raise BadInput(where, f"step: there is another step {block.name!r}")
        blocks.append(block)
    if not blocks:
        raise BadInput(f"{origin}:1", "there is no step block", "begin one with ```pitstop")
    return Runbook(origin, source, runbook.digest, front, tuple(blocks), body, lines)


def bind(runbook: Runbook, variables: Mapping[str, object]) -> BoundRunbook:
    """Put values in, each string rendered once, and validate the steps that come out.

    Raises:
        BadInput: a required variable is missing, an unknown one is given, a value does not
            fit; the subject is `file:line` of the runbook.
    """
    values = _values(runbook, variables)
    changes = {}
    for name, template in runbook.front.changes.items():
        where = _front_line(runbook, ("changes", name))
        value = render_scalar(template, values, where, f"changes.{name}")
        if isinstance(value, list | dict):
            raise BadInput(where, f"changes.{name}: one value is expected, not a list or mapping")
        if value is not None:
            changes[name] = str(value)
    steps = tuple(_step(runbook, block, values) for block in runbook.blocks)
    return BoundRunbook(runbook, steps, changes, values)


def _front_line(runbook: Runbook, path: Path) -> str:
    return f"{runbook.origin}:{line_of(runbook.front_lines, path)}"


def _check_front(runbook: Runbook) -> None:
    front = runbook.front
    for kind, names in (("variables", front.variables), ("required", front.required)):
        for index, name in enumerate(names):
            where = _front_line(runbook, (kind, name if kind == "variables" else index))
            if not name.isidentifier() or name.startswith("_") or name in RESERVED:
                raise BadInput(where, f"{kind}.{name}: not a name for a variable")
            if kind == "required" and name in front.variables:
                raise BadInput(where, f"{kind}.{name}: a variable with a default is not required")
    for name, default in front.variables.items():
        _plain(default, _front_line(runbook, ("variables", name)), f"variables.{name}")
    for name, template in front.changes.items():
        line = line_of(runbook.front_lines, ("changes", name))
        parse(template, runbook.origin, line, f"changes.{name}", runbook.variables)


def _block(text: str, first: int, end: int, runbook: Runbook) -> StepBlock:
    origin, line = runbook.origin, first + 2
    try:
        data = load_model(_Raw, text, origin, line).root
    except BadInput as error:
        hint = "a value that begins with '{{' must stand in quotes" if "{{" in text else error.hint
        raise BadInput(error.subject, error.cause, hint) from None
    lines = line_map(text, line)
    for key in data:
        if key not in RunbookStep.model_fields:
            raise BadInput(f"{origin}:{line_of(lines, (key,))}", f"{key}: no such key in a step")
    for key in LITERAL_KEYS:
        if "{" in str(data.get(key, "")):
            raise BadInput(f"{origin}:{line_of(lines, (key,))}", f"{key}: cannot be a template")
    for path, value in _strings(data):
        field = ".".join(map(str, path))
        parse(value, origin, line_of(lines, path), field, runbook.variables)
    try:
        name = TypeAdapter(Name).validate_python(data.get("step"))
    except ValidationError as error:
        where = f"{origin}:{line_of(lines, ('step',))}"
        raise BadInput(where, f"step: {error.errors()[0]['msg']}") from None
    return StepBlock(name, first, end, data, lines)


def _strings(data: Any, path: Path = ()) -> list[tuple[Path, str]]:
    if isinstance(data, str):
        return [(path, data)]
    if isinstance(data, dict):
        return [found for key, item in data.items() for found in _strings(item, (*path, key))]
    if isinstance(data, list):
        return [found for i, item in enumerate(data) for found in _strings(item, (*path, i))]
    return []


def _values(runbook: Runbook, given: Mapping[str, object]) -> dict[str, Any]:
    for name in given:
        if name not in runbook.variables:
            known = ", ".join(sorted(runbook.variables)) or "none"
            raise BadInput(
                _front_line(runbook, ("variables",)),
                f"variables.{name}: this runbook has no such variable",
                f"it has: {known}",
            )
    for index, name in enumerate(runbook.front.required):
        if given.get(name) is None:
            where = _front_line(runbook, ("required", index))
            raise BadInput(where, f"variables.{name}: a value is required and none was given")
    merged = {**runbook.front.variables, **given}
    where = _front_line(runbook, ("variables",))
    return {name: _plain(value, where, f"variables.{name}") for name, value in merged.items()}


def _plain(value: object, where: str, field: str) -> Any:
    try:
        return plain(value)
    except RENDER_ERRORS as error:
        raise BadInput(where, f"{field}: {error}") from None


def _step(runbook: Runbook, block: StepBlock, values: Mapping[str, Any]) -> RunbookStep:
    def render(data: Any, path: Path) -> Any:
        if isinstance(data, str):
            where = f"{runbook.origin}:{line_of(block.lines, path)}"
            return render_scalar(data, values, where, ".".join(map(str, path)))
        if isinstance(data, dict):
            return {key: render(item, (*path, key)) for key, item in data.items()}
        if isinstance(data, list):
            return [render(item, (*path, index)) for index, item in enumerate(data)]
        return data

    rendered = {key: render(item, (key,)) for key, item in block.data.items()}
    # An expression that yields nothing drops its key: how a rollback is left out.
    kept = {key: value for key, value in rendered.items() if value is not None}
    try:
        return RunbookStep.model_validate(kept)
    except ValidationError as error:
        faults = sorted(
            (line_of(block.lines, item["loc"]), ".".join(map(str, item["loc"])), item["msg"])
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        )
        line, field, message = faults[0]
        more = "; ".join(f"line {n}: {where}: {text}" for n, where, text in faults[1:6])
        label = field or f"step {block.name!r}"
        hint = f"also {more}" if more else ""
        raise BadInput(f"{runbook.origin}:{line}", f"{label}: {message}", hint) from None
