"""The hand-over of a workload from this node to another, and to this node from another.

The same past must never be restored twice, and no power cut may lose it. So the order is:

    1. the images are here and there; there under a name with a dot, every byte verified
    2. here: `moved.json` names the other node, then the checkpoint is marked as handed over
    3. there: held for the run, and finished

Until 2 it can only be restored here, after it only there. Each of these can be asked for again
and goes on where it was cut off. Who comes between 2 and 3 finds one copy that is marked as
handed over to that node, and one that is verified there: to finish it is the only way on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pitstop.images.checkpoint import Checkpoint, Mark, State
from pitstop.images.store import Store
from pitstop.images.transfer import manifest_digest, whole_images
from pitstop.model.errors import InvalidCheckpoint, Refused
from pitstop.node import subject
from pitstop.node.clock import now
from pitstop.node.locks import held
from pitstop.node.paths import StateDir
from pitstop.node.record import Moved, Phase, WorkloadState

UNDER_WAY = "another operation on this workload"


def offer(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Say that a checkpoint here is about to move, and where it stands.

    Args:
        state: the node's state.
        arguments: `workload`, `checkpoint`, `run`, `to`.

    Returns:
        `state`: `sealed`, or `handed-over` when that was done for this very move; `digest` of
        its manifest, `bytes`.

    Raises:
        Refused: it was restored, or handed over to somebody else.
    """
    run, to = str(arguments["run"]), str(arguments["to"])
    checkpoint = _store(state, arguments).get(str(arguments["checkpoint"]))
    found = checkpoint.state()
    if found is State.HANDED_OVER:
        _refuse_other_receiver(checkpoint, to)
    elif found is State.SEALED:
        checkpoint.mark(Mark.OFFERED, {"run": run, "to": to, "time": now()})
    else:
        raise Refused(checkpoint.id, f"it is {found.value}, and cannot be moved")
    return {
        "state": found.value,
        "digest": manifest_digest(checkpoint),
        "bytes": checkpoint.manifest().total_bytes,
    }


