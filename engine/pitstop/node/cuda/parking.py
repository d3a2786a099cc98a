"""The GPU side of one workload: taken off its GPUs at one boundary, and brought back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pitstop.decide.failures import Where, judge
from pitstop.model.cuda import Call, CudaAnswer, CudaLimits
from pitstop.model.errors import CheckpointFailed, EndedInDump, Refused, TemporaryError
from pitstop.model.inventory import EMPTY
from pitstop.node import processes
from pitstop.node.cuda.boundary import Boundary, BoundaryFailedError
from pitstop.node.cuda.driver import Driver, DriverUnusableError, Guarded
from pitstop.node.cuda.finding import candidates, find, in_turn
from pitstop.node.cuda.mark import GpuMark, What, clear_mark, read_mark, set_mark
from pitstop.node.cuda.placing import holdings
from pitstop.node.cuda.undo import Undone, bring_back
from pitstop.node.gpus import read_inventory
from pitstop.node.processes import Identity
from pitstop.node.record import WorkloadState
from pitstop.node.stopper import end_all
from pitstop.node.subject import Subject

if TYPE_CHECKING:
    from pitstop.model.manifest import CudaSaved


DIED_OF_IT = "CUDA_ERROR_OPERATING_SYSTEM"
"""What a call says whose process ended in it, and of one that may not be traced, which lives."""


class ParkedGpus:
    """The GPU state of a running workload. The caller holds the operation's lock.

    Use it as a context manager: it ends the process that calls the driver, and leaves nothing
    parked that is not to stay so.

    Attributes:
        processes: its CUDA processes; empty where it has none, and then no driver is loaded.
        inventory: all GPUs of the node, before anything was touched.
        holds: bytes that they hold, by UUID of the GPU.
    """

    def __init__(
        self, files: WorkloadState, subject: Subject, limits: CudaLimits, run: str
    ) -> None:
        self._files = files
        self._subject = subject
        self._limits = limits
        self._run = run
        self._driver = Driver()
        self._parked = False
        self.processes: tuple[Identity, ...] = ()
        self.inventory = EMPTY
        self.holds: dict[str, int] = {}
        self._boundary = Boundary(self._driver, (), limits, in_turn=False)
        try:
            self._choose()
        except BaseException:
            self._driver.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.undo()
        finally:
            self._driver.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its CUDA processes, as this machine counts."""
        return self._boundary.pids

    @property
    def trace(self) -> tuple[CudaAnswer, ...]:
        """All calls that were made."""
        return tuple(self._boundary.trace)

    def park(self) -> None:
        """Take all GPU state into the memory of the processes, at one boundary.

        Whatever happens, `undo` brings it back.

        Raises:
            CheckpointFailed: it could not be done.
        """
        # What has ended by itself since we looked is nobody's loss.
        self._set([process for process in self.processes if process.alive()])
        if not self.processes:
            return
        mark = self._mark("checkpoint")
        set_mark(self._files, mark)
        self._parked = True
        try:
            # The workload's directory is two levels below the engine's.
            state = self._files.directory.parents[1]
            self._driver.guard(Guarded(state, self._files.name, mark))
            self._boundary.lock()
            self._refuse_newcomers()
            self._boundary.checkpoint()
        except BoundaryFailedError as error:
            raise self._failed(error.lines, error.where) from error
        except DriverUnusableError as error:
            raise self._failed([str(error)], Where.CUDA_LOCK) from error

    def saved(self, inside: Mapping[int, int]) -> CudaSaved | None:
        """Return what a manifest says of it; None without a CUDA process.

        Args:
            inside: the PID that the image will hold, by the one that this machine counts.
        """
        from pitstop.model.manifest import CudaSaved

        if not self.processes:
            return None
        return CudaSaved(
            pids=tuple(inside[pid] for pid in self.pids),
            in_turn=self._boundary.in_turn,
            limits=asdict(self._limits),
            inventory=self.inventory.at_rest().to_json(),
            holds=dict(self.holds),
            trace=tuple(answer.to_json() for answer in self.trace),
        )

    def undo(self) -> None:
        """Bring all of it back, and see that every process runs.

        Raises:
            EndedInDump: GPU state is lost, so the workload was ended; the cause names what.
            TemporaryError: the driver cannot be asked; the mark stays for whoever comes next.
        """
        if not self._parked:
            return
        locks = [answer for answer in self.trace if answer.call is Call.LOCK and answer.sent]
        if not locks:
            self._over()
            return
        # A lock that was refused took nothing; one without an answer may have, and one that
        # the process died of has (cuda-checkpoint#58).
        held = {a.pid for a in locks if a.ok or not a.answered or DIED_OF_IT in a.error}
        began = next((str(answer) for answer in self.trace if not answer.ok), "")
        undone = self._boundary.undo()
        self._parked = False
        try:
            conclude(self._files, self._subject.tree, undone, held, began)
        except EndedInDump:
            self._over()
            raise
        self._over()

    def gone(self) -> None:
        """Its processes have ended, saved or not: there is nothing to be brought back."""
        if self._parked:
            self._over()

    def keep(self, **data: object) -> None:
        """It stays parked after this process has ended."""
        set_mark(self._files, self._mark("suspended", **data))
        self._driver.guard(None)
        self._parked = False

    def _mark(self, what: What, **data: object) -> GpuMark:
        root, one_by_one = self._subject.root, self._boundary.in_turn
        return GpuMark(what, self._run, root, self.processes, one_by_one, self._limits, dict(data))

    def _choose(self) -> None:
        tree = self._subject.tree
        found = self._find(tree)
        self._set([process for process in tree if process.pid in found])
        if self.processes:
            self.inventory = read_inventory()
            self.holds = holdings(self.inventory, found)

    def _set(self, found: Sequence[Identity]) -> None:
        self.processes = tuple(found)
        one_by_one = in_turn([process.pid for process in found])
        self._boundary = Boundary(self._driver, found, self._limits, one_by_one)

    def _find(self, tree: Sequence[Identity]) -> set[int]:
        among = candidates(tree)
        found, unanswered = find(self._driver, among, self._limits.call)
        if unanswered:
            error = self._failed(unanswered, Where.CUDA_LOCK)
            if not self._parked:
                error.hint = "; ".join(filter(None, ("it runs on, untouched", error.hint)))
            raise error
        return set(found)

    def _refuse_newcomers(self) -> None:
        """A process that came to CUDA after we looked would be left out of the boundary."""
        top = self._subject.init_pid or self._subject.root.pid
        new = sorted(self._find(processes.tree(top)) - set(self.pids))
        if new:
            late = f"pid {new[0]} came to CUDA while the others were being locked"
            raise self._failed([late], Where.CUDA_LOCK)

    def _failed(self, lines: Sequence[str], where: Where) -> CheckpointFailed:
        known = judge(lines, where)
        error = CheckpointFailed(self._files.name, f"{'; '.join(lines)}{known.mark}", known.hint)
        error.judged(known.failure, known.retryable)
        return error

    def _over(self) -> None:
        clear_mark(self._files)
        self._driver.guard(None)
        self._parked = False


