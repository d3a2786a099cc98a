"""One finding of the scan."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Blocker:
    """One finding: what, where, why it blocks, and what to do about it."""

    what: str
    where: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what} at {self.where}: {self.why}; {self.fix}"

    def to_json(self) -> dict[str, str]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Kind:
    """What findings of one kind have in common.

    Attributes:
        what: a short name, the same in every finding; never changes.
        why: the reason, with the public place that reports it or the program that refuses it.
        fix: what a person can do.
    """

    what: str
    why: str
    fix: str

    def at(self, where: str, detail: str = "") -> Blocker:
        """Return a finding of this kind; `detail` is said before the reason."""
        return Blocker(self.what, where, f"{detail}: {self.why}" if detail else self.why, self.fix)
