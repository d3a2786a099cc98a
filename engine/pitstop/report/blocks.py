"""Where a runbook's parts lie: front matter, step blocks, and the prose around them."""

from __future__ import annotations

from dataclasses import dataclass

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pitstop.model.errors import BadInput

FENCE = "pitstop"


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A fenced block as it stands.

    Attributes:
        first: index of its opening fence line, from 0.
        end: index of the line after its closing fence.
        text: the YAML inside; its first line has the number `first + 2`, counted from 1.
    """

    first: int
    end: int
    text: str


def markdown() -> MarkdownIt:
    """Return the parser that all of pitstop's Markdown goes through.

    HTML in it is text, and there are no images: a report makes no outside request.
    """
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def split_front_matter(source: str, origin: str) -> tuple[str, int]:
    """Return the front matter's text and the index of the first line after it.

    Raises:
        BadInput: it is missing or not closed.
    """
    lines = source.split("\n")
    if lines[0].rstrip() != "---":
        raise BadInput(
            f"{origin}:1", "a runbook begins with front matter", "put '---' on the first line"
        )
    for index, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:index]) + "\n", index + 1
    raise BadInput(f"{origin}:1", "the front matter is not closed by a line '---'")


def find_blocks(body: str, origin: str) -> tuple[RawBlock, ...]:
    """Find the step blocks of a text whose line numbers are those of the file.

    Raises:
        BadInput: a block that is misspelt, nested, empty or not closed: what looks like a
            step must never be silently left out.
    """
    lines = body.split("\n")
    found = []
    for token in markdown().parse(body):
        if token.type != "fence" or not token.info.strip().casefold().startswith(FENCE):
            continue
        if token.map is None:  # pragma: no cover - markdown-it gives every fence its lines
            continue
        first, end = token.map
        where = f"{origin}:{first + 1}"
        if token.info.strip() != FENCE:
            raise BadInput(where, f"{token.info.strip()!r} is not {FENCE!r}, exactly and alone")
        if token.level != 0:
            raise BadInput(where, "a step block cannot be inside a list or a quotation")
        if not _closed(token, lines[end - 1]) or end - first < 2:
            raise BadInput(where, "the step block is not closed")
        if not token.content.strip():
            raise BadInput(where, "the step block is empty")
        found.append(RawBlock(first, end, token.content))
    return tuple(found)


def _closed(token: Token, last: str) -> bool:
    stripped = last.strip()
    return len(stripped) >= len(token.markup) and set(stripped) == {token.markup[0]}


def line_map(text: str, first_line: int) -> dict[tuple[int | str, ...], int]:
    """Return the file's line of every value in YAML that was already found to be sound."""
    lines: dict[tuple[int | str, ...], int] = {}

    def walk(node: yaml.Node, path: tuple[int | str, ...], line: int) -> None:
        lines[path] = line + first_line
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                walk(value, (*path, str(key.value)), int(key.start_mark.line))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                walk(item, (*path, index), int(item.start_mark.line))

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        walk(root, (), 0)
    return lines


def line_of(lines: dict[tuple[int | str, ...], int], path: tuple[int | str, ...]) -> int:
    """Return the line of a value, or of the nearest one around it that is in the file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
