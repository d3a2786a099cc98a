"""One line of the doctor's answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """A finding about this machine.

    Attributes:
        id: stable, for programs.
        what: what was looked at.
        found: what is there, in words.
        why: what it means for saving a workload.
        fix: the command or setting that changes it; empty where nothing is wrong.
    """

    id: str
    state: CheckState
    what: str
    found: str
    why: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """Return plain data."""
        return {**asdict(self), "state": self.state.value}


def first_line(error: BaseException) -> str:
    """Return an exception as one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
