"""Generic resources: `gpu:h100:8(S:0-1)`, `gpu:h100:5(IDX:0-3,6)`, `cpu=16,gres/gpu:h100=8`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pitstop.fleet.slurm.hostlist import numbers, terms

_NONE = frozenset({"", "(null)", "N/A"})
_TERM = re.compile(r"([^(]+)(?:\((.*)\))?\Z")
_WORD = re.compile(r"[\w.+-]+\Z", re.ASCII)
_COUNT = re.compile(r"(\d+)([KMGTP]?)\Z", re.ASCII)
_FACTORS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}


@dataclass(frozen=True, slots=True)
class Gres:
    """Some of one resource.

    Attributes:
        indices: which of them, where Slurm says so; None where it does not.
    """

    name: str
    type: str
    count: int
    indices: tuple[int, ...] | None = None


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Read a list of generic resources.

    Raises:
        ValueError: a part of it is not understood. Never fewer GPUs because of that.
    """
    if text in _NONE:
        return ()
    return tuple(_gres(term) for term in terms(text, "()"))


def gpus(resources: tuple[Gres, ...]) -> int:
    """Return how many GPUs are among them."""
    return sum(found.count for found in resources if found.name == "gpu")


def parse_tres(text: str) -> Mapping[str, str]:
    """Read trackable resources, `name=amount` each.

    Raises:
        ValueError: a part of it is not of that form.
    """
    result = {}
    for term in filter(None, text.split(",")) if text not in _NONE else ():
        name, separator, amount = term.partition("=")
        if not separator or not name:
            raise ValueError(f"{term[:100]!r} is not of the form name=amount")
        result[name] = amount
    return result


def tres_gpus(text: str) -> int:
    """Return the GPUs among trackable resources, typed or not.

    `gres/gpu=16,gres/gpu:h100=16` names the same 16 twice.

    Raises:
        ValueError: it is not understood.
    """
    found = parse_tres(text)
    if "gres/gpu" in found:
        return _count(found["gres/gpu"])
    return sum(_count(amount) for name, amount in found.items() if name.startswith("gres/gpu:"))


def requested_gpus(text: str) -> int:
    """Return the GPUs of a request: `gres:gpu:2`, `gres/gpu:h100:2`, `cpu=8,gres/gpu=2`.

    Raises:
        ValueError: it is not understood.
    """
    total = 0
    for term in terms(text, "()") if text not in _NONE else ():
        if not term.startswith("gres"):
            continue  # CPUs, memory and licences, in either form
        total += tres_gpus(term) if "=" in term else gpus(parse_gres(term))
    return total


def _gres(term: str) -> Gres:
    # Slurm writes (null) for the type of what has none.
    found = _TERM.match(term.strip().replace(":(null)", ""))
    if found is None:
        raise ValueError(f"{term[:100]!r} is no generic resource")
    # As requested by a job it is led by `gres:` or `gres/`.
    words = re.sub(r"\Agres[:/]", "", found.group(1)).split(":")
    words = [word for word in words if word != "no_consume"]
    count = _count(words.pop()) if len(words) > 1 and _COUNT.match(words[-1]) else None
    if len(words) > 2 or not all(_WORD.match(word) for word in words):
        raise ValueError(f"{term[:100]!r} is no generic resource")
    # Of shards and the like it holds other things, and there are no devices to tell apart.
    indices = _indices(found.group(2) or "") if words[0] == "gpu" else None
    if count is None:
        count = 1
    return Gres(words[0], words[1] if len(words) == 2 else "", count, indices)


def _indices(inside: str) -> tuple[int, ...] | None:
    """Read `IDX:0-3,6`; a list of sockets, `S:0-1`, names none."""
    if not inside or inside.startswith("S:"):
        return None
    if not inside.startswith("IDX:"):
        raise ValueError(f"({inside[:100]}) is not understood")
    text = inside.removeprefix("IDX:")
    if text == "N/A":
        return ()
    return tuple(int(number) for number in numbers(text))


def _count(text: str) -> int:
    found = _COUNT.match(text)
    if found is None:
        raise ValueError(f"{text[:100]!r} is no count")
    return int(found.group(1)) * _FACTORS[found.group(2)]
