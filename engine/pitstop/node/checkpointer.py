"""Checkpoint: from a running workload to a sealed checkpoint, or to a workload that runs on."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pitstop.decide.cuda_boundary import summary_of
from pitstop.decide.failures import Where, judge
from pitstop.images.checkpoint import Checkpoint, Mark, State, sync_images
from pitstop.images.digest import digest_directory
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.cuda import CudaLimits
from pitstop.model.errors import (
    Cancelled,
    CheckpointFailed,
    DeadlineExceeded,
    EndedInDump,
    PermanentError,
    PitstopError,
)
from pitstop.model.manifest import LogLength, Manifest
from pitstop.model.words import Connections
from pitstop.node import answers, blockers, cancelling, criu, processes, subject
from pitstop.node.clock import now, running_seconds
from pitstop.node.cuda.mark import read_mark
from pitstop.node.cuda.parking import ParkedGpus, recover, refuse_if_suspended
from pitstop.node.gpu_users import gpu_blockers
from pitstop.node.inventory import take_fingerprint
from pitstop.node.locks import Lock, held, wait_until_free
from pitstop.node.parking import STAY
from pitstop.node.paths import StateDir, boot_id
from pitstop.node.record import WorkloadState
from pitstop.node.settle import disprove_checkpoints, settle_checkpoints
from pitstop.node.stopper import end_all
from pitstop.node.subject import Subject
from pitstop.node.vote import Ballot, hook_program

END_DEADLINE = 60.0
"""Seconds for a tree that CRIU has killed to be gone; freeing much memory takes its time."""


GUARD_DEADLINE = 150.0
"""Seconds for the guard of a killed operation to bring GPU state back; a call may take 180."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to save and how.

    Attributes:
        checkpoint: its name, chosen by the caller so that asking twice names one thing.
        deadline: seconds CRIU may take until the images are complete.
        stay: its launcher is to wait afterwards, see `pitstop.node.parking`.
        gpu_limits: fields of `CudaLimits`, for those that are not the defaults.
    """

    workload: str
    checkpoint: str
    run: str
    node: str
    shape: str
    connections: Connections = Connections.CLOSE
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tolerate: tuple[str, ...] = ()
    proof: Mapping[str, Any] | None = None
    pid_file: str | None = None
    launch_digest: str = ""
    deadline: float = 3600.0
    stay: bool = False
    gpu_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def cuda_limits(self) -> CudaLimits:
        """How long calls of the CUDA driver may take."""
        return CudaLimits.from_json(self.gpu_limits)


def take(state: StateDir, order: Order) -> dict[str, Any]:
    """Save a workload and end it, both or neither.

    Raises:
        CheckpointFailed: it runs on as before; the cause says why, checked.
        WorkloadGone: it did not run to begin with.
    """
    files = WorkloadState(state, order.workload)
    with held(files.operation_lock, order.workload, "another operation on this workload") as lock:
        return _Checkpointer(state, files, order, lock).run()


def summary(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a run needs to know of a checkpoint."""
    manifest = checkpoint.manifest()
    return {
        "checkpoint": checkpoint.id,
        "image_bytes": manifest.total_bytes,
        "dump_seconds": manifest.dump_seconds,
        "frozen_seconds": manifest.frozen_seconds,
        "generation": manifest.generation,
        "fingerprint": manifest.fingerprint,
        "processes": len(manifest.pids),
        "connections": manifest.connections.value,
        "proof": "recorded" if manifest.proof is not None else "none",
        "created": manifest.created,
        "gpus": summary_of(manifest.cuda) if manifest.cuda else None,
    }


def settle(
    state: StateDir, workload: str, checkpoint: str, pid_file: str | None = None
) -> dict[str, Any]:
    """Say what became of a workload and a checkpoint after a cut-off dump.

    Returns:
        `running`; `ended` as the launcher saw it; `checkpoint`: the summary of the
        checkpoint if the workload was ended by it, else None.
    """
    files = WorkloadState(state, workload)
    _bring_back_gpus(files)
    lock = Lock(files.lock_path)
    launched = not lock.try_acquire()
    running = launched or subject.runs_by_pid_file(files, pid_file)
    try:
        if running:
            disprove_checkpoints(files, state)
        else:
            settle_checkpoints(files, state)
        found = Store(state.images(workload)).newest(State.SEALED)
        usable = found is not None and found.id == checkpoint and not running
        return {
            "running": running,
            "ended": files.record().ended,
            "checkpoint": summary(found) if usable and found is not None else None,
        }
    finally:
        lock.release()


