"""The CUDA driver, asked through a process of its own (`pitstop.node.cuda.worker`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pitstop.model.cuda import CudaAnswer, CudaRequest
from pitstop.node.clock import running_seconds
from pitstop.node.cuda.mark import GpuMark

START_SECONDS = 60.0
"""Seconds to load and initialise the driver; some seconds were seen (nvcf#263)."""

END_SECONDS = 10.0
"""Seconds that a worker may take to end. One that hangs in the kernel is left behind."""


class DriverUnusableError(Exception):
    """The driver could not be loaded or initialised; nothing was asked of it."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """What is brought back to running when this process is killed.

    Attributes:
        state: the engine's directory.
        workload: whose GPU state it is.
        mark: that says so. When another one is there, somebody else has parked it anew.
    """

    state: Path
    workload: str
    mark: GpuMark

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the worker."""
        return {
            "state": str(self.state),
            "workload": self.workload,
            "mark": self.mark.to_json(),
        }


class Driver:
    """Makes calls, each set of them at once and with one deadline.

    A worker that did not answer in time, or died, is replaced by the next call.

    Attributes:
        unusable: why the driver could not be asked the last time; empty when it could.
    """

    def __init__(self) -> None:
        self._worker: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._number = 0
        self._guarded: Guarded | None = None
        self.unusable = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def guard(self, guarded: Guarded | None) -> None:
        """From now on see that these processes run again if this one is killed; None ends it.

        Raises:
            DriverUnusableError: the driver cannot be used; never for None.
        """
        self._guarded = guarded
        if guarded is not None:
            self._tell_guard(self._ready())
        elif self._worker is not None:
            # One that has ended meanwhile guards nothing either.
            with contextlib.suppress(DriverUnusableError):
                self._tell_guard(self._worker)

    def ask(self, requests: Sequence[CudaRequest], seconds: float) -> list[CudaAnswer]:
        """Make calls at once, and return an answer for each, in the order of the requests.

        A call that is not answered within the deadline, or whose worker died of it, has an
        answer that says so (`CudaAnswer.answered`).
        """
        began = running_seconds()
        try:
            worker = self._ready()
        except DriverUnusableError as error:
            self.unusable = str(error)
            return [_no_answer(request, str(error), began, sent=False) for request in requests]
        self.unusable = ""
        waiting: dict[int, CudaRequest] = {}
        for request in requests:
            self._number += 1
            waiting[self._number] = request
        answers, why = self._exchange(worker, waiting, seconds)
        missing = {n: _no_answer(r, why, began) for n, r in waiting.items() if n not in answers}
        if missing:
            self._drop()
        return [{**missing, **answers}[number] for number in waiting]

    def close(self) -> None:
        """End the worker. What it guards must have been brought back or be gone."""
        self._guarded = None
        if self._worker is not None:
            self._drop()

    def _exchange(
        self, worker: subprocess.Popen[bytes], waiting: dict[int, CudaRequest], seconds: float
    ) -> tuple[dict[int, CudaAnswer], str]:
        """Return the answers that came, and why others did not."""
        answers: dict[int, CudaAnswer] = {}
        end = running_seconds() + seconds
        try:
            for number, request in waiting.items():
                self._tell(worker, {"id": number, **request.to_json()})
            while len(answers) < len(waiting):
                message = self._read(worker, end)
                if message is None:
                    return answers, f"no answer within {seconds:g} s"
                answers[int(message["id"])] = CudaAnswer.from_json(message)
        except EOFError as error:
            return answers, f"the driver ended the process that called it ({error})"
        return answers, ""

    def _ready(self) -> subprocess.Popen[bytes]:
        """Return a worker that has initialised the driver, started when there is none."""
        if self._worker is not None:
            return self._worker
        worker = self._worker = subprocess.Popen(
            [sys.executable, "-m", "pitstop.node.cuda.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,  # whatever ends this process's group, the guard stays
        )
        self._unread = b""
        try:
            message = self._read(worker, running_seconds() + START_SECONDS)
            error = (
                str(message["error"])
                if message is not None
                else f"it was not initialised within {START_SECONDS:g} s"
            )
        except EOFError as problem:
            error = f"it ended the process that loaded it ({problem})"
        if error:
            self._drop()
            raise DriverUnusableError(f"the CUDA driver cannot be used: {error}")
        if self._guarded is not None:
            self._tell_guard(worker)
        return worker

    def _tell_guard(self, worker: subprocess.Popen[bytes]) -> None:
        message = self._guarded.to_json() if self._guarded is not None else None
        try:
            self._tell(worker, {"guard": message})
            heard = self._read(worker, running_seconds() + START_SECONDS)
        except EOFError as error:
            self._drop()
            raise DriverUnusableError(f"its caller ended: {error}") from error
        if heard is None:
            # Its answer, when it comes, would be taken for that of a call.
            self._drop()
            raise DriverUnusableError(f"its caller did not answer within {START_SECONDS:g} s")

    def _tell(self, worker: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        assert worker.stdin is not None  # noqa: S101  # a pipe was asked for
        try:
            worker.stdin.write(json.dumps(message).encode() + b"\n")
            worker.stdin.flush()
        except BrokenPipeError:
            raise EOFError(_ending(worker)) from None

    def _read(self, worker: subprocess.Popen[bytes], end: float) -> dict[str, Any] | None:
        """Return the worker's next message; None when it did not come in time.

        Raises:
            EOFError: the worker has ended.
        """
        assert worker.stdout is not None  # noqa: S101  # a pipe was asked for
        poll = select.poll()
        poll.register(worker.stdout, select.POLLIN)
        while b"\n" not in self._unread:
            left = end - running_seconds()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            received = os.read(worker.stdout.fileno(), 65536)
            if not received:
                raise EOFError(_ending(worker))
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _drop(self) -> None:
        """End the worker without a word: it guards nothing that another one will not."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(END_SECONDS)
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _ending(worker: subprocess.Popen[bytes]) -> str:
    try:
        status = worker.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return "it has closed its output and does not end"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _no_answer(request: CudaRequest, why: str, began: float, sent: bool = True) -> CudaAnswer:
    now = running_seconds()
    pid, call = request.pid, request.call
    return CudaAnswer(pid, call, error=why, answered=False, sent=sent, began=began, ended=now)