def arrival(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Say what has come of a checkpoint that is to move here.

    Args:
        state: the node's state.
        arguments: `workload`, `checkpoint`.

    Returns:
        `state`: `absent`, `unfinished`, `received` when every byte of it was verified, or that
        of a finished one; `digest` of its manifest where that is known; `have`, the images
        that came whole; `offered`, as `offer` has marked it: then it is the very same, on
        storage that both nodes see.
    """
    store, identifier = _store(state, arguments), str(arguments["checkpoint"])
    finished, draft = store.find(identifier), store.draft(identifier)
    if finished is not None:
        return {
            "state": finished.state().value,
            "digest": manifest_digest(finished),
            "have": [],
            "offered": finished.marked(Mark.OFFERED),
        }
    if draft is None:
        return {"state": "absent", "digest": "", "have": [], "offered": None}
    came = draft.marked(Mark.RECEIVED) is not None
    return {
        "state": "received" if came else State.UNFINISHED.value,
        "digest": manifest_digest(draft) if came else "",
        "have": whole_images(draft),
        "offered": None,
    }


def give(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Give a workload that does not run here to another node. It is not started here again.

    Args:
        state: the node's state.
        arguments: `workload`, `run`, `to`; `checkpoint`, or None to give the launch alone;
            `shared`: the other node sees the checkpoint here, so it is not marked.

    Returns:
        `generation` of its newest start here, and its `owner`.

    Raises:
        Refused: a copy of it runs, or it was given to somebody else.
    """
    files, run, to = _files(state, arguments), str(arguments["run"]), str(arguments["to"])
    named = arguments.get("checkpoint")
    with held(files.operation_lock, files.name, UNDER_WAY):
        _refuse_if_running(files, arguments)
        moved = files.moved()
        if moved is not None and (moved.run, moved.to) != (run, to):
            raise Refused(files.name, str(moved))
        record = files.record()
        files.note_move(Moved(to, run, now(), named))
        if named is not None and not arguments.get("shared"):
            checkpoint = _store(state, arguments).get(str(named))
            if checkpoint.state() is State.HANDED_OVER:
                _refuse_other_receiver(checkpoint, to)
            elif checkpoint.state() is State.SEALED:
                checkpoint.mark(Mark.HANDED_OVER, {"run": run, "to": to, "time": now()})
            else:
                raise Refused(checkpoint.id, f"it is {checkpoint.state().value}")
        return {"generation": record.generation, "owner": record.owner}


def accept(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Take a workload over that another node has given.

    Args:
        state: the node's state.
        arguments: `workload`, `run`, `checkpoint` or None, and what `give` has returned:
            `generation` and `owner`.

    Returns:
        `bytes` and `seconds` of the transfer, where one was made.

    Raises:
        Refused: a copy of it runs here, or another run holds it.
        InvalidCheckpoint: its images are not here, or not verified.
    """
    files, run = _files(state, arguments), str(arguments["run"])
    named, store = arguments.get("checkpoint"), _store(state, arguments)
    with held(files.operation_lock, files.name, UNDER_WAY):
        if not _runs_for(files, run) and not _used_up(store, named):
            _refuse_if_running(files, arguments)
            files.hold(run)
            _carry_over(files, int(arguments["generation"]), int(arguments["owner"]), named)
            _end_other_pasts(store, named)
            files.forget_move()
        return {} if named is None else _finish(store, str(named), run)


def _carry_over(files: WorkloadState, generation: int, owner: int, named: str | None) -> None:
    """Count on from where the other node was: its checkpoint is valid here, none other is."""
    record = files.record()
    if named is None:  # it starts anew, and that must be later than every start before it
        generation = max(generation, record.generation)
    files.write(
        replace(record, generation=generation, owner=owner, phase=Phase.ENDED, ended={}, how="")
    )


def _end_other_pasts(store: Store, named: str | None) -> None:
    """What was saved here before it ran elsewhere is over, and drafts are of no use."""
    for other in store.all():
        if other.id == named:
            continue
        if other.state() is State.UNFINISHED:
            store.discard(other)
        elif other.state() in (State.SEALED, State.INTENDED):
            other.mark(Mark.ABORTED, {"time": now(), "cause": "it ran on, on another node"})


def _finish(store: Store, identifier: str, run: str) -> dict[str, Any]:
    finished, draft = store.find(identifier), store.draft(identifier)
    if finished is None:
        if draft is None or draft.marked(Mark.RECEIVED) is None:
            raise InvalidCheckpoint(identifier, "its images have not come whole")
        draft.mark(Mark.SEALED, {"time": now(), "run": run})
        finished = store.finish(draft)
    if finished.state() not in (State.SEALED, State.CONSUMED):
        raise InvalidCheckpoint(identifier, f"it is {finished.state().value} here")
    return finished.marked(Mark.RECEIVED) or {"bytes": 0, "seconds": 0.0}


def take_back(state: StateDir, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """End a move that came to nothing: the workload's place is here again.

    What was handed over stays so: whoever asks has proven that nothing runs there, or a person
    has said it, and the workload starts cold.

    Args:
        state: the node's state.
        arguments: `workload`, `run`.

    Raises:
        Refused: another run has moved it.
    """
    files, run = _files(state, arguments), str(arguments["run"])
    moved = files.moved()
    if moved is not None:
        if moved.run != run:
            raise Refused(files.name, str(moved))
        files.forget_move()
    return {}


def _files(state: StateDir, arguments: Mapping[str, Any]) -> WorkloadState:
    return WorkloadState(state, str(arguments["workload"]))


def _store(state: StateDir, arguments: Mapping[str, Any]) -> Store:
    return Store(state.images(str(arguments["workload"])))


def _runs_for(files: WorkloadState, run: str) -> bool:
    """Whether it was taken over before, and this run has brought it up here."""
    return files.running() and files.record().run == run


def _used_up(store: Store, named: str | None) -> bool:
    """Whether it was taken over before, and restored; what it has come to since is its own."""
    finished = None if named is None else store.find(named)
    return finished is not None and finished.state() is State.CONSUMED


def _refuse_if_running(files: WorkloadState, arguments: Mapping[str, Any]) -> None:
    if files.running() or subject.runs_by_pid_file(files, arguments.get("pid_file")):
        raise Refused(files.name, "a copy of it runs", "there must never be two")


def _refuse_other_receiver(checkpoint: Checkpoint, to: str) -> None:
    receiver = (checkpoint.marked(Mark.HANDED_OVER) or {}).get("to")
    if receiver != to:
        raise Refused(checkpoint.id, f"it was handed over to {receiver}")
