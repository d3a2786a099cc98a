"""Whether a workload could move to a node: what the node says, and how several share its room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pitstop.decide.homes import Home
from pitstop.fleet.node import RemoteNode
from pitstop.images.checkpoint import Mark
from pitstop.images.durable import make_directory, write_json
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.errors import NodeUnreachable
from pitstop.model.site import Node
from pitstop.model.workload import Launch, Ready, Workload
from pitstop.node.candidate import look
from pitstop.node.paths import StateDir
from pitstop.node.record import Moved, WorkloadState
from pitstop.steps import migrating
from pitstop.steps.migrating import Spares
from tests.unit.test_images import manifest
from tests.unit.test_sequence import FrameTransport

MIB = 1 << 20


@dataclass
class Asked:
    """A node that is asked about `web`, which fits there unless something is done about it."""

    root: Path
    state: StateDir
    question: dict[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> WorkloadState:
        return WorkloadState(self.state, "web")

    def reasons(self) -> list[str]:
        found: list[str] = look(self.state, "web", self.question)["reasons"]
        return found

    def saved(self, generation: int) -> None:
        store = Store(self.state.images("web"))
        draft = store.begin("ck")
        (draft.images / "core.img").write_bytes(b"x")
        draft.write(manifest(draft, generation=generation), Keys(self.state.keys()))
        store.finish(draft).mark(Mark.SEALED, {})


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    source = Keys(StateDir.at(str(tmp_path / "source")).keys())
    public = source.public(make=True) or b""
    state = StateDir.at(str(tmp_path / "here"))
    Keys(state.keys()).trust("source", public)
    question = {
        "run": "",
        "probes": {},
        "pid_file": None,
        "launch": {"command": ["/bin/sleep", "9"], "cwd": "/"},
        "signer": public.decode(),
        "output": str(tmp_path),
    }
    return Asked(tmp_path, state, question)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Path]:
    running = subprocess.Popen(["sleep", "1000"], start_new_session=True, cwd="/")
    path = tmp_path / "pid"
    path.write_text(f"{running.pid}\n")
    yield path
    running.kill()
    running.wait()


def test_fits_and_is_not_changed_by_the_question(asked: Asked) -> None:
    def contents() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in asked.root.rglob("*") if p.is_file()}

    before = contents()
    found = look(asked.state, "web", asked.question)
    assert found["reasons"] == []
    assert found["memory_available"] > 0
    assert found["disk_free"] > 0
    assert found["fingerprint"]["host.kernel"]["value"]
    assert contents() == before


def test_memory_that_nobody_knows_of_is_no_room(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.node.candidate.available", lambda: None)
    found = look(asked.state, "web", asked.question)
    assert found["reasons"] == ["how much memory is free there is not known"]


def test_quarantine_and_another_run(asked: Asked) -> None:
    write_json(asked.state.quarantine, {"run": "r0", "cause": "burnt", "time": ""})
    make_directory(asked.state.root / "leases")
    write_json(asked.state.root / "leases" / "r7.json", {})
    assert asked.reasons() == ["quarantined by run r0: burnt", "run r7 is at work there"]


def test_copy_that_runs_there(asked: Asked, process: Path) -> None:
    asked.question["pid_file"] = str(process)
    assert asked.reasons() == ["a copy of it runs there already"]


def test_held_by_another_run_but_not_by_the_one_that_asks(asked: Asked) -> None:
    asked.files.hold("r7")
    assert asked.reasons() == ["it is held there by run r7"]
    asked.question["run"] = "r7"
    assert asked.reasons() == []


def test_past_that_waits_there_but_not_one_that_is_over(asked: Asked) -> None:
    asked.saved(generation=3)
    asked.files.update(generation=3)
    assert asked.reasons() == ["it waits there as checkpoint ck"]
    asked.files.update(generation=4)
    assert asked.reasons() == []
    asked.files.update(generation=3)
    asked.files.note_move(Moved("elsewhere", "r1", ""))
    assert asked.reasons() == []


def test_surroundings_that_are_missing(asked: Asked) -> None:
    asked.question["output"] = "/not/there"
    asked.question["launch"] = {"command": ["/opt/none/serve"], "cwd": "/nowhere"}
    assert asked.reasons() == [
        "there is no directory /not/there",
        "there is no directory /nowhere",
        "there is no program /opt/none/serve",
    ]


def test_key_that_is_not_trusted_or_not_there_yet(asked: Asked) -> None:
    (Keys(asked.state.keys()).directory / "trusted" / "source.pem").unlink()
    assert "not in keys/trusted/" in asked.reasons()[0]
    asked.question["signer"] = None
    assert "has no signing key yet" in asked.reasons()[0]


SPEC = Workload(
    placement={"gpu1": 1}, launch=Launch(command=("serve",)), ready=Ready(command=("true",))
)


def found(memory: int, gpu: int = 0) -> dict[str, Any]:
    return {
        "memory_bytes": memory * MIB,
        "gpu_bytes": gpu * MIB,
        "gpu_state": {"holds": "some"} if gpu else None,
        "fingerprint": {},
        "signer": "k",
    }


def test_several_share_the_room_of_a_node_and_the_next_best_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = {"gpu2": 150, "gpu3": 150}
    questions: list[tuple[str, dict[str, Any]]] = []

    def reach(name: str, spec: Node) -> RemoteNode:
        def answer(request: dict[str, Any]) -> dict[str, Any]:
            [(workload, question)] = request["arguments"]["workloads"].items()
            questions.append((name, question))
            left = {"memory_available": room[name] * MIB, "disk_free": 1000 * MIB}
            gpus = ["GPU-1"] if question["gpu_state"] else []
            said = {"reasons": [], "fingerprint": {}, "gpus": gpus, **left}
            return {"workloads": {workload: said}}

        return RemoteNode(name, spec, FrameTransport(answer))

    monkeypatch.setattr(migrating, "RemoteNode", reach)
    nodes = {name: Node() for name in ("gpu1", "gpu2", "gpu3")}
    spares = Spares(nodes, nodes["gpu1"], ())
    places = [Home("gpu2"), Home("gpu3")]

    def asked_for(name: str, memory: int, gpu: int = 0) -> list[tuple[str, bool]]:
        asked = spares.candidates(name, SPEC, found(memory, gpu), places)
        return [(candidate.node, candidate.fits) for candidate in asked]

    assert asked_for("a", 40, gpu=60) == [("gpu2", True)]
    assert asked_for("b", 100) == [("gpu2", False), ("gpu3", True)]
    assert asked_for("c", 100) == [("gpu2", False), ("gpu3", False)]
    assert asked_for("d", 50) == [("gpu2", True)]
    on_gpu2 = [question["gpus_reserved"] for name, question in questions if name == "gpu2"]
    assert on_gpu2 == [[], ["GPU-1"], ["GPU-1"], ["GPU-1"]], "a GPU is promised once"


def test_node_that_cannot_be_asked_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(name: str, spec: Node) -> RemoteNode:
        def answer(_request: dict[str, Any]) -> dict[str, Any]:
            raise NodeUnreachable(name, "no route to it")

        return RemoteNode(name, spec, FrameTransport(answer))

    monkeypatch.setattr(migrating, "RemoteNode", reach)
    nodes = {"gpu1": Node(), "gpu2": Node()}
    spares = Spares(nodes, nodes["gpu1"], ())
    [candidate] = spares.candidates("a", SPEC, found(1), [Home("gpu2")])
    assert str(candidate) == "gpu2: cannot be asked: no route to it"
