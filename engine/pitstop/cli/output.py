"""How a command talks: results on stdout, progress and errors on stderr, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from pitstop.model.errors import PitstopError

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


def emit(data: Any, as_json: bool, human: Callable[[], None]) -> None:
    """Print a result: as JSON for programs, else for people."""
    if as_json:
        sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=1) + "\n")
    else:
        human()


def progress(text: str) -> None:
    """Show what happens, one line each; to stderr, so that stdout stays the result."""
    err.print(f"[dim]·[/dim] {escape(printable(text))}")


def printable(text: str) -> str:
    """Make control characters visible: names and output come from elsewhere."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


@contextmanager
def errors(as_json: bool) -> Iterator[None]:
    """Turn errors into a message and the exit code of DESIGN, section 6."""
    try:
        yield
    except PitstopError as error:
        if as_json:
            sys.stdout.write(json.dumps({"error": error.to_json()}, ensure_ascii=False) + "\n")
        err.print(
            f"[red]{escape(printable(str(error.subject)))}[/red]: {escape(printable(error.cause))}"
        )
        if error.hint:
            err.print(f"  [dim]{escape(printable(error.hint))}[/dim]")
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        err.print("interrupted; what runs on a node goes on there")
        raise typer.Exit(130) from None
