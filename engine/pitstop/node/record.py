"""What a node knows of a workload: which start of it this is, and how that start went.

The record is written by whoever holds the workload's lock, that is by its launcher. Its
generation counts the starts; a checkpoint is only valid while the generation it was taken
from is the newest, so that a workload which ran on can never be thrown back by accident.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pitstop.images.durable import read_json, write_json
from pitstop.model.errors import Refused
from pitstop.model.plain import is_name
from pitstop.node.locks import is_held
from pitstop.node.paths import StateDir, boot_id


class Phase(StrEnum):
    """Where a start of a workload stands."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Record:
    """One start of a workload.

    Attributes:
        generation: counts starts, from 1.
        how: `cold` or `restored`.
        cause: why it was started cold although a restore was wanted.
        started: wall clock; `started_running`: seconds since boot.
        init_pid: of the workload's PID namespace, as the node sees it.
        root_pid: of the workload's first process inside that namespace.
        start_seconds: from when somebody set out to start it until its processes ran.
        job: the scheduler's number of the job that it runs in; empty without one.
        owner: the user id that it runs as; nobody else can start it again.
        ended: `{"exit": n}` or `{"signal": n}` once it has ended.
    """

    workload: str
    generation: int = 0
    phase: Phase = Phase.ENDED
    how: str = ""
    checkpoint: str | None = None
    run: str = ""
    cause: str = ""
    boot_id: str = ""
    started: str = ""
    started_running: float = 0.0
    launcher_pid: int = 0
    init_pid: int = 0
    root_pid: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    cold_start_seconds: float | None = None
    start_seconds: float | None = None
    job: str = ""
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """That a workload was moved to another node.

    Attributes:
        to: the node, as the site calls it.
        checkpoint: that was handed over; None where it was started cold there.
    """

    to: str
    run: str
    time: str
    checkpoint: str | None = None

    def __str__(self) -> str:
        return f"moved to {self.to} by run {self.run} at {self.time}"


class WorkloadState:
    """The files of one workload on this node."""

    def __init__(self, state: StateDir, name: str) -> None:
        self.name = name
        self.directory = state.workload(name)
        self.lock_path = self.directory / "lock"
        self.operation_lock = self.directory / "operation.lock"
        self.stdout = self.directory / "stdout.log"
        self.stderr = self.directory / "stderr.log"
        self.launcher_log = self.directory / "launcher.log"
        self._record = self.directory / "record.json"
        self._hold = self.directory / "hold.json"
        self._moved = self.directory / "moved.json"

    def record(self) -> Record:
        """Read the record; a workload never started here has generation 0."""
        data = read_json(self._record)
        if data is None:
            return Record(self.name)
        return Record(**{**data, "phase": Phase(data["phase"])})

    def write(self, record: Record) -> Record:
        """Write the record, durably."""
        write_json(self._record, asdict(record))
        return record

    def update(self, **changes: Any) -> Record:
        """Change some fields of the record."""
        return self.write(replace(self.record(), **changes))

    def running(self) -> bool:
        """Whether a copy lives: the launcher's lock is the proof, not the record."""
        return is_held(self.lock_path)

    def hold(self, run: str) -> None:
        """Keep all but the given run from starting this workload here.

        Raises:
            Refused: another run holds it.
        """
        holder = self.holder()
        if holder not in ("", run):
            raise Refused(self.name, f"held by run {holder}", "resume or abort that run first")
        write_json(self._hold, {"run": run, "boot_id": boot_id()})

    def holder(self) -> str:
        """The run that holds this workload, or an empty text."""
        data = read_json(self._hold)
        return str(data["run"]) if data else ""

    def release(self, run: str) -> None:
        """End the hold of a run; that of another run stays."""
        if self.holder() == run:
            self._hold.unlink(missing_ok=True)

    def moved(self) -> Moved | None:
        """Say where the workload was moved to; None while its place is here."""
        data = read_json(self._moved)
        return Moved(**data) if data else None

    def note_move(self, moved: Moved) -> None:
        """Note, durably, that its place is another node: no launcher here starts it again."""
        write_json(self._moved, asdict(moved))

    def forget_move(self) -> None:
        """Note that its place is here again."""
        self._moved.unlink(missing_ok=True)

    def log_paths(self) -> tuple[Path, Path]:
        """The files that stdout and stderr of the workload go to."""
        return self.stdout, self.stderr


def launched_here(state: StateDir) -> list[Record]:
    """Return what runs under a launcher in this boot of this node.

    The directory may be shared: what another node runs is not listed.
    """
    directory = state.root / "workloads"
    entries = directory.iterdir() if directory.exists() else ()
    # Shared storage has directories of its own there, such as lost+found.
    names = sorted(entry.name for entry in entries if is_name(entry.name))
    running = [files for name in names if (files := WorkloadState(state, name)).running()]
    records = [files.record() for files in running]
    return [r for r in records if r.phase is Phase.RUNNING and r.boot_id == boot_id()]
