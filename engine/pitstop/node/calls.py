"""What a controller can ask of a node directly: each answers within seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pitstop.images.durable import make_directory, read_json, write_json
from pitstop.model.errors import BadInput, PitstopError, Refused, Unexpected
from pitstop.node.clock import now
from pitstop.node.lease import Lease, all_leases
from pitstop.node.ops import Operation, running_operations
from pitstop.node.paths import StateDir, boot_id

Call = Callable[[StateDir, Mapping[str, Any]], dict[str, Any]]


def _ping(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    _renew(state, arguments)
    return {"boot_id": boot_id(), "time": now()}


def _inspect(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Say all that a plan needs: the node, and each workload with fingerprint and blockers."""
    from pitstop.node.cuda.driver import Driver
    from pitstop.node.gpus import read_inventory
    from pitstop.node.inspector import inspect_workload

    inventory = read_inventory()
    with Driver() as driver:
        workloads = {
            name: inspect_workload(state, name, asked, inventory, driver)
            for name, asked in dict(arguments.get("workloads", {})).items()
        }
    return {
        "boot_id": boot_id(),
        "time": now(),
        "quarantine": read_json(state.quarantine),
        "inventory": inventory.to_json(),
        "workloads": workloads,
    }


def _inventory(_state: StateDir, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.node.gpus import describe

    return describe()


def _candidate(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Say what speaks for and against each of some workloads moving here."""
    from pitstop.node.candidate import look

    return {
        "workloads": {
            name: look(state, name, asked) for name, asked in dict(arguments["workloads"]).items()
        }
    }


def _handover(step: str) -> Call:
    def call(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
        from pitstop.node import handover

        steps: dict[str, Call] = {
            "offer": handover.offer,
            "arrival": handover.arrival,
            "give": handover.give,
            "accept": handover.accept,
            "take-back": handover.take_back,
        }
        return steps[step](state, arguments)

    return call


def _fingerprint(_state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.node.inventory import take_fingerprint

    return {"fingerprint": take_fingerprint(arguments.get("probes", {})).to_json()}


def _op_start(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    order = arguments.get("lease")
    if order is not None:
        drained = arguments["arguments"]["workload"] if arguments["kind"] == "drain" else ""
        Lease(state, str(order["run"])).begin(order, drained)
    operation = Operation(state, str(arguments["id"]))
    status = operation.start(str(arguments["kind"]), dict(arguments["arguments"]))
    if "seconds" in arguments:  # to wait for it at once saves a request for what is short
        status = operation.wait(float(arguments["seconds"]))
    return status.to_json()


def _op_status(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return Operation(state, str(arguments["id"])).status().to_json()


def _op_wait(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    _renew(state, arguments)
    return Operation(state, str(arguments["id"])).wait(float(arguments["seconds"])).to_json()


def _op_cancel(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    seconds = float(arguments.get("seconds", 60))
    return Operation(state, str(arguments["id"])).cancel(seconds).to_json()


def _operations(state: StateDir, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"running": [status.to_json() for status in running_operations(state)]}


def _leases(state: StateDir, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    found = (lease.look() for lease in all_leases(state))
    return {"leases": [lease for lease in found if lease is not None]}


def _lease_end(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    Lease(state, str(arguments["run"])).end()
    return {}


def _renew(state: StateDir, arguments: Mapping[str, Any]) -> None:
    """Renew the lease of the run on whose behalf this is asked, if the caller says so."""
    order = arguments.get("lease")
    if order is not None:
        Lease(state, str(order["run"])).renew(order)


def _gauge(_state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.node.answers import in_flight

    return {"in_flight": in_flight(arguments["in_flight"])}


def _release(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """End what a run has a workload by: its hold, and that it was drained."""
    from pitstop.node.record import WorkloadState

    workload, run = str(arguments["workload"]), str(arguments["run"])
    WorkloadState(state, workload).release(run)
    if run:
        Lease(state, run).admitted(workload)
    return {}


def _settle(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.node.checkpointer import settle

    return settle(
        state,
        str(arguments["workload"]),
        str(arguments["checkpoint"]),
        arguments.get("pid_file"),
    )


def _quarantine(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    make_directory(state.root)
    existing = read_json(state.quarantine)
    if existing is None:
        write_json(
            state.quarantine,
            {"run": str(arguments["run"]), "cause": str(arguments["cause"]), "time": now()},
        )
    return {"quarantine": read_json(state.quarantine)}


def _unquarantine(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Lift a quarantine of this run; one that somebody else set stays.

    Raises:
        Refused: it was set by another run.
    """
    existing = read_json(state.quarantine)
    if existing is not None:
        if existing.get("run") != arguments["run"]:
            raise Refused("node", f"quarantined by {existing.get('run')}: {existing.get('cause')}")
        state.quarantine.unlink()
    return {}


def _images_list(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.images.listing import list_images

    return {"images": list_images(state.root / "images", arguments.get("workload"))}


def _images_newest(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The newest checkpoint that could be restored, with what it is valid against."""
    from pitstop.images.checkpoint import State
    from pitstop.images.store import Store

    newest = Store(state.images(str(arguments["workload"]))).newest(State.SEALED)
    if newest is None:
        return {"checkpoint": None, "fingerprint": None}
    return {"checkpoint": newest.id, "fingerprint": newest.manifest().fingerprint}


def _holder(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.node.record import WorkloadState

    return {"holder": WorkloadState(state, str(arguments["workload"])).holder()}


def _workload(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Say how the newest start of a workload went, on whichever node it was."""
    from pitstop.node.parking import is_parked
    from pitstop.node.record import WorkloadState

    files = WorkloadState(state, str(arguments["workload"]))
    record = files.record()
    moved = files.moved()
    return {
        "running": files.running(),
        "moved": asdict(moved) if moved else None,
        "parked": is_parked(files),
        "phase": record.phase.value,
        "generation": record.generation,
        "how": record.how,
        "cause": record.cause,
        "started": record.started,
        "boot_id": record.boot_id,
        "start_seconds": record.start_seconds,
        "ended": record.ended,
        "holder": files.holder(),
    }


def _launched(state: StateDir, _arguments: Mapping[str, Any]) -> dict[str, Any]:
    """List what runs here under a launcher, with the scheduler's job that it is part of."""
    from pitstop.node.owner import name_of
    from pitstop.node.record import launched_here

    found = launched_here(state)
    return {
        "launched": [
            {"workload": r.workload, "job": r.job, "user": name_of(r.owner)} for r in found
        ]
    }


def _stat(_state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    import time

    from pitstop.node.files import size_and_time

    return {"now": time.time(), "file": size_and_time(str(arguments["path"]))}


def _images_forget(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Remove a checkpoint whose workload its owner has ended, and end the run's hold."""
    from pitstop.images.store import Store
    from pitstop.node.record import WorkloadState

    files = WorkloadState(state, str(arguments["workload"]))
    store = Store(state.images(files.name))
    checkpoint = str(arguments["checkpoint"])
    removed = [c for c in store.all() if c.id == checkpoint]
    for found in removed:
        store.discard(found)
    files.release(str(arguments["run"]))
    return {"removed": [c.id for c in removed]}


def _images_verify(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.images.listing import verify_images

    found = verify_images(
        state.root / "images",
        state.keys(),
        arguments.get("workload"),
        arguments.get("checkpoint"),
    )
    return {"images": found}


def _doctor(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from pitstop.node.doctor import examine

    return examine(state, trial=bool(arguments.get("trial", True)))


CALLS: dict[str, Call] = {
    "ping": _ping,
    "inspect": _inspect,
    "inventory": _inventory,
    "fingerprint": _fingerprint,
    "candidate": _candidate,
    "handover.offer": _handover("offer"),
    "handover.arrival": _handover("arrival"),
    "handover.give": _handover("give"),
    "handover.accept": _handover("accept"),
    "handover.take-back": _handover("take-back"),
    "op.start": _op_start,
    "op.status": _op_status,
    "op.wait": _op_wait,
    "op.cancel": _op_cancel,
    "operations": _operations,
    "leases": _leases,
    "lease.end": _lease_end,
    "gauge": _gauge,
    "release": _release,
    "settle": _settle,
    "quarantine": _quarantine,
    "unquarantine": _unquarantine,
    "images.list": _images_list,
    "images.newest": _images_newest,
    "images.forget": _images_forget,
    "images.verify": _images_verify,
    "launched": _launched,
    "stat": _stat,
    "workload": _workload,
    "holder": _holder,
    "doctor": _doctor,
}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one request: `{"call": …, "state_dir": …, "arguments": {…}}`.

    Returns:
        `{"result": …}` or `{"error": …}`; it does not raise for what a caller can cause.
    """
    try:
        call = CALLS.get(str(request.get("call")))
        if call is None:
            raise BadInput(str(request.get("call")), "this engine has no such call")
        state = StateDir.at(request.get("state_dir"))
        return {"result": call(state, request.get("arguments") or {})}
    except PitstopError as error:
        return {"error": error.to_json()}
    except (KeyError, TypeError, ValueError) as error:
        return {"error": BadInput(str(request.get("call")), f"{error!r}").to_json()}
    except OSError as error:  # a full or broken disk: the caller must hear of it
        return {"error": Unexpected(str(request.get("call")), f"{error}").to_json()}
