"""All checkpoints of a node, as plain data for people and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pitstop.images.checkpoint import Checkpoint, State
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.errors import InvalidCheckpoint


def list_images(root: Path, workload: str | None) -> list[dict[str, Any]]:
    """Return one entry per checkpoint, oldest first within a workload."""
    return [_entry(checkpoint) for checkpoint in _checkpoints(root, workload)]


def verify_images(
    root: Path, keys: Path, workload: str | None, checkpoint: str | None
) -> list[dict[str, Any]]:
    """Verify signature and every file's digest; `fault` is empty where all is as signed.

    Raises:
        InvalidCheckpoint: the checkpoint named is not there.
    """
    found = [c for c in _checkpoints(root, workload) if checkpoint in (None, c.id)]
    if checkpoint is not None and not found:
        raise InvalidCheckpoint(checkpoint, "there is no such checkpoint on this node")
    return [{**_entry(c), "fault": _fault(c, Keys(keys))} for c in found]


def _checkpoints(root: Path, workload: str | None) -> list[Checkpoint]:
    if not root.exists():
        return []
    names = sorted(p.name for p in root.iterdir() if p.is_dir() and workload in (None, p.name))
    return [checkpoint for name in names for checkpoint in Store(root / name).all()]


def _fault(checkpoint: Checkpoint, keys: Keys) -> str:
    if checkpoint.state() is State.UNFINISHED:
        return "never finished"
    try:
        checkpoint.verify(keys)
    except InvalidCheckpoint as error:
        return error.cause
    return ""


def _entry(checkpoint: Checkpoint) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "checkpoint": checkpoint.id,
        "workload": checkpoint.path.parent.name,
        "state": checkpoint.state().value,
    }
    try:
        manifest = checkpoint.manifest()
    except InvalidCheckpoint as error:
        return {**entry, "damage": error.cause}
    return {
        **entry,
        "created": manifest.created,
        "run": manifest.run,
        "generation": manifest.generation,
        "bytes": manifest.total_bytes,
        "processes": len(manifest.pids),
        "connections": manifest.connections.value,
    }
