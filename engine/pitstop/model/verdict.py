"""The gate's answer: valid or not, with one reason per differing field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pitstop.model.words import Judgement


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not the same, with both values as text."""

    field: str
    saved: str
    present: str
    judgement: Judgement
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.saved} -> {self.present} ({self.judgement}: {self.reason})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of two fingerprints."""

    differences: tuple[Difference, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether a checkpoint may be restored."""
        return all(d.judgement is not Judgement.INVALID for d in self.differences)

    @property
    def invalid(self) -> tuple[Difference, ...]:
        """The differences that forbid a restore."""
        return tuple(d for d in self.differences if d.judgement is Judgement.INVALID)

    def __str__(self) -> str:
        if not self.differences:
            return "valid: nothing differs"
        head = "valid" if self.valid else "invalid"
        return f"{head}: " + "; ".join(str(d) for d in self.differences)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "valid": self.valid,
            "differences": [
                {
                    "field": d.field,
                    "saved": d.saved,
                    "present": d.present,
                    "judgement": d.judgement.value,
                    "reason": d.reason,
                }
                for d in self.differences
            ],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """Rebuild a verdict from `to_json`."""
        return Verdict(
            tuple(
                Difference(
                    field=str(d["field"]),
                    saved=str(d["saved"]),
                    present=str(d["present"]),
                    judgement=Judgement(d["judgement"]),
                    reason=str(d["reason"]),
                )
                for d in data["differences"]
            )
        )
