"""The checkpoints of one workload on one node."""

from __future__ import annotations

import shutil
from pathlib import Path

from pitstop.images.checkpoint import Checkpoint, State
from pitstop.images.durable import make_directory, sync_directory
from pitstop.model.errors import BadInput, InvalidCheckpoint, Refused
from pitstop.model.plain import is_name

_WORTHLESS = (State.UNFINISHED, State.ABORTED)


class Store:
    """A directory of checkpoints."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def check_new(self, identifier: str) -> None:
        """Say whether a new checkpoint may have this name.

        Raises:
            BadInput: it is no name.
            Refused: a checkpoint has it that is, or was, of use.
        """
        if not is_name(identifier):
            raise BadInput(repr(identifier), "not the name of a checkpoint")
        existing = Checkpoint(self.directory / identifier)
        if existing.path.exists() and existing.state() not in _WORTHLESS:
            raise Refused(
                identifier,
                f"a checkpoint of that name is there: it is {existing.state().value}",
                "choose another name",
            )

    def begin(self, identifier: str) -> Checkpoint:
        """Make a place for a new checkpoint; leftovers of an earlier try are removed.

        Raises:
            BadInput, Refused: see `check_new`.
        """
        self.check_new(identifier)
        draft = Checkpoint(self.directory / f".{identifier}")
        for leftover in (draft.path, self.directory / identifier):
            if leftover.exists():
                shutil.rmtree(leftover)
        for directory in (draft.images, draft.work, draft.marks):
            make_directory(directory)
        return draft

    def take_up(self, identifier: str) -> Checkpoint:
        """Make a place for a checkpoint that comes from elsewhere; what came before stays.

        Raises:
            BadInput, Refused: see `check_new`.
        """
        self.check_new(identifier)
        draft = Checkpoint(self.directory / f".{identifier}")
        for directory in (draft.images, draft.work, draft.marks):
            make_directory(directory)
        return draft

    def draft(self, identifier: str) -> Checkpoint | None:
        """Return what there is of a checkpoint that is not finished; None without any."""
        found = Checkpoint(self.directory / f".{identifier}")
        return found if is_name(identifier) and found.path.is_dir() else None

    def find(self, identifier: str) -> Checkpoint | None:
        """Return a finished checkpoint; None without one."""
        found = Checkpoint(self.directory / identifier)
        return found if is_name(identifier) and found.path.is_dir() else None

    def finish(self, draft: Checkpoint) -> Checkpoint:
        """Give a draft its final name. From here on the checkpoint is there, whole."""
        final = Checkpoint(self.directory / draft.id)
        sync_directory(draft.path)
        draft.path.rename(final.path)
        sync_directory(self.directory)
        return final

    def get(self, identifier: str) -> Checkpoint:
        """Return a finished checkpoint.

        Raises:
            InvalidCheckpoint: there is none of that name.
        """
        found = self.find(identifier)
        if found is None:
            raise InvalidCheckpoint(identifier, "there is no such checkpoint on this node")
        return found

    def all(self) -> list[Checkpoint]:
        """Return all checkpoints, unfinished ones included, oldest first."""
        if not self.directory.exists():
            return []
        found = [path for path in self.directory.iterdir() if path.is_dir()]
        return [Checkpoint(p) for p in sorted(found, key=lambda p: p.stat().st_mtime_ns)]

    def discard(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint with its memory images."""
        shutil.rmtree(checkpoint.path)
        sync_directory(self.directory)

    def newest(self, *states: State) -> Checkpoint | None:
        """Return the newest checkpoint in one of the states."""
        fitting = [c for c in self.all() if c.state() in states]
        return fitting[-1] if fitting else None
