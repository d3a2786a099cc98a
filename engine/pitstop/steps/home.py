"""Where journal and reports lie."""

from __future__ import annotations

import os
from pathlib import Path

from pitstop.model.errors import BadInput


def home_of(given: Path | None = None) -> Path:
    """Return the directory of journal and reports, made if it is not there.

    Args:
        given: what was asked for; else `PITSTOP_HOME`, else the user's state directory.

    Raises:
        BadInput: it cannot be made.
    """
    path = (given or _default()).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadInput(str(path), f"cannot be used as home directory: {error.strerror}") from None
    return path


def _default() -> Path:
    if os.environ.get("PITSTOP_HOME"):
        return Path(os.environ["PITSTOP_HOME"])
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "pitstop"
