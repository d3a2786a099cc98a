"""Numbers, times and sizes as Slurm writes them. Unknown is a value: never 0, never 1970."""

from __future__ import annotations

import re
from typing import Any, Literal

Amount = int | Literal["unlimited"] | None
"""A number; `unlimited`; or None when it is not known."""

_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(?:\.\d+)?\Z", re.ASCII)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)\Z", re.ASCII)
_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_UNKNOWN_TIMES = frozenset({"", "INVALID", "N/A", "Partition_Limit", "NOT_SET", "None", "Unknown"})
_MEM_PER_CPU = 0x80000000
_NO_VALUES = frozenset({0xFFFFFFFE, 0xFFFFFFFFFFFFFFFE})
_INFINITES = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFD})


def number(value: Any) -> Amount:
    """Read a number of the JSON: plain, null, or an object `{set, infinite, number}`.

    `infinite` counts even where `set` is false, as some versions write it. Slurm's own marks
    for no value and for infinite, where they leak, are understood as well.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, dict):
        if value.get("infinite") is True:
            return "unlimited"
        if value.get("set") is False:
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no number")
    if value in _NO_VALUES:
        return None
    return "unlimited" if value in _INFINITES else value


def instant(value: Any) -> int | None:
    """Read a moment of the JSON, in seconds since 1970; 0 and infinite mean none.

    Raises:
        ValueError: it is no number.
    """
    found = number(value)
    return found if isinstance(found, int) and found > 0 else None


def minutes(value: Any) -> Amount:
    """Read a number of minutes of the JSON, and return it in seconds.

    Raises:
        ValueError: it is no number.
    """
    found = number(value)
    return found * 60 if isinstance(found, int) else found


def duration(text: str) -> Amount:
    """Read `days-hours:minutes:seconds` in any of its shorter forms; in seconds.

    `47:11` is minutes and seconds, `30` is minutes, `1-12` is days and hours. A limit that is
    the partition's is not known from the job alone.

    Raises:
        ValueError: it is no duration.
    """
    if text == "UNLIMITED":
        return "unlimited"
    if text in _UNKNOWN_TIMES:
        return None
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(f"{text[:100]!r} is no duration")
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minute, second = (*parts, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minute * 60 + second
    if len(parts) == 1:
        return parts[0] * 60
    hours, minute, second = parts if len(parts) == 3 else (0, *parts)
    return hours * 3600 + minute * 60 + second


def memory(text: str, cpus: int, nodes: int) -> int | None:
    """Read a job's requested memory and return it in MiB for the whole job.

    `n` at the end is per node, `c` per CPU. In dumps of some versions the flag for per CPU,
    2^31, stands in the number itself, whatever the letter says.

    Raises:
        ValueError: it is no amount of memory.
    """
    if text in ("", "0", "?", "N/A"):
        return None
    found = _MEMORY.match(text)
    if found is None:
        raise ValueError(f"{text[:100]!r} is no amount of memory")
    amount, unit, per = float(found.group(1)), found.group(2), found.group(3)
    if amount >= _MEM_PER_CPU:
        amount, per = amount - _MEM_PER_CPU, "c"
        if amount >= _MEM_PER_CPU:
            return None
    mib = int(amount * _MIB[unit])
    return mib * {"c": cpus, "n": nodes, "": 1}[per]
