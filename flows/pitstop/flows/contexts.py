"""The runs this process works on: opened once, shared by the tasks of one flow run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from pitstop.model.errors import Busy
from pitstop.steps.context import RunContext
from pitstop.steps.runs import open_run

_open: dict[tuple[str, str], RunContext] = {}
_lock = threading.Lock()


def say(text: str) -> None:
    """Log to the task run or flow run that this is done for."""
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
            found = open_run(Path(home), run_id, say)
            _open[home, run_id] = found
        return found


@contextmanager
def opened(home: str, run_id: str) -> Iterator[RunContext]:
    """Open a run for the time of a block.

    Raises:
        Busy: this process has it open already, for another flow run.
    """
    with _lock:
        if (home, run_id) in _open:
            raise Busy(run_id, "another flow run of this process drives it", "wait for it")
        found = open_run(Path(home), run_id, say)
        _open[home, run_id] = found
    try:
        yield found
    finally:
        with _lock:
            del _open[home, run_id]
        found.close()