def _bring_back_gpus(files: WorkloadState) -> None:
    """Bring back what a killed operation has left parked, unless its guard has done so."""
    mark = read_mark(files)
    if mark is None or mark.what != "checkpoint":
        return
    lock = Lock(files.operation_lock)
    try:
        lock.acquire(GUARD_DEADLINE)
    except DeadlineExceeded as error:
        raise DeadlineExceeded(
            files.name,
            "its GPU state is still being brought back after a killed operation",
            "ask again: pitstop resume RUN",
        ) from error
    try:
        recover(files)
    finally:
        lock.release()


class _Checkpointer:
    def __init__(self, state: StateDir, files: WorkloadState, order: Order, lock: Lock) -> None:
        self.state = state
        self.files = files
        self.order = order
        self.lock = lock
        self.store = Store(state.images(order.workload))
        self.keys = Keys(state.keys())
        self.proof: str | None = None
        self.taken: Checkpoint | None = None

    def run(self) -> dict[str, Any]:
        self.store.check_new(self.order.checkpoint)
        self.keys.check()
        subject_ = subject.find(self.files, self.order.pid_file)
        disprove_checkpoints(self.files, self.state)
        limits = self.order.cuda_limits
        recover(self.files)
        refuse_if_suspended(self.files)
        with ParkedGpus(self.files, subject_, limits, self.order.run) as gpus:
            return self._take(subject_, gpus)

    def _take(self, subject_: Subject, gpus: ParkedGpus) -> dict[str, Any]:
        found = [
            *blockers.scan(
                subject_.tree, self.store.directory, gpus.pids, sum(gpus.holds.values())
            ),
            *(gpu_blockers(gpus.inventory) if gpus.processes else ()),
        ]
        if found:
            raise CheckpointFailed(
                self.order.workload, "; ".join(str(b) for b in found[:5]), "it runs on, untouched"
            )
        if self.order.proof is not None:
            self.proof = answers.proof_answer(self.order.proof)
        inventory = gpus.inventory if gpus.processes else None
        fingerprint = take_fingerprint(self.order.probes, inventory).to_json()
        self.files.hold(self.order.run)
        # From here a request to stop waits until it is asked for where no is safe.
        with cancelling.deferred():
            draft = self.store.begin(self.order.checkpoint)
            try:
                criu.save_cpu(draft)
                begun = running_seconds()
                gpus.park()
                self._stop_if_asked()
                self._dump(draft, subject_, gpus, fingerprint, begun)
            except BaseException as error:
                self._keep_running(draft, subject_, gpus, error)
                raise
            summary_ = self._seal(subject_)
            gpus.gone()
            return summary_

    def _stop_if_asked(self) -> None:
        if cancelling.asked():
            raise Cancelled(self.order.workload, "cancelled on request")

    def _dump(
        self,
        draft: Checkpoint,
        subject_: Subject,
        gpus: ParkedGpus,
        fingerprint: dict[str, Any],
        begun: float,
    ) -> None:
        options = criu.shared_options(self.order.connections)
        command = criu.dump_command(
            draft, subject_.root_pid, options, hook_program(self.state), subject_.init_pid
        )

        def commit() -> bool:
            """Runs while the tree is frozen and its images are complete."""
            self._stop_if_asked()
            dumped = running_seconds()
            sync_images(draft.images)
            pids = subject_.pids_inside()
            inside = {p.pid: pid for p, pid in zip(subject_.tree, pids, strict=True)}
            manifest = Manifest(
                checkpoint=draft.id,
                workload=self.order.workload,
                owner=self.files.record().owner,
                node=self.order.node,
                boot_id=boot_id(),
                run=self.order.run,
                created=now(),
                generation=self.files.record().generation,
                shape=self.order.shape,
                fingerprint=fingerprint,
                probes={k: dict(v) for k, v in self.order.probes.items()},
                tolerate=self.order.tolerate,
                root_pid=subject_.root_pid,
                pids=pids,
                connections=self.order.connections,
                options=tuple(options),
                launch_digest=self.order.launch_digest,
                logs=tuple(
                    LogLength(path=str(path.resolve()), length=path.stat().st_size)
                    for path in self.files.log_paths()
                    if path.exists()
                ),
                proof=self.proof,
                files=(found := digest_directory(draft.images)),
                total_bytes=sum(file.size for file in found),
                tools={"criu": criu.version()},
                cuda=gpus.saved(inside),
                frozen_seconds=round(running_seconds() - begun, 6),
                dump_seconds=round(dumped - begun, 6),
            )
            draft.write(manifest, self.keys)
            draft.verify_signature(self.keys)
            self.taken = self.store.finish(draft)
            self.taken.mark(
                Mark.INTENT,
                {
                    "time": now(),
                    "run": self.order.run,
                    "boot_id": boot_id(),
                    "root": {"pid": subject_.root.pid, "start": subject_.root.start},
                    STAY: self.order.stay,
                },
            )
            return True

        ballot = Ballot(draft)
        try:
            # CRIU holds this operation's lock too: when we are killed, nobody else begins
            # before CRIU and its script have ended.
            assert self.lock.descriptor is not None  # noqa: S101  # held by the caller
            keep = (self.lock.descriptor,)
            status = ballot.run(command, "post-dump", commit, self.order.deadline, keep)
        except TimeoutError as error:
            raise CheckpointFailed(self.order.workload, str(error)) from error
        finally:
            ballot.close()
            if self.taken is not None:
                (self.taken.path / "vote.sock").unlink(missing_ok=True)
        if self.taken is None or (status != 0 and not self._ended_at_boundary(subject_)):
            lines = criu.errors(self.taken or draft)
            known = judge(lines, Where.DUMP)
            said = "; ".join(lines[:5]) or f"CRIU ended with status {status} and named no error"
            raise CheckpointFailed(self.order.workload, f"{said}{known.mark}", known.hint).judged(
                known.failure, known.retryable
            )

    def _ended_at_boundary(self, subject_: Subject) -> bool:
        """Whether the original is gone and the images are the last state it had.

        CRIU's exit status does not tell: it runs in the namespace that it dumps, and once it
        has ended the tree, pid 1 ends the namespace, CRIU included, if CRIU is not faster.
        The launcher, which sees the same end, may have sealed the checkpoint by then.
        """
        return (
            self.taken is not None
            and not subject_.root.alive()
            and self.taken.state() in (State.INTENDED, State.SEALED)
        )

    def _seal(self, subject_: Subject) -> dict[str, Any]:
        """Prove that the original is gone, and only then call the checkpoint sealed."""
        assert self.taken is not None  # noqa: S101  # _dump has set it or raised
        self._prove_gone(subject_)
        self.taken.mark(Mark.SEALED, {"time": now(), "run": self.order.run})
        return summary(self.taken)

    def _prove_gone(self, subject_: Subject) -> None:
        if subject_.init_pid is not None:
            wait_until_free(self.files.lock_path, END_DEADLINE)
        left = processes.wait_gone(list(subject_.tree), END_DEADLINE)
        if left:
            raise PermanentError(
                self.order.workload,
                f"the images are complete, but pid {left[0].pid} still runs",
                "do not restore before it is gone",
            )

    def _keep_running(
        self, draft: Checkpoint, subject_: Subject, gpus: ParkedGpus, error: BaseException
    ) -> None:
        """After a failed dump: say that nothing is left behind, having looked."""
        checkpoint = self.taken or draft
        if not subject_.root.alive():
            if self._ended_at_boundary(subject_):
                gpus.gone()
                return  # settling will seal it, or the launcher already has
            # Not under the launcher, what it has started outlives it, and may be parked.
            end_all(self.files, subject_.tree)
            gpus.gone()
            self.store.discard(checkpoint)
            raise EndedInDump(
                self.order.workload, f"it ended while it was being saved: {error}"
            ) from error
        try:
            if self.taken is not None:
                self.taken.mark(Mark.ABORTED, {"time": now(), "cause": str(error)})
            self._keep_log(checkpoint)
            self.store.discard(checkpoint)
        finally:
            gpus.undo()  # also when the disk, which may be what has failed, takes no more
        self.files.release(self.order.run)
        if isinstance(error, PitstopError):
            error.hint = "; ".join(filter(None, ("the workload runs on", error.hint)))

    def _keep_log(self, checkpoint: Checkpoint) -> None:
        """Keep CRIU's log of a failed dump: it is the only evidence there is."""
        log = checkpoint.work / "criu.log"
        if log.exists():
            # Not a rename: the images may lie on a file system of their own.
            shutil.move(log, self.files.directory / f"failed-{checkpoint.id}.log")
