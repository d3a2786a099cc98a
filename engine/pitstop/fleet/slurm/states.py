"""States of nodes and jobs: one base, and flags beside it. The flag is not the state.

Words and flags as in Slurm's sources, 22.05 to 26.05 (`node_state_string`, `job_state_string`)
and in sinfo's manual, NODE STATE CODES.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

UNKNOWN = "UNKNOWN"

NODE_BASES = frozenset({UNKNOWN, "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
NODE_FLAGS = frozenset(
    {
        *("RESERVED", "UNDRAIN", "CLOUD", "RESUME", "DRAIN", "COMPLETING", "NOT_RESPONDING"),
        *("POWERED_DOWN", "FAIL", "POWERING_UP", "MAINTENANCE", "REBOOT_REQUESTED"),
        *("REBOOT_CANCELED", "POWERING_DOWN", "DYNAMIC_FUTURE", "REBOOT_ISSUED", "PLANNED"),
        *("INVALID_REG", "POWER_DOWN", "POWER_UP", "POWER_DRAIN", "DYNAMIC_NORM", "BLOCKED"),
        "EXTERNAL",
    }
)
JOB_BASES = frozenset(
    {
        *(UNKNOWN, "PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED"),
        *("TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
    }
)
JOB_FLAGS = frozenset(
    {
        *("LAUNCH_FAILED", "UPDATE_DB", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING"),
        *("CONFIGURING", "COMPLETING", "STOPPED", "RECONFIG_FAIL", "POWER_UP_NODE", "REVOKED"),
        *("REQUEUE_FED", "RESV_DEL_HOLD", "SIGNALING", "STAGE_OUT", "EXPEDITING"),
    }
)

_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_WORDS: dict[str, tuple[str, frozenset[str]]] = {
    word: (base, frozenset(flags))
    for words, base, flags in (
        # sinfo says "drained" of a node without jobs, and "draining" of one that has some.
        (("drained", "drain"), "IDLE", ("DRAIN",)),
        (("draining", "drng"), "MIXED", ("DRAIN",)),
        (("completing", "comp"), "IDLE", ("COMPLETING",)),
        (("fail",), "IDLE", ("FAIL",)),
        (("failing", "failg"), "MIXED", ("FAIL",)),
        (("maint", "maintenance"), "IDLE", ("MAINTENANCE",)),
        (("reserved", "resv"), "IDLE", ("RESERVED",)),
        (("planned", "plnd"), "IDLE", ("PLANNED",)),
        (("blocked",), "IDLE", ("BLOCKED",)),
        (("powered_down", "pow_dn"), "IDLE", ("POWERED_DOWN",)),
        (("powering_down",), "IDLE", ("POWERING_DOWN",)),
        (("powering_up", "pow_up"), "IDLE", ("POWERING_UP",)),
        (("power_down",), "IDLE", ("POWER_DOWN",)),
        (("inval",), UNKNOWN, ("INVALID_REG",)),
        (("no_respond",), UNKNOWN, ("NOT_RESPONDING",)),
        (("reboot", "boot"), UNKNOWN, ("REBOOT_ISSUED",)),
        (("allocated", "alloc"), "ALLOCATED", ()),
        (("mixed", "mix"), "MIXED", ()),
        (("unk",), UNKNOWN, ()),
        (("futr",), "FUTURE", ()),
    )
    for word in words
}

_HOLDS_NODE = frozenset(
    {"COMPLETING", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
)


@dataclass(frozen=True, slots=True)
class NodeState:
    """What Slurm says of a node.

    Attributes:
        strange: words that this version of pitstop does not know. Such a node is never
            taken for empty.
    """

    base: str
    flags: frozenset[str] = frozenset()
    strange: frozenset[str] = frozenset()

    @property
    def has_jobs(self) -> bool | None:
        """Whether jobs hold it; None when that cannot be told.

        Of a node that is down or does not answer Slurm drops the jobs without having seen
        their processes end.
        """
        if self.base in ("ALLOCATED", "MIXED") or "COMPLETING" in self.flags:
            return True
        told = self.base == "IDLE" and self.reachable and not self.strange
        return False if told else None

    @property
    def drained(self) -> bool:
        """Whether nothing starts there any more and nothing is left: not the flag alone."""
        return "DRAIN" in self.flags and self.has_jobs is False

    @property
    def reachable(self) -> bool:
        """Whether its daemon answers, as far as Slurm knows."""
        return "NOT_RESPONDING" not in self.flags

    @property
    def powered_down(self) -> bool:
        """Whether it is off, or about to be."""
        return bool(self.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})

    @property
    def reboot(self) -> str:
        """`requested` (it may work on until then), `issued`, or empty."""
        if "REBOOT_ISSUED" in self.flags:
            return "issued"
        return "requested" if "REBOOT_REQUESTED" in self.flags else ""

    def __str__(self) -> str:
        return "+".join((self.base, *sorted(self.flags | self.strange)))


@dataclass(frozen=True, slots=True)
class JobState:
    """What Slurm says of a job; `strange` as in `NodeState`."""

    base: str
    flags: frozenset[str] = frozenset()
    strange: frozenset[str] = frozenset()

    @property
    def holds_node(self) -> bool:
        """Whether processes of it may be on its nodes. What is not understood does."""
        active = self.base in ("RUNNING", "SUSPENDED", UNKNOWN)
        return active or bool(self.flags & _HOLDS_NODE or self.strange)

    @property
    def runs(self) -> bool:
        """Whether it runs, or is stopped for a while, and nothing is about to end it."""
        return self.base in ("RUNNING", "SUSPENDED") and not self.strange | (
            self.flags & {"COMPLETING", "CONFIGURING", "POWER_UP_NODE"}
        )

    @property
    def over(self) -> bool:
        """Whether it has ended and does not start again. What is not understood has not."""
        again = {"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "COMPLETING"}
        active = self.base in ("PENDING", "RUNNING", "SUSPENDED", UNKNOWN)
        return not (active or self.strange or self.flags & again)

    def __str__(self) -> str:
        return "+".join((self.base, *sorted(self.flags | self.strange)))


def node_state(state: Any, flags: Any = ()) -> NodeState:
    """Read a node's state from JSON (a list; or a word and a list of flags) or from scontrol.

    Raises:
        ValueError: it is neither, names two bases, or has a suffix that is not known.
    """
    words = [*_texts(state), *_texts(flags)]
    bases: list[str] = []
    known: set[str] = set()
    strange: set[str] = set()
    for text in words:
        word, suffixes = _without_suffixes(text)
        known |= suffixes
        upper = word.upper()
        if upper in NODE_BASES:
            bases.append(upper)
        elif upper in NODE_FLAGS:
            known.add(upper)
        elif word.lower() in _WORDS:
            base, implied = _WORDS[word.lower()]
            known |= _implied(implied, suffixes)
            if base != UNKNOWN:
                bases.append(base)
        else:
            strange.add(upper)
    if not words or len(set(bases)) > 1:
        raise ValueError(f"{state!r} is no state of a node")
    return NodeState(bases[0] if bases else UNKNOWN, frozenset(known), frozenset(strange))


def sinfo_state(word: str) -> NodeState:
    """Read a node's state as sinfo prints it (`%T` or `%t`): one word and suffixes.

    Raises:
        ValueError: the word or a suffix is not known.
    """
    plain, suffixes = _without_suffixes(word)
    found = _WORDS.get(plain.lower())
    if found is None and plain.upper() in NODE_BASES:
        found = (plain.upper(), frozenset())
    if found is None:
        raise ValueError(f"{word!r} is no state of a node")
    base, implied = found
    return NodeState(base, _implied(implied, suffixes) | suffixes)


def job_state(state: Any, flags: Any = ()) -> JobState:
    """Read a job's state from JSON (a word, or a list of a state and flags) or from text.

    Raises:
        ValueError: it is neither, or names two states.
    """
    # sacct: CANCELLED by 10001
    words = [text.partition(" by ")[0].upper() for text in (*_texts(state), *_texts(flags))]
    bases = {word for word in words if word in JOB_BASES}
    known = {word for word in words if word in JOB_FLAGS}
    if not words or len(bases) > 1:
        raise ValueError(f"{state!r} is no state of a job")
    strange = frozenset(words) - bases - known
    return JobState(bases.pop() if bases else UNKNOWN, frozenset(known), strange)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [word.strip() for word in value.split("+") if word.strip()]
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return [word.strip() for word in value if word.strip()]
    raise ValueError(f"{value!r} is no state")


def _without_suffixes(text: str) -> tuple[str, frozenset[str]]:
    word = text.rstrip("".join(_SUFFIXES))
    if not word.replace("_", "").isalnum():
        raise ValueError(f"{text!r} has a suffix that is not known")
    return word, frozenset(_SUFFIXES[character] for character in text[len(word) :])


def _implied(flags: frozenset[str], suffixes: frozenset[str]) -> frozenset[str]:
    """`reboot@` is asked for, `reboot^` and a plain `reboot` are under way."""
    return flags - {"REBOOT_ISSUED"} if "REBOOT_REQUESTED" in suffixes else flags
