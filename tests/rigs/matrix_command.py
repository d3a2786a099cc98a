"""A driver that is a command of pitstop: `run` or `resume`, with the front end of a cell."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tests.rigs.engine import until
from tests.rigs.matrix import RUN, Scene
from tests.rigs.matrix_cells import Cell
from tests.rigs.matrix_victims import cut
from tests.rigs.site import cli_command

NUMBERS = {"controller-kill": signal.SIGKILL, "controller-term": signal.SIGTERM}
DEADLINE = 150


class Command:
    """`pitstop run` or `pitstop resume` as a process, killed at the end if it still lives."""

    def __init__(self, scene: Scene, verb: str, on: str, environment: Mapping[str, str]) -> None:
        rig = scene.rig
        what = (
            ["run", str(scene.maintenance), "--site", str(rig.write()), "--run", RUN]
            if verb == "run"
            else ["resume", RUN]
        )
        self._said = rig.root / f"{verb}.log"
        with self._said.open("ab") as log:
            self._process = subprocess.Popen(
                cli_command(*what, "--home", str(rig.home), "--on", on),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )

    def kill(self, number: signal.Signals) -> None:
        assert self._process.poll() is None, f"it ended before it could be killed: {self.said}"
        self._process.send_signal(number)
        assert self._process.wait(DEADLINE) != 0

    def wait(self) -> int:
        """Its exit code; whatever it is, what it said is shown when the cell fails."""
        code = self._process.wait(DEADLINE)
        print(self.said)
        return code

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def play(cell: Cell, scene: Scene, on: str, environment: Mapping[str, str]) -> None:
    """Run, strike, and go on as the documentation says: with one `pitstop resume` at most."""
    with scene, Command(scene, "run", on, environment) as command:
        if cell.victim in NUMBERS:
            scene.wait_held() if cell.step != "checkpoint" else scene.wait_begun()
            command.kill(NUMBERS[cell.victim])
            scene.check_in_the_middle()
            with Command(scene, "resume", on, environment) as again:
                until(lambda: scene.has("run.resumed"), "the run is taken up again", DEADLINE)
                scene.let_go()
                assert again.wait() == 0, again.said
        else:
            strike(cell, scene)
            scene.let_go()
            if command.wait() == 4:
                with Command(scene, "resume", on, environment) as again:
                    assert again.wait() == 0, again.said
        scene.check(cell.endings)


def strike(cell: Cell, scene: Scene) -> None:
    """Cut what is between the node and its controllers, or its power."""
    scene.wait_held() if cell.step != "checkpoint" else scene.wait_begun()
    node = scene.rig.node
    if cell.victim == "connection":
        with cut(node):
            pass  # nothing to be done meanwhile: that it was felt is what is waited for
    else:
        assert cell.victim == "node"
        node.power_cut()
        scene.power_lost()
        node.boot()
