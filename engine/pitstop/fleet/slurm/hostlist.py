"""Slurm's way to write many host names: `gpu[001-004,010]`, `rack[1-2]n[01-16]`."""

from __future__ import annotations

import re
from collections.abc import Iterator

LIMIT = 100_000
"""Names that one text may stand for; more is no cluster but a mistake or an attack."""

_NONE = frozenset({"", "(null)", "None", "None assigned", "N/A"})
_PLAIN = re.compile(r"[A-Za-z0-9._-]+\Z")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Return the names that a hostlist stands for, in its order, with their zeros.

    Slurm's words for no hosts at all give an empty tuple.

    Raises:
        ValueError: it is not a hostlist, or stands for more than `LIMIT` names.
    """
    if text.strip() in _NONE:
        return ()
    names: list[str] = []
    for term in terms(text.strip(), "[]"):
        for name in _expand_term(term):
            names.append(name)
            if len(names) > LIMIT:
                raise ValueError(f"stands for more than {LIMIT} hosts")
    return tuple(names)


def terms(text: str, brackets: str) -> Iterator[str]:
    """Split a list at the commas outside of brackets, such as `[]`.

    Raises:
        ValueError: a bracket is left open, or closes nothing.
    """
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == brackets[0]) - (character == brackets[1])
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if depth:
        raise ValueError(f"{text[:200]!r}: brackets do not match")
    yield text[start:]


def _expand_term(term: str) -> Iterator[str]:
    before, bracket, rest = term.partition("[")
    if not bracket:
        if not _PLAIN.match(term):
            raise ValueError(f"{term[:200]!r} is no host name")
        yield term
        return
    inside, _, after = rest.partition("]")
    if before and not _PLAIN.match(before):
        raise ValueError(f"{term[:200]!r} is no host name")
    tails = tuple(_expand_term(after)) if after else ("",)
    for number in numbers(inside):
        for tail in tails:
            yield f"{before}{number}{tail}"


def numbers(inside: str) -> Iterator[str]:
    """Expand `001-004,010`, with the zeros.

    Raises:
        ValueError: it is no list of ranges, or one is longer than `LIMIT`.
    """
    for part in inside.split(","):
        found = _RANGE.match(part)
        if found is None:
            raise ValueError(f"{part[:200]!r} is no range")
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) < int(first):
            raise ValueError(f"{part[:200]!r} is a range that runs backwards")
        if int(last) - int(first) >= LIMIT:
            raise ValueError(f"{part[:200]!r} is longer than {LIMIT}")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
