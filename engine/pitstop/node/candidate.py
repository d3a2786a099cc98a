"""What a node says when it is asked whether a workload of another node could move to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pitstop.images.checkpoint import State
from pitstop.images.durable import read_json
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.inventory import Inventory
from pitstop.node import subject
from pitstop.node.blockers.room import available
from pitstop.node.cuda.placing import Place, place_for
from pitstop.node.gpus import read_inventory
from pitstop.node.inventory import take_fingerprint
from pitstop.node.lease import all_leases
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState


def look(state: StateDir, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node's fingerprint, its room, and what speaks against it. Changes nothing.

    Args:
        state: the node's state.
        name: the workload.
        asked: `run` that asks (empty while planning), `probes`, `pid_file` and `launch` as the
            site declares them; `signer`, the public key of the node it comes from; `output`,
            the directory on that node that its output is written to; `gpu_state`, what it has
            on GPUs there (as `inspect` says it), and `gpus_reserved`, those here that are
            promised to others.

    Returns:
        `fingerprint`, `memory_available` and `disk_free` in bytes, `reasons` in words, and
        `gpus`, those that would take its state.
    """
    files = WorkloadState(state, name)
    disk = os.statvfs(state.images(name))
    inventory, memory = read_inventory(), available()
    place = _on_gpus(asked, inventory)
    return {
        "fingerprint": take_fingerprint(asked.get("probes", {}), inventory).to_json(),
        "gpus": list(place.takes),
        "memory_available": memory or 0,
        "disk_free": disk.f_bavail * disk.f_frsize,
        "reasons": [
            *_of_the_node(state, str(asked.get("run", ""))),
            *_of_the_workload(state, files, asked),
            *_of_its_surroundings(asked),
            *_of_the_signer(state, asked.get("signer")),
            *place.refusals,
            *(["how much memory is free there is not known"] if memory is None else ()),
        ],
    }


def _on_gpus(asked: Mapping[str, Any], inventory: Inventory) -> Place:
    state = asked.get("gpu_state")
    if state is None:
        return Place()
    reserved = [str(uuid) for uuid in asked.get("gpus_reserved", ())]
    before = Inventory.from_json(state["inventory"])
    environment = dict(asked["launch"].get("env") or {})
    return place_for(before, state["holds"], inventory, environment, reserved)


def _of_the_node(state: StateDir, run: str) -> Iterator[str]:
    quarantine = read_json(state.quarantine)
    if quarantine:
        yield f"quarantined by run {quarantine['run']}: {quarantine['cause']}"
    others = [lease.run for lease in all_leases(state) if lease.run != run]
    if others:
        yield f"run {others[0]} is at work there"


def _of_the_workload(
    state: StateDir, files: WorkloadState, asked: Mapping[str, Any]
) -> Iterator[str]:
    """Say what of it is there already: a copy, a claim, or a past that somebody wants."""
    if files.running() or subject.runs_by_pid_file(files, asked.get("pid_file")):
        yield "a copy of it runs there already"
    holder = files.holder()
    if holder not in ("", asked.get("run")):
        yield f"it is held there by run {holder}"
    if files.moved() is not None:
        return  # whatever is there is the past of what moved away
    generation = files.record().generation
    for checkpoint in Store(state.images(files.name)).all():
        waits = checkpoint.state() in (State.SEALED, State.INTENDED)
        if waits and checkpoint.manifest().generation == generation:
            yield f"it waits there as checkpoint {checkpoint.id}"


def _of_its_surroundings(asked: Mapping[str, Any]) -> Iterator[str]:
    """A restored process goes on with the files that it had open, by their old names."""
    launch = asked["launch"]
    program = str(launch["command"][0])
    for directory in (str(asked["output"]), str(launch.get("cwd", "/"))):
        if not Path(directory).is_dir():
            yield f"there is no directory {directory}"
    if "/" in program and shutil.which(program) is None:
        yield f"there is no program {program}"


def _of_the_signer(state: StateDir, signer: str | None) -> Iterator[str]:
    if signer is None:
        yield "the node it is on has no signing key yet (pitstop-node key)"
    elif not Keys(state.keys()).trusts(signer.encode()):
        yield "the key of the node it is on is not in keys/trusted/ (pitstop-node key --trust)"
