"""The process that calls the CUDA driver: `python -m pitstop.node.cuda.worker`.

A driver call can hang for ever or end its caller. So it is made by a process of its own, a
thread for each call: requests and answers are JSON lines on stdin and stdout. Whoever asks sets
the deadline and ends this process when it is not kept.

It is also the guard of what it has locked: when whoever asks ends without a word, it brings
every process back to running, after CRIU, which holds the same operation's lock, has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from pitstop.model.cuda import Call, CudaAnswer, CudaRequest
from pitstop.node.clock import running_seconds
from pitstop.node.cuda.driver import Driver
from pitstop.node.cuda.mark import GpuMark, clear_mark, read_mark
from pitstop.node.cuda.undo import bring_back
from pitstop.node.locks import Lock
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState

GUARD_PATIENCE = 3600.0
"""Seconds for CRIU to end after whoever has started it was killed."""


def perform(request: CudaRequest) -> CudaAnswer:
    """Make one call and return its answer. It does not raise for what a driver can say."""
    began = running_seconds()
    value = error = ""
    try:
        value = _call(request)
    except Exception as problem:  # noqa: BLE001  # the binding has no common base for its errors
        error = _first_sentence(problem)
    return CudaAnswer(request.pid, request.call, value, error, began=began, ended=running_seconds())


def _call(request: CudaRequest) -> str:
    from cuda.core.checkpoint import Process

    process = Process(request.pid)
    match request.call:
        case Call.STATE:
            return str(process.state)
        case Call.RESTORE_THREAD:
            return str(process.restore_thread_id)
        case Call.LOCK:
            process.lock(request.timeout_ms)
        case Call.CHECKPOINT:
            process.checkpoint()
        case Call.RESTORE:
            process.restore({_bare(a): _bare(b) for a, b in request.gpu_map.items()} or None)
        case Call.UNLOCK:
            process.unlock()
    return ""


NOT_SUPPORTED = (
    "CUDA_ERROR_NOT_SUPPORTED: not with what this process uses (unified memory, IPC, MIG), or not "
    "by this driver at all"
)
"""In place of the binding's words, which only ever blame the driver's version."""


def _first_sentence(problem: Exception) -> str:
    """Return an error's name and what it means; the binding adds a paragraph of advice."""
    if isinstance(problem, RuntimeError) and "is not supported by the installed" in str(problem):
        return NOT_SUPPORTED
    text = str(problem).strip().split("\n")[0] or type(problem).__name__
    return text.split(". ")[0][:300]


def _bare(uuid: str) -> str:
    """NVML writes `GPU-` before a UUID, CUDA does not."""
    return uuid.removeprefix("GPU-")


def initialise() -> str:
    """Load and initialise the driver once; return why it cannot be used, or an empty text."""
    try:
        from cuda.bindings import driver
        from cuda.core import checkpoint  # noqa: F401  # before threads import it at once

        (status,) = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            _, text = driver.cuGetErrorString(status)
            return f"{status.name}: {text.decode(errors='replace') if text else ''}"
    except Exception as problem:  # noqa: BLE001  # whatever a library does when it is loaded
        return _first_sentence(problem)
    return ""


def main() -> None:
    """Serve until stdin ends."""
    say = threading.Lock()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def tell(message: Mapping[str, Any]) -> None:
        # Nobody reads any more once whoever asks has been killed.
        with say, contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=answers, flush=True)

    def serve(number: int, request: CudaRequest) -> None:
        tell({"id": number, **perform(request).to_json()})

    tell({"ready": True, "error": initialise()})
    guarded: Mapping[str, Any] | None = None
    calls: list[threading.Thread] = []
    for line in sys.stdin:
        message = json.loads(line)
        if "guard" in message:
            guarded = message["guard"]
            tell({"guarding": guarded is not None})
            continue
        request = CudaRequest.from_json(message)
        call = threading.Thread(target=serve, args=(message["id"], request), daemon=True)
        call.start()
        calls = [one for one in calls if one.is_alive()] + [call]
    if guarded is not None:
        _guard(guarded, calls)


def _guard(guarded: Mapping[str, Any], calls: Sequence[threading.Thread]) -> None:
    """Bring back what is still parked once nobody works on the workload any more.

    By a worker of its own, with deadlines: it holds the operation's lock for that time only.
    """
    files = WorkloadState(StateDir.at(str(guarded["state"])), str(guarded["workload"]))
    ours = GpuMark.from_json(guarded["mark"])
    lock = Lock(files.operation_lock)
    lock.acquire(GUARD_PATIENCE)
    try:
        # A lock that is still asked for would come after all was seen to run.
        end = running_seconds() + ours.limits.lock + ours.limits.move
        for call in calls:
            call.join(max(0.0, end - running_seconds()))
        mark = read_mark(files)
        if mark is not None and mark.token != ours.token:
            return  # somebody else has taken care of it, and has parked it anew
        with Driver() as driver:
            undone = bring_back(driver, ours.processes, ours.limits, ours.in_turn)
        if not undone.lost and not undone.unasked:
            clear_mark(files)
        # Else it stays, and whoever asks what became of the operation draws the consequence.
        print(f"pitstop: after its operation was killed: {undone}", file=sys.stderr, flush=True)
    finally:
        lock.release()


if __name__ == "__main__":
    main()
