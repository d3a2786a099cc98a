"""Which processes of a workload are CUDA processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pitstop.model.cuda import Call, CudaAnswer, CudaRequest
from pitstop.node.cuda.undo import Caller
from pitstop.node.processes import Identity

JOB_FILE = b"CUDA_CHECKPOINT_JOB_FILE="
"""In the environment of processes that share memory by IPC under `--launch-job`: the driver
takes those one after another (cuda-checkpoint#43, #56)."""


def candidates(tree: Sequence[Identity]) -> list[Identity]:
    """Return what has the driver's library mapped: anything else is no CUDA process."""
    return [process for process in tree if _maps_cuda(process.pid)]


def _maps_cuda(pid: int) -> bool:
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as lines:
            return any(b"/libcuda.so" in line for line in lines)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended


def find(caller: Caller, among: Sequence[Identity], seconds: float) -> tuple[list[int], list[str]]:
    """Ask the driver which of these are CUDA processes.

    By the thread that restores them: a state is also answered for processes without CUDA that
    only launch some (ai-dynamo/snapshot: agent/internal/cuda/cuda.go).

    Returns:
        their PIDs, and what kept the driver from answering about any of them.
    """
    if not among:
        return [], []
    requests = [CudaRequest(process.pid, Call.RESTORE_THREAD) for process in among]
    answers = caller.ask(requests, seconds)
    found = [a.pid for a in answers if a.ok and _is_thread_id(a)]
    return found, [str(answer) for answer in answers if not answer.answered]


def _is_thread_id(answer: CudaAnswer) -> bool:
    return answer.value.isdigit() and int(answer.value) > 0


def in_turn(pids: Sequence[int]) -> bool:
    """Tell whether the driver has to take these processes one after another."""
    return any(_has_job_file(pid) for pid in pids)


def _has_job_file(pid: int) -> bool:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(entry.startswith(JOB_FILE) for entry in entries)
