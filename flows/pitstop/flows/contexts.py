"""The runs this process works on: opened once, shared by the tasks of one flow run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from pitstop.steps.context import RunContext
from pitstop.steps.runs import open_run

_open: dict[tuple[str, str], RunContext] = {}
_lock = threading.Lock()


def _log(text: str) -> None:
    try:
        get_run_logger().info(text)
    except MissingContextError:
        return  # closing down: there is no run left to log to


def context(home: str, run_id: str) -> RunContext:
    """Return the context of a run, opening it if this process has not.

    A task that runs in another process (Dask, Ray) so gets its own.
    """
    with _lock:
        found = _open.get((home, run_id))
        if found is None:
            found = open_run(Path(home), run_id, _log)
            _open[home, run_id] = found
        return found


@contextmanager
def opened(home: str, run_id: str) -> Iterator[RunContext]:
    """Open a run for the time of a block."""
    try:
        yield context(home, run_id)
    finally:
        with _lock:
            found = _open.pop((home, run_id), None)
        if found is not None:
            found.close()
