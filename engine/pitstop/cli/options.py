"""Options that several commands share."""

from __future__ import annotations

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
