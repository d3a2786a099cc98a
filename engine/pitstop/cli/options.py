"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SiteFile = Annotated[
    Path, typer.Option("--site", envvar="PITSTOP_SITE", help="The site's site.yaml.")
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="PITSTOP_HOME",
        help="Where journal and reports lie. Default: the user's state directory.",
    ),
]


def home_of(given: Path | None) -> Path:
    """Return the directory of journal and reports, made if it is not there."""
    base = os.environ.get("XDG_STATE_HOME")
    default = (Path(base) if base else Path.home() / ".local" / "state") / "pitstop"
    path = (given or default).resolve()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
