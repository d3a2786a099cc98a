"""The checkpoints of one workload on one node."""

from __future__ import annotations

import shutil
from pathlib import Path

from pitstop.images.checkpoint import Checkpoint, State
from pitstop.images.durable import make_directory, sync_directory
from pitstop.model.errors import InvalidCheckpoint


class Store:
    """A directory of checkpoints."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin(self, identifier: str) -> Checkpoint:
        """Make a place for a new checkpoint; leftovers of an earlier try are removed."""
        draft = Checkpoint(self.directory / f".{identifier}")
        if draft.path.exists():
            shutil.rmtree(draft.path)
        for directory in (draft.images, draft.work, draft.marks):
            make_directory(directory)
        return draft

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
        found = Checkpoint(self.directory / identifier)
        if identifier.startswith(".") or not found.path.is_dir():
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
