"""Suspend and resume: GPU state parked in host memory, without CRIU, for swaps on one node.

The processes stay, and with them all that is in host memory. So it does not survive a reboot,
nor an end of the workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pitstop.model.cuda import CudaLimits
from pitstop.model.errors import Cancelled, Refused
from pitstop.node import answers, cancelling, subject
from pitstop.node.blockers import needs, reader
from pitstop.node.clock import now, running_seconds
from pitstop.node.cuda.boundary import Boundary, BoundaryFailedError
from pitstop.node.cuda.driver import Driver
from pitstop.node.cuda.mark import GpuMark, clear_mark, read_mark
from pitstop.node.cuda.parking import ParkedGpus, finish, recover
from pitstop.node.cuda.placing import refuse_unless_free
from pitstop.node.locks import held
from pitstop.node.paths import StateDir
from pitstop.node.processes import Identity
from pitstop.node.record import WorkloadState

_UNDER_WAY = "another operation on this workload"


def suspend(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Park a workload's GPU state in host memory. Its CPU threads run on.

    Args:
        state: the node's state.
        arguments: `workload`, `run`, `pid_file`, `gpu_limits`.

    Returns:
        `processes`, `gpu_bytes`, `seconds`, `trace`, `survives_reboot` (never).

    Raises:
        Refused: it has no GPU state, or there is no room for it; nothing was touched.
        CheckpointFailed: it runs on as before.
        EndedInDump: GPU state was lost, so it was ended.
    """
    files = WorkloadState(state, str(arguments["workload"]))
    limits = CudaLimits.from_json(arguments.get("gpu_limits", {}))
    run = str(arguments.get("run", ""))
    with held(files.operation_lock, files.name, _UNDER_WAY):
        recover(files)
        mark = read_mark(files)
        if mark is not None:
            return _suspended(files.name, mark, run)
        found = subject.find(files, arguments.get("pid_file"))
        # A request to stop waits until all is parked, or brought back on the way out.
        with cancelling.deferred(), ParkedGpus(files, found, limits, run) as gpus:
            if not gpus.processes:
                raise Refused(files.name, "it has no GPU state to park")
            _refuse_without_memory(files.name, state.root, found.tree, gpus)
            return _park(files.name, gpus)


def _refuse_without_memory(
    name: str, images: Path, tree: Sequence[Identity], gpus: ParkedGpus
) -> None:
    """All that is on the GPUs has to fit into host memory.

    Raises:
        Refused: it does not; nothing was touched.
    """
    facts = reader.read(tree, images, gpus.pids, sum(gpus.holds.values()))
    found = [str(blocker) for blocker in needs.memory(facts)]
    if found:
        raise Refused(name, found[0])


def _park(name: str, gpus: ParkedGpus) -> dict[str, Any]:
    begun = running_seconds()
    gpus.park()  # brought back on the way out, unless it is kept
    if cancelling.asked():
        raise Cancelled(name, "cancelled on request")
    result = {
        "processes": len(gpus.pids),
        "gpu_bytes": sum(gpus.holds.values()),
        "seconds": round(running_seconds() - begun, 6),
        "suspended": now(),
        "survives_reboot": False,
        "trace": [answer.to_json() for answer in gpus.trace],
    }
    gpus.keep(result=result, holds=gpus.holds)
    return result


def resume(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Bring a suspended workload back onto its GPUs, and wait until it is ready.

    Args:
        state: the node's state.
        arguments: `workload`, `run`, `ready`, `gpu_limits`.

    Returns:
        `ready_seconds` from the first call to ready, `processes`, `trace`, `ready`.

    Raises:
        Refused: it is not suspended, or its GPUs are not free; it stays as it is.
        EndedInDump: its GPU state could not be brought back, so it was ended.
        NotReady: it runs, but does not become ready.
    """
    files = WorkloadState(state, str(arguments["workload"]))
    limits = CudaLimits.from_json(arguments.get("gpu_limits", {}))
    with held(files.operation_lock, files.name, _UNDER_WAY):
        recover(files)
        mark = read_mark(files)
        if mark is None or mark.what != "suspended":
            raise Refused(files.name, "it is not suspended")
        pids = [process.pid for process in mark.processes]
        refuse_unless_free(files.name, mark.data["holds"], pids)
        begun = running_seconds()
        with cancelling.deferred(), Driver() as driver:
            boundary = Boundary(driver, mark.processes, limits, mark.in_turn)
            _bring_back(files, mark, boundary)
        clear_mark(files)
        ready = answers.wait_ready(arguments["ready"], mark.root.alive)
        return {
            "ready_seconds": round(ready - begun, 6),
            "ready": now(),
            "processes": len(mark.processes),
            "trace": [answer.to_json() for answer in boundary.trace],
        }


def _bring_back(files: WorkloadState, mark: GpuMark, boundary: Boundary) -> None:
    try:
        boundary.restore({})
    except BoundaryFailedError:
        undone = boundary.undo()  # the same way, with what failed tried again
        if undone.unasked:
            raise Refused(
                files.name,
                f"it stays suspended: {undone.unasked}",
                "mend the driver (pitstop doctor), then ask again",
            ) from None
        finish(files, mark, undone, held=boundary.pids)


def _suspended(name: str, mark: GpuMark, run: str) -> dict[str, Any]:
    """Asked again for what is done: by the same run that is no error."""
    if mark.what != "suspended" or mark.run != run:
        raise Refused(name, f"it is suspended already ({mark.run or 'by hand'})")
    return dict(mark.data["result"])
