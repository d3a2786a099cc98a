"""An application's own checkpoint: a file that is complete at some time."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

from pitstop.model.errors import DeadlineExceeded, PermanentError
from pitstop.node.clock import running_seconds

INTERVAL = 0.2
"""Seconds between looks: a file that another node writes to shared storage sends no event."""

GRAIN = 1.0
"""Seconds that a file's time may be behind the clock: some file systems keep whole seconds."""


def size_and_time(path: str) -> dict[str, Any] | None:
    """Return `bytes` and `modified` (seconds since 1970) of a file; None if there is none."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # As root, whom a file server may take for nobody.
        raise PermanentError(path, f"cannot be looked at: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        return None
    return {"bytes": found.st_size, "modified": found.st_mtime}


def wait_complete(path: str, since: float, quiet: float, deadline: float) -> dict[str, Any]:
    """Wait until a file was written after a moment, is not empty, and changes no more.

    Args:
        path: of the file.
        since: seconds since 1970, by this node's clock.
        quiet: seconds without a change that make it complete.
        deadline: seconds to wait.

    Returns:
        `path`, `bytes`, `modified`, `waited_seconds`.

    Raises:
        DeadlineExceeded: it did not come; the cause says what was seen instead.
    """
    begun = running_seconds()
    seen: dict[str, Any] | None = None
    unchanged = begun
    while True:
        now, found = running_seconds(), size_and_time(path)
        if found != seen:
            seen, unchanged = found, now
        if _fresh(seen, since) and now - unchanged >= quiet:
            assert seen is not None  # noqa: S101  # it is fresh
            return {"path": path, **seen, "waited_seconds": round(now - begun, 3)}
        if now - begun > deadline:
            raise DeadlineExceeded(
                path, f"no complete checkpoint after {deadline:g} s: {_words(seen, since)}"
            )
        time.sleep(INTERVAL)


def _fresh(found: dict[str, Any] | None, since: float) -> bool:
    return found is not None and found["bytes"] > 0 and found["modified"] > since - GRAIN


def _words(found: dict[str, Any] | None, since: float) -> str:
    if found is None:
        return "there is no such file"
    if not found["bytes"]:
        return "it is empty"
    if not _fresh(found, since):
        return f"it was last written {since - found['modified']:.0f} s before the signal"
    return "it still changes"
