"""YAML text to models, with file, line and field in every complaint. No I/O here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from pitstop.model.errors import BadInput

MAX_CHARACTERS = 5_000_000
MAX_NODES = 500_000
MAX_DEPTH = 64

_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

M = TypeVar("M", bound=BaseModel)


def load_model(kind: type[M], text: str, source: str, first_line: int = 1) -> M:
    """Parse YAML into a model.

    Args:
        kind: the model.
        text: the YAML.
        source: file name for messages.
        first_line: line of the file on which the text begins.

    Raises:
        BadInput: not YAML, a duplicate or unknown key, a wrong value. The subject is
            `file:line`, the cause names the field. All faults are listed, first one first.
    """
    root = _compose(text, source, first_line)
    data = _construct(root, source, first_line)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # An unknown key first: it is often the misspelt twin of one that is "missing".
        found = sorted(
            error.errors(include_url=False, include_input=False, include_context=False),
            key=lambda e: (e["type"] != "extra_forbidden", _line_of(root, e["loc"])),
        )
        faults = [
            (_line_of(root, e["loc"]) + first_line, _field(e["loc"]), _message(e)) for e in found
        ]
        line, where, message = faults[0]
        more = "; ".join(f"line {n}: {w}: {m}" for n, w, m in faults[1:6])
        rest = f" (and {len(faults) - 6} more)" if len(faults) > 6 else ""
        raise BadInput(
            f"{source}:{line}", f"{where}: {message}", f"also {more}{rest}" if more else ""
        ) from None


def _message(error: Mapping[str, Any]) -> str:
    return "unknown key" if error["type"] == "extra_forbidden" else str(error["msg"])


def _compose(text: str, source: str, first_line: int) -> yaml.Node:
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"{source}:{first_line}", f"longer than {MAX_CHARACTERS} characters")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = (mark.line if mark else 0) + first_line
        raise BadInput(f"{source}:{line}", f"not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{source}:{first_line}", f"not YAML: {error}") from None
    if root is None:
        raise BadInput(f"{source}:{first_line}", "empty")
    if not isinstance(root, yaml.MappingNode):
        raise BadInput(f"{source}:{_line(root) + first_line}", "a mapping is expected at the top")
    return root


def _construct(root: yaml.Node, source: str, first_line: int) -> Any:
    """Build plain data, refusing duplicate keys, aliases that multiply, and deep nesting."""
    loader = yaml.SafeLoader("")
    count = 0

    def build(node: yaml.Node, depth: int) -> Any:
        nonlocal count
        count += 1
        where = f"{source}:{_line(node) + first_line}"
        if count > MAX_NODES:
            raise BadInput(where, f"more than {MAX_NODES} values (aliases included)")
        if depth > MAX_DEPTH:
            raise BadInput(where, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN:
            raise BadInput(where, f"cannot be read: a tag that means nothing here: {node.tag}")
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                at = f"{source}:{_line(key_node) + first_line}"
                if not isinstance(key_node, yaml.ScalarNode):
                    raise BadInput(at, "a key must be a plain text")
                key = str(key_node.value)
                if not _writable(key):
                    raise BadInput(at, f"{key!r} holds half of a character")
                if key_node.tag == "tag:yaml.org,2002:merge":
                    raise BadInput(at, "merge keys (<<) are not supported")
                if key in result:
                    raise BadInput(at, f"{key}: the key is there twice")
                result[key] = build(value_node, depth + 1)
            return result
        if isinstance(node, yaml.SequenceNode):
            return [build(item, depth + 1) for item in node.value]
        try:
            return _scalar(loader, node)
        except (yaml.YAMLError, ValueError) as error:
            raise BadInput(where, f"cannot be read: {error}") from None

    return build(root, 0)


def _scalar(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """Return a scalar's value.

    Raises:
        ValueError: it has none that could be written down again.
    """
    try:
        value = loader.construct_object(node)
    except (LookupError, AttributeError):
        # What PyYAML ends with for a text that its tag does not fit, such as `!!int ""`.
        raise ValueError(f"{str(node.value)[:40]!r} is not a {node.tag}") from None
    if isinstance(value, str) and not _writable(value):
        raise ValueError("it holds half of a character")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def _writable(text: str) -> bool:
    """Whether a text has a byte form; `"\\ud800"` in YAML is a text that has none."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line)


def _line_of(root: yaml.Node, loc: tuple[int | str, ...]) -> int:
    """Follow pydantic's location as far as it goes; point at the key where there is one."""
    node, line = root, _line(root)
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if pair is None:
                break
            line, node = _line(pair[0]), pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = _line(node)
        else:
            break
    return line


def _field(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc) or "(top)"
