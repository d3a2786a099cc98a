"""Text for people: data made visible and bounded, numbers and times made readable. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

OUTPUT_LIMIT = 8192
"""Characters of a command's output that a report shows: half from each end."""

_JOINERS = "\u200c\u200d"  # part of ordinary writing: Persian, Indic scripts, emoji
# Spelt out: a report must not depend on the locale it is made in.
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str, keep: str = "\n\t") -> str:
    """Replace every character that acts instead of showing.

    Control characters become their pictures (ESC is `␛`), direction marks and other
    invisible characters their code point, such as `⟨U+202E⟩`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _picture(c) for c in text)


def _picture(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    hidden = unicodedata.category(char) in _INVISIBLE and char not in _JOINERS
    return f"⟨U+{code:04X}⟩" if hidden or noncharacter else char


def bounded(text: str, limit: int) -> str:
    """Return at most about `limit` characters: both ends, and how much is left out."""
    if len(text) <= limit:
        return text
    half = max(1, limit // 2)
    left = len(text) - 2 * half
    return f"{text[:half]}[… {left} characters left out …]{text[-half:]}"


def one_line(text: str, limit: int = 2000) -> str:
    """Return bounded text in which line breaks and tabs are visible, too."""
    return visible(bounded(text, limit), keep="")


def quoted(command: Sequence[str], limit: int = 4000) -> str:
    """Show a command as the list it is: each argument in quotes, so that none can hide.

    Not a shell line on purpose: nothing was ever given to a shell.
    """
    parts = []
    for argument in command:
        shown = one_line(argument, limit).replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'"{shown}"')
    return bounded("[" + ", ".join(parts) + "]", 4 * limit)


def seconds(value: float | None) -> str:
    """Return a duration: `0.48 s`, `12.3 s`, `4 min 05 s`, `2 h 03 min`."""
    if value is None:
        return "–"
    if value < 9.995:
        return f"{value:.2f} s"
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    minutes = round(value / 60)
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")


def size(value: int | None) -> str:
    """Return a number of bytes: `352.1 MB`."""
    if value is None:
        return "–"
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.95 or unit == "TB":
            return f"{value} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("unreachable")  # pragma: no cover


def parse_time(text: str) -> datetime | None:
    """Return an RFC 3339 time in UTC; None where the text is none or has no offset."""
    try:
        time = datetime.fromisoformat(text)
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def readable_time(text: str) -> str:
    """Return `3 Nov 2026, 02:11:04 UTC`; what cannot be read is shown as it stands."""
    time = parse_time(text)
    if time is None:
        return text
    return f"{time.day} {_MONTHS[time.month - 1]} {time.year}, {time:%H:%M:%S} UTC"


def rfc3339(text: str) -> str:
    """Return the time as RFC 3339 in UTC with `Z`; what cannot be read as it stands."""
    time = parse_time(text)
    return text if time is None else time.isoformat().replace("+00:00", "Z")
