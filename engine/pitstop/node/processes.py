"""Processes as /proc shows them, and the proof that they are gone."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pitstop.model.errors import BadInput, WorkloadGone
from pitstop.node.clock import running_seconds

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    """A PID with its start time: together they are never reused within one boot."""

    pid: int
    start: int

    def alive(self) -> bool:
        """Whether this very process still runs. A zombie does not run."""
        found = _stat(self.pid)
        return found is not None and found.start == self.start and found.state not in "ZX"


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    group: int
    session: int
    start: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may hold spaces and brackets itself.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def identity(pid: int) -> Identity:
    """Return the identity of a running process.

    Raises:
        BadInput: the PID is 1 or less; signalling it would hit init or everybody.
        WorkloadGone: there is no such process.
    """
    if pid <= 1:
        raise BadInput(f"pid {pid}", "not the PID of a workload")
    found = _stat(pid)
    if found is None or found.state in "ZX":
        raise WorkloadGone(f"pid {pid}", "there is no such running process")
    return Identity(pid, found.start)


def parent_of(pid: int) -> int:
    """Return the parent's PID of a process, or 0 when it is gone."""
    found = _stat(pid)
    return found.parent if found else 0


def session_of(pid: int) -> int:
    """Return the session id of a process, or 0 when it is gone."""
    found = _stat(pid)
    return found.session if found else 0


def tree(root: int) -> list[Identity]:
    """Return the process and all its descendants, root first.

    Raises:
        WorkloadGone: the root does not run.
    """
    first = identity(root)
    stats = _living()
    children: dict[int, list[int]] = {}
    for pid, found in stats.items():
        children.setdefault(found.parent, []).append(pid)
    result, pending = [first], list(children.get(root, ()))
    while pending:
        pid = pending.pop(0)
        result.append(Identity(pid, stats[pid].start))
        pending.extend(children.get(pid, ()))
    return result


def group(leader: int) -> list[Identity]:
    """Return the running members of a process group."""
    return [Identity(pid, found.start) for pid, found in _living().items() if found.group == leader]


def _living() -> dict[int, _Stat]:
    """Return what runs, by PID. A zombie does not run."""
    stats = {int(e.name): _stat(int(e.name)) for e in PROC.iterdir() if e.name.isdigit()}
    return {pid: s for pid, s in stats.items() if s is not None and s.state not in "ZX"}


def read_pid_file(path: Path) -> int:
    """Read the PID of a running process from a file.

    Raises:
        WorkloadGone: no such file, or no such process, or another process by now.
        BadInput: its content is not a PID above 1 (a damaged file must never signal
            everything: apache/airflow#68644).
    """
    try:
        text = path.read_text(errors="replace").strip()
        written = path.stat().st_mtime
    except FileNotFoundError:
        raise WorkloadGone(str(path), "the PID file is not there") from None
    # Longer than any PID: int() would refuse a text of thousands of digits.
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) <= 1:
        raise BadInput(str(path), f"{text[:40]!r} is not the PID of a workload")
    process = identity(int(text))
    # A file older than the process with its PID was left behind by another one.
    if written < _started(process) - CLOCK_SLACK:
        raise WorkloadGone(
            str(path),
            f"pid {process.pid} started after this file was written: it is another process",
            "remove the file, or write it again if the clock was set since",
        )
    return process.pid


CLOCK_SLACK = 2.0
"""Seconds that a file's time may lie before the start of the process that wrote it: the
kernel counts starts in ticks, and clocks are corrected."""


def _started(process: Identity) -> float:
    """Return the wall-clock time of a process's start."""
    return time.time() - running_seconds() + process.start / os.sysconf("SC_CLK_TCK")


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has this very file open: a proof of whose process it is."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # gone already, or out of our reach, which ours never are
    return any(_link(f"/proc/{pid}/fd/{descriptor}") == str(path) for descriptor in descriptors)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""  # closed while we looked; the others still count


def memory_of(processes: Sequence[Identity]) -> int:
    """Return the bytes of memory that processes have; what they share counts for each."""
    pages = 0
    for process in processes:
        try:
            pages += int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_gone(processes: list[Identity], deadline: float) -> list[Identity]:
    """Wait until all have ended; return those that had not after `deadline` seconds."""
    descriptors: dict[int, Identity] = {}
    poll = select.poll()
    try:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            descriptors[descriptor] = process
            if process.alive():
                poll.register(descriptor, select.POLLIN)
        end = running_seconds() + deadline
        while True:
            living = [p for p in descriptors.values() if p.alive()]
            left = end - running_seconds()
            if not living or left <= 0:
                return living
            for descriptor, _event in poll.poll(left * 1000):
                poll.unregister(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def pid_inside(pid: int) -> int:
    """Return a process's PID in its own, innermost PID namespace."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise WorkloadGone(f"pid {pid}", "the kernel shows no PID for it")
