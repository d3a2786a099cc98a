"""The cells of the kill matrix: which there are, which make no sense and why, and how each ends.

Standard library alone: `scripts/kill-matrix` reads this without an environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SYSTEMS = ("steps", "prefect", "airflow")
STEPS = ("drain", "checkpoint", "maintain", "gate", "restore", "cold_start")

EVERYWHERE = {
    "controller-kill": "SIGKILL of the process that executes the step",
    "controller-term": "SIGTERM of the process that executes the step",
    "connection": "every connection to the node cut, new ones refused for a while",
    "node": "power cut and boot of the node",
}
AIRFLOW = {
    "worker": "SIGKILL of the process that supervises the task's process",
    "scheduler": "SIGKILL of the scheduler with its workers; a new one is started",
    "triggerer": "SIGKILL of the triggerer while it waits for the node; a new one is started",
    "orphan": "SIGKILL of the supervisor while the task's process lives on and goes on later",
    "mark-run-failed": "the DAG run is marked failed; then the step's task is cleared",
    "mark-task-failed": "the step's task is marked failed and later ones start; then it is cleared",
    "clear-running": "the step's task is cleared while the node works",
    "clear-finished": "the task before is cleared while the node works",
}
VICTIMS = {**EVERYWHERE, **AIRFLOW}

RESTORED, COLD, UNTOUCHED = "restored", "cold-started", "untouched"
ALL_OF_IT, BEGUN, NEVER = "begun\nended\n", "begun\n", ""


@dataclass(frozen=True)
class Ending:
    """How a cell may end: the workload's outcome, and what the patch has said by then."""

    outcome: str
    patch: str = ALL_OF_IT


@dataclass(frozen=True)
class Cell:
    system: str
    step: str
    victim: str

    @property
    def id(self) -> str:
        return f"{self.system}-{self.step}-{self.victim}"

    @property
    def reason(self) -> str:
        """Why this cell makes no sense; empty where it does."""
        if self.victim in AIRFLOW and self.system != "airflow":
            return "Airflow only"
        if self.step == "gate" and self.victim == "triggerer":
            return "the gate is asked directly, it is never deferred"
        return ""

    @property
    def endings(self) -> tuple[Ending, ...]:
        """The ways in which it may end. Several only where a race decides, and both are right."""
        usual = Ending(COLD if self.step == "cold_start" else RESTORED)
        return _OTHER.get((self.step, self.victim), {}).get(self.system, (usual,))


_GIVEN_UP = Ending(UNTOUCHED, NEVER)
"""Whoever ends a task that drains or saves has the node's work cancelled: nothing is touched."""

_OTHER: dict[tuple[str, str], dict[str, tuple[Ending, ...]]] = {}


def _everywhere(step: str, victim: str, *endings: Ending) -> None:
    _OTHER[step, victim] = dict.fromkeys(SYSTEMS, endings)


# Without power the memory is gone; what was not saved by then starts cold.
_everywhere("drain", "node", Ending(COLD))
_everywhere("checkpoint", "node", Ending(COLD), Ending(RESTORED))
_everywhere("restore", "node", Ending(COLD))
# A command that was cut off is never run a second time: rolled back, and the node waits for a
# person in quarantine.
_everywhere("maintain", "node", Ending(RESTORED, BEGUN))

_OTHER["drain", "controller-term"] = {"airflow": (_GIVEN_UP,)}
# The dump may be complete before it can be cancelled.
_OTHER["checkpoint", "controller-term"] = {"airflow": (_GIVEN_UP, Ending(RESTORED))}
# Whether a trigger is told that its task was ended, before another try attaches to the work,
# is a race within Airflow.
for _step in ("drain", "checkpoint"):
    for _victim in ("mark-run-failed", "mark-task-failed", "clear-running"):
        _OTHER[_step, _victim] = {"airflow": (_GIVEN_UP, Ending(RESTORED))}


def cells(system: str | None = None) -> Iterator[Cell]:
    """All cells, those without sense as well."""
    for name in SYSTEMS if system is None else (system,):
        for step in STEPS:
            for victim in VICTIMS:
                yield Cell(name, step, victim)


IN_THE_USUAL_SUITES = frozenset(
    {
        "steps-checkpoint-connection",
        "steps-restore-connection",
    }
)
"""Cells that the usual test command runs as well; all others carry the marker `matrix`."""
