"""`pitstop-node images send` and `receive`: the two ends of a transfer.

Each says how it went as an answer with a frame, where the bytes of the other do not run: the
sender on stderr, the receiver on stdout. Names go in arguments, everything else over stdin.
"""

from __future__ import annotations

import json
import sys
from typing import Any, BinaryIO

from pitstop.images.checkpoint import Checkpoint
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.errors import BadInput, PitstopError, TransferFailed
from pitstop.node.frame import wrap
from pitstop.node.locks import held
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState


def send(state: StateDir, nonce: str) -> int:
    """Write the checkpoint that is asked for on stdin (`workload`, `checkpoint`, `have`)."""
    from pitstop.images import transfer

    try:
        asked = json.loads(sys.stdin.buffer.read())
        store = Store(state.images(str(asked["workload"])))
        checkpoint = store.get(str(asked["checkpoint"]))
        have = {str(name) for name in asked["have"]}
        reply: dict[str, Any] = {
            "result": {"bytes": transfer.send(checkpoint, nonce, have, sys.stdout.buffer)}
        }
    except PitstopError as error:
        reply = {"error": error.to_json()}
    except (ValueError, KeyError, TypeError) as error:
        reply = {"error": BadInput("images send", f"{error!r}").to_json()}
    except OSError as error:
        reply = {"error": TransferFailed("images send", str(error)).to_json()}
    return _answer(sys.stderr.buffer, nonce, reply)


def receive(state: StateDir, workload: str, identifier: str, nonce: str) -> int:
    """Read a checkpoint from stdin and verify it. It is not finished by that."""
    try:
        draft = _receive(state, workload, identifier, nonce)
        reply: dict[str, Any] = {"result": {"checkpoint": draft.id}}
    except PitstopError as error:
        reply = {"error": error.to_json()}
    except OSError as error:
        reply = {"error": TransferFailed(identifier, str(error)).to_json()}
    return _answer(sys.stdout.buffer, nonce, reply)


def _receive(state: StateDir, workload: str, identifier: str, nonce: str) -> Checkpoint:
    from pitstop.images import transfer

    files = WorkloadState(state, workload)
    with held(files.operation_lock, workload, "another operation on this workload"):
        return transfer.receive(
            Store(state.images(workload)), Keys(state.keys()), identifier, nonce, sys.stdin.buffer
        )


def _answer(out: BinaryIO, nonce: str, reply: dict[str, Any]) -> int:
    out.write(wrap(nonce, reply))
    out.flush()
    return 0 if "result" in reply else 1
