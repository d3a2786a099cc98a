"""The processes of a workload on this node: found by its launcher or by a PID file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pitstop.model.errors import Busy, WorkloadGone
from pitstop.node import processes
from pitstop.node.paths import boot_id
from pitstop.node.processes import Identity
from pitstop.node.record import Phase, WorkloadState


@dataclass(frozen=True, slots=True)
class Subject:
    """A running workload.

    Attributes:
        tree: all its processes as the node sees them, root first. Under the launcher that is
            everything below pid 1 of its namespace, whether it descends from the root or not.
        root_pid: the root's PID in the namespace it is dumped from.
        init_pid: pid 1 of its namespace; None when it does not run under the launcher.
    """

    tree: tuple[Identity, ...]
    root_pid: int
    init_pid: int | None

    @property
    def root(self) -> Identity:
        """The first process."""
        return self.tree[0]

    def pids_inside(self) -> tuple[int, ...]:
        """All PIDs as the image will hold them."""
        if self.init_pid is None:
            return tuple(process.pid for process in self.tree)
        return tuple(processes.pid_inside(process.pid) for process in self.tree)


def find(files: WorkloadState, pid_file: str | None) -> Subject:
    """Find the processes of a workload.

    Raises:
        WorkloadGone: it does not run here.
        Busy: it is just being started.
        BadInput: its PID file holds no PID.
    """
    record = files.record()
    if files.running():
        if record.phase is not Phase.RUNNING:
            raise Busy(files.name, f"its launcher is still {record.phase.value} it")
        if record.boot_id != boot_id():
            # The lock is held, so it runs; and in this boot of this node it does not.
            raise WorkloadGone(files.name, "it runs on another node that shares its directory")
        return _launched(files, record.init_pid, record.root_pid)
    return find_by_pid_file(files, pid_file)


def find_by_pid_file(files: WorkloadState, pid_file: str | None) -> Subject:
    """Find the processes of a workload that does not run under the launcher.

    Raises:
        WorkloadGone: it does not run here.
        BadInput: its PID file holds no PID.
    """
    if pid_file is None:
        raise WorkloadGone(files.name, "it does not run under the launcher, and has no PID file")
    root = processes.read_pid_file(Path(pid_file))
    return Subject(tuple(processes.tree(root)), root, None)


def runs_by_pid_file(files: WorkloadState, pid_file: str | None) -> bool:
    """Tell whether a copy that the launcher knows nothing of runs.

    Raises:
        BadInput: its PID file holds no PID, so nobody can tell.
    """
    try:
        find_by_pid_file(files, pid_file)
    except WorkloadGone:
        return False
    return True


def _launched(files: WorkloadState, init_pid: int, root_pid: int) -> Subject:
    everything = processes.tree(init_pid)
    for process in everything[1:]:
        try:
            if processes.pid_inside(process.pid) == root_pid:
                others = [other for other in everything[1:] if other != process]
                return Subject((process, *others), root_pid, init_pid)
        except FileNotFoundError:
            continue  # this one ended while we looked
    raise WorkloadGone(files.name, f"no process {root_pid} in its namespace")
