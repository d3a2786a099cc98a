"""One workload as it is on this node now, without touching it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pitstop.images.checkpoint import State
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.errors import BadInput, Busy, InvalidCheckpoint, WorkloadGone
from pitstop.model.inventory import Inventory
from pitstop.node import blockers, processes, subject
from pitstop.node.cuda.driver import Driver
from pitstop.node.cuda.looking import look_for_cuda, parked_blocker
from pitstop.node.cuda.mark import read_mark
from pitstop.node.gpu_users import gpu_blockers, gpu_users
from pitstop.node.inventory import take_fingerprint
from pitstop.node.locks import is_held
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState


def inspect_workload(
    state: StateDir, name: str, asked: Mapping[str, Any], inventory: Inventory, driver: Driver
) -> dict[str, Any]:
    """Return whether it runs, its fingerprint, blockers, holder and newest checkpoint.

    And what another node needs to know of it: its memory, and the key that signs its images.

    Args:
        state: the node's state.
        name: the workload.
        asked: `probes` and `pid_file` as the site declares them, and `signer`: whether the
            key that its images are signed with is wanted.
        inventory: the GPUs of this node. What keeps their state from being saved is a blocker of
            a workload that has one open.
        driver: is asked which processes are CUDA's.
    """
    files = WorkloadState(state, name)
    store = Store(state.images(name))
    record = files.record()
    newest = store.newest(State.SEALED)
    moved = files.moved()
    found: dict[str, Any] = {
        "running": False,
        "memory_bytes": 0,
        "gpu_bytes": 0,
        "gpu_state": None,
        "signer": _signer(state) if asked.get("signer") else None,
        "moved": str(moved) if moved else "",
        "why_not": "",
        "blockers": [],
        "processes": 0,
        "generation": record.generation,
        "how": record.how,
        "run": record.run,
        "cause": record.cause,
        "holder": files.holder(),
        "sealed_checkpoint": newest.id if newest else None,
        "cold_start_seconds": record.cold_start_seconds,
        "fingerprint": take_fingerprint(asked.get("probes", {}), inventory).to_json(),
    }
    try:
        running = subject.find(files, asked.get("pid_file"))
    except (WorkloadGone, Busy, BadInput) as error:
        found["why_not"] = str(moved or error)
        return found
    found["running"] = True
    found["processes"] = len(running.tree)
    found["memory_bytes"] = processes.memory_of(running.tree)
    cuda = look_for_cuda(running.tree, inventory, driver)
    found["gpu_bytes"] = sum(cuda.holds.values())
    if cuda.pids:
        whole = inventory.at_rest().to_json()
        found["gpu_state"] = {"inventory": whole, "holds": dict(cuda.holds)}
    in_the_way = [
        *blockers.scan(running.tree, store.directory, cuda.pids, found["gpu_bytes"]),
        *cuda.blockers,
        *(gpu_blockers(inventory) if cuda.pids or gpu_users(running.tree) else ()),
    ]
    mark = read_mark(files)
    if mark is not None:
        in_the_way.append(parked_blocker(mark, is_held(files.operation_lock)))
    found["blockers"] = [blocker.to_json() for blocker in in_the_way]
    return found


def _signer(state: StateDir) -> str | None:
    """Return the public key that checkpoints made here are signed with; None without one."""
    try:
        public = Keys(state.keys()).public()
    except InvalidCheckpoint:
        return None  # readable by others: the blockers say so
    return public.decode() if public else None
