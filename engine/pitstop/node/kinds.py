"""What operations exist. Each imports what it needs when it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pitstop.model.errors import MaintenanceFailed
from pitstop.node import cancelling
from pitstop.node.ops import Operation

Handler = Callable[[Operation, dict[str, Any]], dict[str, Any]]


def _checkpoint(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.model.words import Connections
    from pitstop.node.checkpointer import Order, take

    known = {field.name for field in fields(Order)}
    order = Order(
        **{
            **{name: value for name, value in arguments.items() if name in known},
            "connections": Connections(arguments.get("connections", Connections.CLOSE)),
            "tolerate": tuple(arguments.get("tolerate", ())),
        }
    )
    return take(operation.state, order)


def _restore(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.node.starter import start

    return start(operation.state, "restore", arguments)


def _cold_start(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.node.starter import start

    return start(operation.state, "cold", arguments)


def _stop(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.node.stopper import stop

    return stop(operation.state, arguments)


def _drain(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Keep new work away, then watch the work in flight to its end."""
    from pitstop.node.answers import wait_idle
    from pitstop.node.execute import action

    drain = arguments["drain"]
    if drain.get("begin"):
        action(drain["begin"], operation.log)
    if not drain.get("in_flight"):
        return {"in_flight_at_start": None, "in_flight_at_end": None, "waited_seconds": 0.0}
    return wait_idle(drain["in_flight"], float(drain["deadline"]), float(drain["interval"]))


def _wait_file(_operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Wait until an application has written its own checkpoint."""
    from pitstop.node.files import wait_complete

    return wait_complete(
        str(arguments["path"]),
        float(arguments["since"]),
        float(arguments["quiet"]),
        float(arguments["deadline"]),
    )


def _bring_back(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Have a launcher that waits bring its workload back."""
    from pitstop.node.parking import bring_back

    return bring_back(operation.state, arguments)


def _suspend(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.node.cuda.suspension import suspend

    return suspend(operation.state, arguments)


def _resume(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.node.cuda.suspension import resume

    return resume(operation.state, arguments)


def _action(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.node.execute import action

    return action(arguments["action"], operation.log)


def _execute(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    from pitstop.node.execute import execute

    return execute(arguments["command"], float(arguments["timeout"]), operation.path / "output")


def _wait_end(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Wait for a workload to end by itself."""
    from pitstop.node.clock import now
    from pitstop.node.locks import wait_until_free
    from pitstop.node.record import WorkloadState

    files = WorkloadState(operation.state, str(arguments["workload"]))
    wait_until_free(files.lock_path, float(arguments["deadline"]))
    return {"ended": now(), "ending": files.record().ended}


def _reboot(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Start the reboot. What proves it is the changed boot id, not this operation's end."""
    from pitstop.node.execute import execute

    os.sync()
    result = execute(arguments["command"], float(arguments["timeout"]), operation.log)
    if result["exit_status"] != 0:
        raise MaintenanceFailed(
            str(arguments["command"][0]),
            f"exit status {result['exit_status']}: {result['output_tail'][-300:]}",
        )
    return result


def _listening(handler: Handler) -> Handler:
    def run(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
        cancelling.listen(operation.id)
        return handler(operation, arguments)

    return run


KINDS: dict[str, Handler] = {
    name: _listening(handler)
    for name, handler in {
        "checkpoint": _checkpoint,
        "restore": _restore,
        "cold-start": _cold_start,
        "stop": _stop,
        "suspend": _suspend,
        "resume": _resume,
        "bring-back": _bring_back,
        "drain": _drain,
        "action": _action,
        "execute": _execute,
        "wait-end": _wait_end,
        "wait-file": _wait_file,
        "reboot": _reboot,
    }.items()
}
