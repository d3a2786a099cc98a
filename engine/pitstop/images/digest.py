"""BLAKE3 digests of image files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pitstop.model.manifest import ImageFile


def digest_file(path: Path) -> ImageFile:
    """Read a file once and return its name, size and digest."""
    from blake3 import blake3

    from pitstop.model.manifest import ImageFile

    # Two threads: more gain nothing on memory-mapped pages and steal from the workload's node.
    hasher = blake3(max_threads=2)
    hasher.update_mmap(path)
    return ImageFile(name=path.name, size=path.stat().st_size, blake3=hasher.hexdigest())


def digest_directory(directory: Path) -> tuple[ImageFile, ...]:
    """Digest every file of a directory, in name order.

    Raises:
        ValueError: something in it is not a plain file.
    """
    entries = sorted(directory.iterdir())
    for entry in entries:
        if entry.is_symlink() or not entry.is_file():
            raise ValueError(f"{entry.name}: only plain files belong among images")
    return tuple(digest_file(entry) for entry in entries)
