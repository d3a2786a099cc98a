"""What became of checkpoints whose dump was cut short: said by whoever can prove it."""

from __future__ import annotations

from pitstop.images.checkpoint import Checkpoint, Mark, State
from pitstop.images.store import Store
from pitstop.model.errors import InvalidCheckpoint
from pitstop.node.clock import now
from pitstop.node.paths import StateDir, boot_id
from pitstop.node.processes import Identity
from pitstop.node.record import WorkloadState


def checkpoints_of_this_start(files: WorkloadState, state: StateDir) -> list[Checkpoint]:
    """Return the finished checkpoints of the newest start of a workload, oldest first."""
    generation = files.record().generation
    found = []
    for checkpoint in Store(state.images(files.name)).all():
        if checkpoint.state() is State.UNFINISHED:
            continue
        try:
            if checkpoint.manifest().generation == generation:
                found.append(checkpoint)
        except InvalidCheckpoint:
            continue  # verification will name the damage when somebody wants to use it
    return found


def settle_checkpoints(files: WorkloadState, state: StateDir) -> bool:
    """Seal checkpoints that were meant to end the original, now that it is gone.

    Only to be called by a process that knows that no copy lives: it holds the workload's
    lock, or has seen the workload end.

    Returns:
        Whether the newest start was ended by a checkpoint.
    """
    states = []
    for checkpoint in checkpoints_of_this_start(files, state):
        if checkpoint.state() is State.INTENDED and not _original_runs(checkpoint):
            checkpoint.mark(Mark.SEALED, {"time": now()})
        states.append(checkpoint.state())
    return State.SEALED in states


def disprove_checkpoints(files: WorkloadState, state: StateDir) -> None:
    """Mark checkpoints as worthless that were meant to end an original which still runs.

    Only to be called by a process that knows that the original runs.
    """
    for checkpoint in checkpoints_of_this_start(files, state):
        if checkpoint.state() is State.INTENDED:
            checkpoint.mark(Mark.ABORTED, {"time": now(), "cause": "the original ran on"})


def _original_runs(checkpoint: Checkpoint) -> bool:
    """Whether the process that was saved still runs: one without launcher holds no lock."""
    intent = checkpoint.marked(Mark.INTENT) or {}
    root = intent.get("root")
    if root is None or intent.get("boot_id") != boot_id():
        return False
    return Identity(int(root["pid"]), int(root["start"])).alive()
