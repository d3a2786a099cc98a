"""The node loses power between any two instructions: afterwards there is one truth.

A node of the lab is cut while the engine stands still at a given point, boots again, and its
supervisor does what it always does: it starts the launcher.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import State
from pitstop.images.store import Store
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState
from tests.rigs.engine import PORT, SERVER, require_engine, until

# Runs the engine in the node and stands still at the point named, having said so.
STAND_STILL = """
import signal, sys
from pitstop.images.checkpoint import Checkpoint, Mark
from pitstop.node.checkpointer import Order, _Checkpointer, take
from pitstop.node.launch import Request, launch
from pitstop.node.paths import StateDir
from pitstop.node.restorer import Restorer

def stand_still(*_):
    print("here", flush=True)
    while True:
        signal.pause()

def around(owner, name, before, when=lambda *a: True):
    real = getattr(owner, name)
    def patched(*arguments):
        if when(*arguments) and before:
            stand_still()
        result = real(*arguments)
        if when(*arguments) and not before:
            stand_still()
        return result
    setattr(owner, name, patched)

def is_intent(_checkpoint, mark, _data):
    return mark is Mark.INTENT

point, workload = sys.argv[1:]
{
    "images written": lambda: around(Checkpoint, "write", True),
    "named": lambda: around(Checkpoint, "mark", True, is_intent),
    "intent": lambda: around(Checkpoint, "mark", False, is_intent),
    "original ended": lambda: around(_Checkpointer, "_prove_gone", False),
    "not yet used": lambda: around(Restorer, "_consume", True),
    "used": lambda: around(Restorer, "_consume", False),
}[point]()
state = StateDir.at()
if point in ("not yet used", "used"):
    launch(Request(workload, [], {}, start="restore", run="run1"), state)
else:
    take(state, Order(workload, "ck1", "run1", "gpu1", "single-gpu"))
