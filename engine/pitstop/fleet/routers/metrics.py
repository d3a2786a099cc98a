"""Prometheus' text format: the series of one metric, chosen by labels. Pure.

Source: Prometheus documentation, "Exposition formats"; OpenMetrics 1.0 for what may follow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from pitstop.fleet.routers.router import NotUnderstood

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=\}))')
_VALUE = re.compile(r"\s*(\S+)")
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}


def total(text: str, name: str, labels: Mapping[str, str], asked: str) -> float | None:
    """Add up the series of a metric that carry all these labels.

    Returns:
        None where the page knows the metric and has no such series.

    Raises:
        NotUnderstood: the page does not know the metric, or a series has no sound number.
    """
    known, found = False, []
    begins = re.compile(re.escape(name) + r"(?=[\s{])")
    described = re.compile(rf"#\s+(?:TYPE|HELP)\s+{re.escape(name)}\s")
    for line in text.split("\n"):
        known = known or described.match(line) is not None
        start = begins.match(line)
        if start is None:
            continue
        known = True
        carried, position = _labels(line, start.end(), asked)
        if any(carried.get(label) != value for label, value in labels.items()):
            continue
        found.append(_number(line, position, asked))
    if not known:
        raise NotUnderstood(asked, f"there is no metric {name}")
    return sum(found) if found else None


def _labels(line: str, position: int, asked: str) -> tuple[dict[str, str], int]:
    """Return a series' labels, and where its value begins."""
    rest = line[position:].lstrip()
    position = len(line) - len(rest)
    labels: dict[str, str] = {}
    if not rest.startswith("{"):
        return labels, position
    position += 1
    while (found := _LABEL.match(line, position)) is not None:
        labels[found.group(1)] = re.sub(
            r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(0)), found.group(2)
        )
        position = found.end()
    end = re.compile(r"\s*\}").match(line, position)
    if end is None:
        raise NotUnderstood(asked, f"labels are not understood: {line[:200]!r}")
    return labels, end.end()


def _number(line: str, position: int, asked: str) -> float:
    found = _VALUE.match(line, position)
    try:
        value = float(found.group(1) if found else "")
    except ValueError:
        raise NotUnderstood(asked, f"no number: {line[:200]!r}") from None
    # NaN is not > 0, and yet not idle.
    if not 0 <= value <= sys.float_info.max:
        raise NotUnderstood(asked, f"no number of requests: {line[:200]!r}")
    return value
