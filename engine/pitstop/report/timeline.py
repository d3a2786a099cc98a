"""The timeline: from journal events to bars. Pure geometry; positions are percentages.

A node's lane shows what was done to the node. A workload's lane shows what its users saw:
serving, draining, out of service (`frozen` with its memory kept, `stopped` without) and
serving again; the steps that worked on it lie on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pitstop.model.event import Event
from pitstop.model.result import WorkloadResult
from pitstop.report import pick
from pitstop.report.text import parse_time
from pitstop.report.text import seconds as duration

BarKind = Literal[
    "serving",
    "draining",
    "frozen",
    "stopped",
    "checkpoint",
    "transfer",
    "stop",
    "wait",
    "signal",
    "requeue",
    "release",
    "evict",
    "gate",
    "restore",
    "cold_start",
    "precheck",
    "maintain",
    "rollback",
    "validate",
    "return_to_service",
    "quarantine",
    "other",
]

_STEP_KINDS: dict[str, BarKind] = {
    "drain": "draining",
    "checkpoint": "checkpoint",
    "transfer": "transfer",
    "stop": "stop",
    "wait": "wait",
    "signal": "signal",
    "requeue": "requeue",
    "release": "release",
    "evict": "evict",
    "gate": "gate",
    "restore": "restore",
    "cold_start": "cold_start",
    "precheck": "precheck",
    "maintain": "maintain",
    "rollback": "rollback",
    "validate": "validate",
    "return_to_service": "return_to_service",
    "quarantine": "quarantine",
}
_BARS = 200
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600)


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time on a lane.

    Attributes:
        start: seconds after the run's first event.
        end: likewise.
        failed: the step failed.
        open: no end was recorded; it is drawn to the run's last event.
    """

    kind: BarKind
    start: float
    end: float
    attempt: int = 0
    failed: bool = False
    open: bool = False

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Lane:
    """The bars of one node or workload; `states` lie under `steps`.

    Attributes:
        left_out: bars in the middle that are not drawn, so that a picture stays one.
    """

    name: str
    is_node: bool
    states: tuple[Bar, ...]
    steps: tuple[Bar, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the time axis."""

    seconds: float
    percent: float

    @property
    def label(self) -> str:
        """What stands at the mark."""
        if not self.seconds:
            return "start"
        return f"{self.seconds:g} s" if self.seconds < 60 else duration(self.seconds)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes over the time from the first event to the last."""

    span: float
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]

    def x(self, bar: Bar) -> float:
        """Return where a bar begins, in percent of the width."""
        return round(100 * bar.start / self.span, 3)

    def width(self, bar: Bar) -> float:
        """Return a bar's width in percent."""
        return round(100 * bar.seconds / self.span, 3)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured restore beside an earlier measured cold start of the same workload.

    Attributes:
        ratio: how many times longer the cold start took.
        restore_percent: length of the restore's bar; the longer of both has 100.
    """

    name: str
    restore: float
    cold_start: float
    ratio: float
    restore_percent: float
    cold_percent: float


def timeline(node: str, workloads: Iterable[str], events: Sequence[Event]) -> Timeline | None:
    """Lay out a run; None where its events have no times or none passed."""
    times = [time.timestamp() for event in events if (time := parse_time(event.time))]
    if not times or max(times) <= min(times):
        return None
    zero, span = min(times), max(times) - min(times)
    steps = _steps(events, zero, span)
    lanes = [_lane(node, True, (), tuple(b for s, b in steps if s == node))]
    for name in dict.fromkeys(workloads):
        bars = tuple(b for s, b in steps if s == name)
        lanes.append(_lane(name, False, _states(bars, span), bars))
    return Timeline(span, tuple(lanes), _ticks(span))


def comparison(workload: WorkloadResult) -> Comparison | None:
    """Compare restore and earlier cold start, where both were measured."""
    restore, cold = workload.restore_seconds, workload.earlier_cold_start_seconds
    if restore is None or cold is None or restore <= 0 or cold <= 0:
        return None
    longer = max(restore, cold)
    return Comparison(
        workload.name,
        restore,
        cold,
        cold / restore,
        round(100 * restore / longer, 2),
        round(100 * cold / longer, 2),
    )


def _lane(name: str, is_node: bool, states: tuple[Bar, ...], steps: tuple[Bar, ...]) -> Lane:
    drawn = [_ends(states), _ends(steps)]
    left_out = len(states) + len(steps) - sum(map(len, drawn))
    return Lane(name, is_node, drawn[0], drawn[1], left_out)


def _ends(bars: tuple[Bar, ...]) -> tuple[Bar, ...]:
    return bars if len(bars) <= _BARS else (*bars[: _BARS // 2], *bars[-_BARS // 2 :])


def _steps(events: Sequence[Event], zero: float, span: float) -> list[tuple[str, Bar]]:
    """Pair each start with its end by subject, verb and attempt."""
    begun: dict[tuple[str, str, int], float] = {}
    bars: list[tuple[str, Bar]] = []
    for event in events:
        time = parse_time(event.time)
        if time is None or not event.kind.startswith("step."):
            continue
        at = time.timestamp() - zero
        key = (event.subject, event.verb, event.attempt)
        if event.kind == "step.started":
            begun[key] = at
            continue
        took = pick.number(event.data, "seconds") or 0.0
        start = begun.pop(key, max(0.0, at - max(0.0, took)))
        # A clock may be set back; a bar never has a negative length.
        start = min(start, at)
        failed = event.kind == "step.failed"
        bars.append((event.subject, Bar(_kind(event.verb), start, at, event.attempt, failed)))
    for (subject, verb, attempt), start in begun.items():
        bars.append((subject, Bar(_kind(verb), start, span, attempt, False, True)))
    return sorted(bars, key=lambda item: (item[1].start, item[1].end))


def _kind(verb: str) -> BarKind:
    return _STEP_KINDS.get(verb, "other")


def _states(steps: Sequence[Bar], span: float) -> tuple[Bar, ...]:
    """Tell from its steps what a workload did for its users.

    It is out of service from the start of a checkpoint or stop that succeeded until a restore
    or cold start that succeeded. A checkpoint that failed leaves it running. A workload that
    did not run when the run began is not told apart here: give it no lane.
    """
    states: list[Bar] = []
    since: float = 0.0
    state: BarKind = "serving"

    def change(at: float, new: BarKind) -> None:
        nonlocal since, state
        at = max(at, since)  # steps may overlap; states never do
        if at > since and state != new:
            states.append(Bar(state, since, at))
        if state != new:
            since, state = at, new

    for bar in steps:
        if bar.kind == "draining" and state == "serving":
            change(bar.start, "draining")
        elif bar.kind == "checkpoint" and state in ("serving", "draining") and not bar.failed:
            change(bar.start, "frozen")
        elif (bar.kind == "stop" and not bar.failed) or (
            bar.kind == "requeue" and not bar.failed and state == "serving"
        ):
            change(bar.start, "stopped")
        elif bar.kind == "wait" and not bar.failed and not bar.open:
            change(bar.end, "stopped")
        elif _serves_after(bar, state):
            change(bar.end, "serving")
        elif bar.kind == "cold_start" and state == "frozen":
            # The checkpoint was given up; what comes is a new start.
            change(bar.start, "stopped")
    if span > since:
        states.append(Bar(state, since, span))
    return tuple(states)


def _stops(bar: Bar, state: BarKind) -> bool:
    """A job that was saved first stays so in the queue; any other starts over."""
    return bar.kind == "stop" or (bar.kind == "requeue" and state == "serving")


def _serves_after(bar: Bar, state: BarKind) -> bool:
    if bar.failed or bar.open:
        return False
    reopened = bar.kind == "return_to_service" and state == "draining"
    return reopened or bar.kind in ("restore", "cold_start", "release")


def _ticks(span: float) -> tuple[Tick, ...]:
    step = next((t for t in _TICKS if span / t <= 7), None)
    if step is None:
        step = 86400.0 * max(1, round(span / 86400 / 6))
    count = int(span / step + 1e-9)
    return tuple(Tick(step * n, round(100 * step * n / span, 3)) for n in range(count + 1))