"""


class Machine:
    """A lab node with one workload under the launcher."""

    def __init__(self, node: LabNode, workload: str) -> None:
        self.node = node
        self.workload = workload
        self.state = StateDir(node.state_dir)
        self.store = Store(self.state.images(workload))
        self.files = WorkloadState(self.state, workload)
        self.log = node.state_dir / f"{workload}.said"
        self._started: list[subprocess.Popen[bytes]] = []

    def launch(self, *options: str) -> None:
        """Start the workload as its supervisor does, and wait until it answers."""
        with self.log.open("ab") as said:
            self._started.append(
                self.node.popen(
                    [
                        *(sys.executable, "-m", "pitstop.node.main", "launch"),
                        *("--workload", self.workload, "--run", "run1", *options),
                        *("--", sys.executable, str(SERVER)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                )
            )
        until(lambda: self.ask("/", quiet=True), "the server answers")

    def ask(self, path: str, quiet: bool = False) -> dict[str, Any]:
        code = (
            "import sys, urllib.request as request\n"
            "sys.stdout.buffer.write(request.urlopen(sys.argv[1]).read())"
        )
        with self.node.popen_net(
            [sys.executable, "-c", code, f"http://127.0.0.1:{PORT}{path}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as asking:
            output = asking.communicate(timeout=30)[0]
        if quiet and not output:
            return {}
        found: dict[str, Any] = json.loads(output)
        return found

    def save(self) -> None:
        code = (
            "import sys\n"
            "from pitstop.node.checkpointer import Order, take\n"
            "from pitstop.node.paths import StateDir\n"
            "take(StateDir.at(), Order(sys.argv[1], 'ck1', 'run1', 'gpu1', 'single-gpu'))"
        )
        self.node.run([sys.executable, "-c", code, self.workload])

    def cut_at(self, point: str) -> None:
        """Let the engine come to a point, cut the power there, and switch it on again."""
        with self.node.popen(
            [sys.executable, "-c", STAND_STILL, point, self.workload],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as standing:
            assert standing.stdout is not None
            assert standing.stderr is not None
            said = standing.stdout.readline()
            assert said == b"here\n", standing.stderr.read().decode()[-2000:]
            self.node.power_cut()
        self.reap()
        assert not self.files.running(), "a lock outlived the power"
        self.node.boot()

    def reap(self) -> None:
        for process in self._started:
            process.wait(20)
        self._started.clear()

    def copies(self) -> int:
        code = (
            "import pathlib, sys\n"
            "def word(p):\n"
            "    try: return (p / 'cmdline').read_bytes().split(b'\\0')[1:2]\n"
            "    except OSError: return []\n"
            "print(sum(word(p) == [sys.argv[1].encode()]"
            " for p in pathlib.Path('/proc').iterdir() if p.name.isdigit()))"
        )
        return int(self.node.run([sys.executable, "-c", code, str(SERVER)]))


@contextmanager
def machine(lab: Lab, workload: str) -> Iterator[Machine]:
    require_engine()
    node = lab.node("gpu1")
    found = Machine(node, workload)
    try:
        yield found
    finally:
        node.power_cut()
        found.reap()
        node.boot()


DUMP = {
    "images written": State.UNFINISHED,
    "named": State.UNFINISHED,
    "intent": State.INTENDED,
    "original ended": State.SEALED,  # by its launcher, which saw the end
}


@pytest.mark.parametrize("point", DUMP)
def test_during_a_checkpoint(lab: Lab, point: str) -> None:
    """Either a whole checkpoint that is used once, or none."""
    workload = "dump-" + point.replace(" ", "-")
    with machine(lab, workload) as here:
        here.launch()
        here.ask("/count")
        here.ask("/count")
        boot = here.node.boot_id
        here.cut_at(point)
        assert here.node.boot_id != boot
        [checkpoint] = here.store.all()
        assert checkpoint.state() is DUMP[point]
        here.launch()
        assert here.copies() == 1
        usable = DUMP[point] is not State.UNFINISHED
        assert here.files.record().how == ("restored" if usable else "cold")
        assert here.ask("/count")["count"] == (3 if usable else 1)
        expected = State.CONSUMED if usable else State.UNFINISHED
        assert [checkpoint.state() for checkpoint in here.store.all()] == [expected]
        # What was left behind is in nobody's way.
        if not usable:
            here.save()
            assert [checkpoint.state() for checkpoint in here.store.all()] == [State.SEALED]


@pytest.mark.parametrize("point", ["not yet used", "used"])
def test_during_a_restore(lab: Lab, point: str) -> None:
    """Before it is used up it can be used; after that it may have run, and is not used twice."""
    workload = "restore-" + point.replace(" ", "-")
    with machine(lab, workload) as here:
        here.launch()
        here.ask("/count")
        here.ask("/count")
        here.save()
        here.reap()
        here.cut_at(point)
        usable = point == "not yet used"
        [checkpoint] = here.store.all()
        assert checkpoint.state() is (State.SEALED if usable else State.CONSUMED)
        here.launch()
        assert here.copies() == 1
        assert here.ask("/count")["count"] == (3 if usable else 1)


def test_during_an_operation(lab: Lab, tmp_path: Path) -> None:
    """It is interrupted, also when another process has its PID by now; a result is kept."""
    node = lab.node("gpu1")
    command = [sys.executable, "-m", "pitstop.node.main", "op"]
    lasting = json.dumps({"command": ["sleep", "1000"], "timeout": 2000})
    short = json.dumps({"command": ["echo", "kept"], "timeout": 60})
    node.run([*command, "start", "done", "execute", "--arguments", short])
    node.run([*command, "wait", "done"])
    node.run([*command, "start", "cut", "execute", "--arguments", lasting])
    node.power_cut()
    node.boot()
    show = "import sys, subprocess; sys.exit(subprocess.run(sys.argv[1:]).returncode and 0)"
    status = json.loads(node.run([sys.executable, "-c", show, *command, "status", "cut"]))
    assert status["state"] == "interrupted"
    assert status["boot_id"] != node.boot_id
    again = json.loads(
        node.run(
            [
                *(sys.executable, "-c", show, *command),
                *("start", "cut", "execute", "--arguments", lasting),
            ]
        )
    )
    assert again["state"] == "interrupted", "a command must not be run twice by a retry"
    kept = json.loads(node.run([*command, "status", "done"]))
    assert (kept["state"], kept["result"]["output_tail"]) == ("done", "kept\n")
