"""Restore: from a sealed checkpoint to a running tree below pid 1 of a new namespace."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pitstop.decide.failures import Where, judge
from pitstop.images.checkpoint import Checkpoint, Mark, State
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.cuda import CudaLimits
from pitstop.model.errors import (
    InvalidCheckpoint,
    PitstopError,
    PortTaken,
    Refused,
    RestoreFailed,
    WorkloadGone,
)
from pitstop.node import criu, processes
from pitstop.node.clock import now
from pitstop.node.cuda.boundary import Boundary, BoundaryFailedError
from pitstop.node.cuda.driver import Driver
from pitstop.node.cuda.placing import gpu_map_here
from pitstop.node.inventory import refuse_if_changed
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState
from pitstop.node.vote import Ballot, hook_program

if TYPE_CHECKING:
    from pitstop.model.manifest import CudaSaved, Manifest

RESTORE_DEADLINE = 3600.0


class Wanted(Protocol):
    """What the launcher's request says of a restore."""

    @property
    def workload(self) -> str:
        """The workload's name."""

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint asked for by name."""

    @property
    def run(self) -> str:
        """The run that asks."""

    @property
    def uid(self) -> int:
        """The user id that it is to run as."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that it is started with."""

    @property
    def gated(self) -> bool:
        """Whether the gate was just asked."""


class Restorer:
    """One attempt to restore a workload. The caller holds the workload's lock."""

    def __init__(self, state: StateDir, files: WorkloadState, wanted: Wanted) -> None:
        self._state = state
        self._files = files
        self._wanted = wanted
        self._found = self._choose()
        self._manifest: Manifest | None = None
        self._gpu_map: Mapping[str, str] = {}

    @property
    def found(self) -> bool:
        """Whether there is a checkpoint that could be restored."""
        return self._found is not None

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint chosen."""
        if self._found is None:
            raise RestoreFailed(self._wanted.workload, "there is no checkpoint to restore")
        return self._found

    def _choose(self) -> Checkpoint | None:
        store = Store(self._state.images(self._wanted.workload))
        if self._wanted.checkpoint is not None:
            return store.get(self._wanted.checkpoint)
        return store.newest(State.SEALED)

    def prepare(self) -> None:
        """Everything that can be found out before anything is touched.

        Raises:
            InvalidCheckpoint: used up, stale, or not what was signed.
            Refused: the gate says no.
        """
        checkpoint = self.checkpoint
        if checkpoint.state() is not State.SEALED:
            raise InvalidCheckpoint(
                checkpoint.id, f"cannot be restored: it is {checkpoint.state().value}"
            )
        manifest = checkpoint.verify(Keys(self._state.keys()))
        if manifest.workload != self._wanted.workload:
            raise InvalidCheckpoint(checkpoint.id, f"is of workload {manifest.workload}")
        if manifest.owner != self._wanted.uid:
            raise InvalidCheckpoint(checkpoint.id, "is of another user's workload")
        generation = self._files.record().generation
        if generation not in (0, manifest.generation):
            raise InvalidCheckpoint(
                checkpoint.id,
                f"stale: it is of start {manifest.generation}, the newest is {generation}",
                "the workload ran on past it; restoring would repeat work already done",
            )
        if not self._wanted.gated:
            refuse_if_changed(manifest)
        unfit = criu.check_cpu(checkpoint)
        if unfit and "host.cpu" not in manifest.tolerate:
            raise Refused(checkpoint.id, f"this CPU cannot run the image: {unfit}")
        if manifest.cuda is not None:
            self._gpu_map = gpu_map_here(checkpoint.id, manifest.cuda, self._wanted.env)
        self._manifest = manifest

    def cut_logs(self) -> None:
        """Bring the engine's own append-mode logs back to their length at the dump.

        What was written after it is kept beside the log: it happened, though the restored
        process knows nothing of it.
        """
        # Another node may reach the same directory by another path.
        ours = [path.resolve() for path in self._files.log_paths()]
        for log in self._verified().logs:
            path = Path(log.path)
            if path.resolve() not in ours:
                continue
            # Made if it was rotated away, with the mode that CRIU will ask for.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "ab+") as file:
                extra = file.tell() - log.length
                if extra > 0:
                    file.seek(log.length)
                    aside = path.with_name(f"{path.name}.after-{self.checkpoint.id}")
                    aside.write_bytes(file.read())
                    aside.chmod(0o600)
                    file.truncate(log.length)

    def restore(self) -> int:
        """Run CRIU and return the root's PID. Runs as pid 1 of the new namespace.

        Raises:
            RestoreFailed: CRIU could not; nothing of the workload runs.
        """
        manifest, checkpoint = self._verified(), self.checkpoint
        pid_file = checkpoint.work / "root.pid"
        pid_file.unlink(missing_ok=True)
        ballot = Ballot(checkpoint)
        try:
            status = ballot.run(
                criu.restore_command(
                    checkpoint, manifest.options, hook_program(self._state), pid_file
                ),
                "post-restore",
                self._consume,
                RESTORE_DEADLINE,
            )
        finally:
            ballot.close()
        if status != 0:
            raise self._failure(criu.errors(checkpoint))
        if manifest.cuda is not None:
            # CRIU's success is not the workload's: its GPU state is still in host memory.
            self._restore_gpus(manifest.cuda)
        return int(pid_file.read_text())

    def _restore_gpus(self, saved: CudaSaved) -> None:
        """Bring the GPU state back. Runs as pid 1, which sees the PIDs of the image."""
        limits = CudaLimits.from_json(saved.limits)
        with Driver() as driver:
            try:
                tree = [processes.identity(pid) for pid in saved.pids]
                Boundary(driver, tree, limits, saved.in_turn).restore(self._gpu_map)
            except BoundaryFailedError as error:
                raise self._failure(error.lines, error.where) from error
            except WorkloadGone as error:
                raise self._failure([str(error)], Where.CUDA_RESTORE) from error

    def _failure(self, lines: Sequence[str], where: Where = Where.RESTORE) -> PitstopError:
        causes = "; ".join(lines[:5]) or "CRIU failed and named no error"
        known = judge(lines, where)
        # Only before the checkpoint is used up is there anything left to try again with.
        left = self.checkpoint.state() is State.SEALED
        taken = left and "Address already in use" in causes
        kind = PortTaken if taken else RestoreFailed
        error = kind(self._wanted.workload, f"{causes}{known.mark}", known.hint)
        return error.judged(known.failure, known.retryable if left else False)

    def _consume(self) -> bool:
        """Use the checkpoint up: the last thing before the restored processes run."""
        record = self._files.record()
        generation = self._verified().generation + 1
        self.checkpoint.mark(
            Mark.CONSUMED, {"time": now(), "run": self._wanted.run, "generation": generation}
        )
        self._files.write(replace(record, generation=generation))
        return True

    def _verified(self) -> Manifest:
        if self._manifest is None:
            raise RestoreFailed(self._wanted.workload, "the checkpoint was not verified")
        return self._manifest