def conclude(
    files: WorkloadState,
    members: Sequence[Identity],
    undone: Undone,
    held: Collection[int],
    began: str = "",
) -> None:
    """Draw the consequence of what could be brought back.

    A workload that has lost GPU state is ended: half alive is not alive. One of which nothing can
    be told is left as it is.

    Args:
        files: of the workload.
        members: all its processes.
        undone: what became of the CUDA processes.
        held: those whose end is a loss.
        began: the call that failed first, where that is known.

    Raises:
        EndedInDump: GPU state is lost; the cause names what.
        TemporaryError: the driver cannot be asked.
    """
    if undone.unasked:
        raise TemporaryError(
            files.name,
            f"its GPU state may be parked, and the driver cannot be asked: {undone.unasked}",
            "mend the driver (pitstop doctor), then go on: pitstop resume RUN; nothing was ended",
        )
    losses = undone.losses(held)
    if not losses:
        return
    said = [f"pid {pid}: {why}" for pid, why in sorted(losses.items())]
    said += [f"it began with {began}"] if began else []
    end_all(files, members)
    known = judge(said, Where.CUDA_RESTORE)
    raise EndedInDump(
        files.name,
        f"its GPU state is lost, so it was ended: {'; '.join(said)}{known.mark}",
        "start it from its launch, or from an earlier checkpoint",
    ).judged(known.failure, False)


def recover(files: WorkloadState) -> None:
    """Bring back what a killed operation has left parked. The caller holds its lock.

    Raises:
        EndedInDump: GPU state is lost, so the workload was ended.
        TemporaryError: the driver cannot be asked.
    """
    mark = read_mark(files)
    if mark is None or mark.what != "checkpoint":
        return
    with Driver() as driver:
        undone = bring_back(driver, mark.processes, mark.limits, mark.in_turn)
    finish(files, mark, undone, held=())


def finish(files: WorkloadState, mark: GpuMark, undone: Undone, held: Collection[int]) -> None:
    """Draw the consequence for a workload with a mark, and remove it once that is done.

    Raises:
        EndedInDump, TemporaryError: as `conclude`.
    """
    rest = processes.tree(mark.root.pid) if mark.root.alive() else []
    try:
        conclude(files, [*rest, *mark.processes], undone, held)
    except EndedInDump:
        clear_mark(files)
        raise
    clear_mark(files)


def refuse_if_suspended(files: WorkloadState) -> None:
    """Refuse to work on a workload whose GPU state is parked on purpose.

    Raises:
        Refused: it is.
    """
    mark = read_mark(files)
    if mark is not None and mark.what == "suspended":
        raise Refused(files.name, f"it is suspended (run {mark.run or 'by hand'})", "resume it")
