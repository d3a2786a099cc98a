"""A launcher that stays after its workload was saved, for as long as its job is there.

A job ends with its script, and its script goes on when the launcher ends. So when a
scheduler's job is saved, its launcher parks: it holds a lock that says so, and waits for one
of two things. The scheduler ends it, with the job that is put back into the queue. Or the run
has given up, and orders it to bring the workload back where it is, in the same job.
"""

from __future__ import annotations

import errno
import json
import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitstop.images.checkpoint import Mark, State
from pitstop.images.store import Store
from pitstop.model.errors import (
    Busy,
    DeadlineExceeded,
    PitstopError,
    RestoreFailed,
    WorkloadGone,
)
from pitstop.node.clock import now, running_seconds
from pitstop.node.locks import Lock, held, is_held
from pitstop.node.paths import StateDir
from pitstop.node.record import Phase, WorkloadState
from pitstop.node.signals import Signals

LOOK_AGAIN = 0.05
ANSWER_SLICE = 1.0
"""Seconds until it is looked whether the launcher still waits for orders."""

STAY = "stay"
"""In a checkpoint's intent: whoever launched the workload is to park."""


def is_parked(files: WorkloadState) -> bool:
    """Tell whether a launcher of this workload waits. Its lock is the proof."""
    return is_held(_lock_path(files))


def told_to_stay(files: WorkloadState, state: StateDir) -> bool:
    """Tell whether the checkpoint that has just ended the workload says so."""
    newest = Store(state.images(files.name)).newest(State.SEALED)
    return newest is not None and bool((newest.marked(Mark.INTENT) or {}).get(STAY))


class Parked:
    """A launcher's stay: from before it gives its workload's lock back, until an order."""

    def __init__(self, files: WorkloadState) -> None:
        self._lock = Lock(_lock_path(files))
        fifo = _fifo_path(files)
        if not fifo.exists():
            os.mkfifo(fifo, 0o600)
        # For writing as well: with no writer a reader alone would see an end at once.
        self._orders = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if not self._lock.try_acquire():
            os.close(self._orders)
            raise Busy(files.name, "another launcher of it waits already")

    def wait(self, signals: Signals) -> dict[str, Any] | int:
        """Wait for an order, or for a signal that is to end the job; return either."""
        awaited = select.poll()
        awaited.register(self._orders, select.POLLIN)
        awaited.register(signals, select.POLLIN)
        unread = b""
        while True:
            ready = [descriptor for descriptor, _ in awaited.poll()]
            if signals.fileno() in ready:
                ending = [number for number in signals.take() if number in signals.ENDING]
                if ending:
                    return ending[0]
            if self._orders in ready:
                unread += os.read(self._orders, 65536)
                line, separator, _ = unread.partition(b"\n")
                if separator:
                    order: dict[str, Any] = json.loads(line)
                    return order

    def end(self) -> None:
        """Park no longer."""
        os.close(self._orders)
        self._lock.release()


def bring_back(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Order a parked launcher to bring its workload back, and wait until it has.

    Args:
        state: the node's state.
        arguments: `workload`, `run`, `checkpoint`, and `deadline` in seconds.

    Returns:
        `how`: `restored`, or `cold` with its `cause`; `ready_seconds` until it ran; `ready`.

    Raises:
        WorkloadGone: no launcher waits: its job has ended.
        PitstopError: it could not be brought back.
    """
    files = WorkloadState(state, str(arguments["workload"]))
    with held(files.operation_lock, files.name, "another operation on this workload"):
        run, deadline = str(arguments["run"]), float(arguments["deadline"])
        begun = running_seconds()
        if _obeys(files, run):
            # A try before this one was cut off after its order: that one is being obeyed.
            message, since = _wait_started(files, run, begun + deadline), 0.0
        else:
            message, since = _order(files, arguments, begun + deadline), begun
        if "failed" in message:
            raise PitstopError.from_json(message["failed"])
        files.release(run)
        return _said(files, message, since)


def _obeys(files: WorkloadState, run: str) -> bool:
    """Whether a launcher starts it, or has started it, for this run."""
    return files.running() and files.record().run == run


def _wait_started(files: WorkloadState, run: str, end: float) -> dict[str, Any]:
    while (record := files.record()).phase is Phase.STARTING and files.running():
        if running_seconds() > end:
            raise DeadlineExceeded(files.name, "its launcher is still starting it")
        time.sleep(LOOK_AGAIN)
    if record.phase is not Phase.RUNNING or not _obeys(files, run):
        raise RestoreFailed(files.name, f"it does not run: {record.cause or 'its launcher ended'}")
    return {"how": record.how, "cause": record.cause}


def _order(files: WorkloadState, arguments: Mapping[str, Any], end: float) -> dict[str, Any]:
    reply = files.directory / "parked.reply"
    reply.unlink(missing_ok=True)
    os.mkfifo(reply, 0o600)
    answers = os.open(reply, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        order = {"run": arguments["run"], "checkpoint": arguments["checkpoint"]}
        _tell(files, {**order, "reply": str(reply), "begun": running_seconds()})
        return _answer(files, answers, str(arguments["run"]), end)
    finally:
        os.close(answers)
        reply.unlink(missing_ok=True)


def _tell(files: WorkloadState, order: Mapping[str, Any]) -> None:
    if not is_parked(files):
        raise WorkloadGone(files.name, "no launcher waits for it: its job has ended")
    try:
        descriptor = os.open(_fifo_path(files), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise WorkloadGone(files.name, "its launcher waits on another node") from error
    try:
        os.write(descriptor, json.dumps(order).encode() + b"\n")
    finally:
        os.close(descriptor)


def _answer(files: WorkloadState, answers: int, run: str, end: float) -> dict[str, Any]:
    awaited = select.poll()
    awaited.register(answers, select.POLLIN)
    unread = b""
    while b"\n" not in unread:
        if running_seconds() > end:
            raise DeadlineExceeded(files.name, "not brought back in time")
        if awaited.poll(ANSWER_SLICE * 1000):
            received = os.read(answers, 65536)
            if not received:
                raise RestoreFailed(files.name, "its launcher ended without a word")
            unread += received
        elif not is_parked(files):
            # It obeys an order before this one, whose asker is gone.
            return _wait_started(files, run, end)
    found: dict[str, Any] = json.loads(unread.partition(b"\n")[0])
    return found


def _said(files: WorkloadState, message: Mapping[str, Any], begun: float) -> dict[str, Any]:
    record = files.record()
    return {
        "how": message["how"],
        "cause": message["cause"],
        "generation": record.generation,
        "ready": now(),
        "ready_seconds": round(running_seconds() - (begun or record.started_running), 6),
    }


def _lock_path(files: WorkloadState) -> Path:
    return files.directory / "parked.lock"


def _fifo_path(files: WorkloadState) -> Path:
    return files.directory / "parked.fifo"
