"""The versions a checkpoint is only valid against.

A fingerprint maps a field name such as `driver.version` to a fact. A fact has a value, or
is unknown with a reason: a probe that failed, a field the driver does not give. `none` is a
value (a machine without a GPU has `gpu.count` 0 and `driver.version` none); unknown is not,
and never equals anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HOST_PREFIX = "host."
"""Fields under this prefix may be tolerated by a site's policy; all others never."""

SET_FIELDS = frozenset({"host.cpu"})
"""Fields whose value is a space-separated set; the present set may be larger."""

NONE = "none"
"""The value of a thing that is known to be absent."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value, or the reason why it is unknown."""

    value: str | None
    reason: str = ""

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    def __str__(self) -> str:
        return self.value if self.value is not None else f"unknown ({self.reason or 'no reason'})"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Facts by field name."""

    facts: Mapping[str, Fact] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, str]]:
        """Return plain data: `{"value": …}` or `{"unknown": reason}` for each field."""
        return {
            name: {"value": fact.value} if fact.value is not None else {"unknown": fact.reason}
            for name, fact in sorted(self.facts.items())
        }

    @staticmethod
    def from_json(data: Mapping[str, Mapping[str, Any]]) -> Fingerprint:
        """Rebuild a fingerprint from `to_json`."""
        return Fingerprint(
            {
                name: Fact(str(entry["value"]))
                if "value" in entry
                else Fact(None, str(entry.get("unknown", "")))
                for name, entry in data.items()
            }
        )

    def with_changes(self, changes: Mapping[str, str]) -> Fingerprint:
        """Return what it would be after declared changes."""
        return Fingerprint({**self.facts, **{name: Fact(value) for name, value in changes.items()}})
