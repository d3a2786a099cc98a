"""One cell of the kill matrix on real parts: a run held in a step, watched, and judged.

What holds a step is outside of pitstop: a request in flight, a FIFO that the patch reads, a
version probe that waits, a server that answers 503. So every system can be struck at the same
point, and goes on when the scene lets it.
"""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pitstop.decide.outcome import result_of
from pitstop.journal.chain import faults
from pitstop.journal.store import Journal
from pitstop.model.event import Event
from pitstop.model.result import RunResult, WorkloadResult
from tests.rigs.engine import until
from tests.rigs.maintenance import QUIET, fifo, python, quiet
from tests.rigs.matrix_cells import COLD, Ending
from tests.rigs.site import NODE, PORT, SERVER, WORKLOAD, SiteRig

RUN = "cell"

PATCH = """
import pathlib, sys
log, wait, *files = sys.argv[1:]
def say(text):
    with pathlib.Path(log).open("a") as file:
        file.write(text)
say("begun\\n")
if wait != "-":
    open(wait).read()
for path, text in zip(files[::2], files[1::2]):
    pathlib.Path(path).write_text(text)
say("ended\\n")
"""
"""Says when it begins and ends, waits in between for a FIFO, and writes files."""

PROBE = 'while [ -e "$1" ]; do : >"$2"; sleep 0.05; done; cat "$3"'
"""Answers with the engine's version, once nobody holds it."""

_MOVED_BACK = frozenset({"restore", "cold_start", "return_to_service"})


class Watch:
    """Looks at the machine's processes again and again; notes what must never be seen."""

    INTERVAL = 0.05

    def __init__(self, rig: SiteRig, patch_log: Path) -> None:
        self._words = str(rig.root / "broken").encode(), str(patch_log).encode()
        self._ops = rig.node.state_dir / "ops"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self.looks = 0
        self.violations: set[str] = set()

    def copies(self) -> int:
        """How many copies of the workload live, seen from outside of the node."""
        return self._count()[0]

    def _count(self) -> tuple[int, bool]:
        """Copies of the workload, and whether the patch is under way."""
        broken, log = self._words
        found, patching = 0, False
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if len(command) < 3 or (broken not in command and log not in command):
                    continue
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                    continue
                found += command[1] == str(SERVER).encode()
                patching |= command[1] == b"-c" and log in command
        return found, patching

    def _look_on(self) -> None:
        while not self._over.wait(self.INTERVAL):
            copies, patching = self._count()
            self.looks += 1
            if copies > 1:
                self.violations.add(f"{copies} copies at once")
            if patching and copies:
                self.violations.add("a copy runs in the middle of the patch")
            if patching and any(self._ops.glob(f"{RUN}.*.return_to_service.*")):
                self.violations.add("undrained in the middle of the patch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()


class Scene:
    """A run that will stop in one step until it is let go.

    Args:
        save_held: hold a checkpoint before its dump begins; else it is struck as it runs.
    """

    def __init__(self, rig: SiteRig, step: str, save_held: bool = False) -> None:
        self.rig = rig
        self.step = step
        self.save_held = save_held and step == "checkpoint"
        self.patch_log = rig.root / "patch.log"
        self._go_on = fifo(rig, "go-on")
        self._hold, self._probing = rig.root / "hold-probe", rig.root / "probing"
        self._slow: subprocess.Popen[Any] | None = None
        self._counted = 3
        self._powerless = False
        self._prepare_site()
        self.maintenance = self._prepare_maintenance()
        self.watch = Watch(rig, self.patch_log)
        self._journal = Journal(rig.home / "journal.db")

    def _prepare_site(self) -> None:
        rig = self.rig
        rig.workload["engine"] = {
            "command": [
                *("sh", "-c", PROBE, "probe"),
                *map(str, (self._hold, self._probing, rig.version_file)),
            ]
        }
        # Longer than any hold; and a cut is felt at once, not after many seconds.
        rig.workload["ready"]["deadline"] = rig.workload["drain"]["deadline"] = 150
        rig.site["nodes"][NODE]["ssh"] |= {"keepalive": 1, "connect_timeout": 5}
        rig.write()

    def _prepare_maintenance(self) -> Path:
        rig, broken = self.rig, str(self.rig.root / "broken")
        files: dict[str, Sequence[str]] = {
            "gate": (str(self._hold), ""),
            "restore": (broken, ""),
            "cold_start": (broken, "", str(rig.version_file), "2.0\n"),
        }
        wait = self._go_on if self.step == "maintain" else "-"
        command = python(PATCH, self.patch_log, wait, *files.get(self.step, ()))
        changes = {"engine.version": "2.0"} if self.step == "cold_start" else {}
        path = quiet(rig, command, changes=changes)
        # Held for longer than a silent task needs to count as dead.
        text = QUIET.replace("timeout: 60", "timeout: 600")
        (rig.root / "quiet.md.j2").write_text(text)
        return path

    def __enter__(self) -> Self:
        if self.step == "drain":
            url = f"http://127.0.0.1:{PORT}/slow"
            code = "import sys, urllib.request as u; u.urlopen(sys.argv[1])"
            self._slow = self.rig.node.popen_net(
                python(code, url), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            until(lambda: self.rig.ask("/inflight")["in_flight"], "a request in flight")
            self._counted += 1
        self.watch.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.watch.__exit__(*error)
        self._journal.close()
        if self._slow is not None:
            self._slow.kill()
            self._slow.wait()

    def operations(self, verb: str) -> list[Path]:
        """The node's operations of a verb in this run."""
        found = (self.rig.node.state_dir / "ops").glob(f"{RUN}.*.{verb}.*")
        return [path for path in found if (path / "request.json").exists()]

    def wait_ended(self) -> None:
        """Return once the node's work at the step has come to its end."""
        until(
            lambda: all((path / "result.json").exists() for path in self.operations(self.step)),
            f"the end of the work at {self.step}",
            60,
        )

    def wait_begun(self, seconds: float = 120) -> None:
        """Return as soon as the node works at the step."""
        if self.save_held:
            until(lambda: self.operations("drain"), "the drain", seconds)
            self._hold.touch()  # planned and checked by now: the next to probe is the dump
        if self.step == "gate":
            until(self._probing.exists, "the gate's probe", seconds)
        else:
            until(lambda: self.operations(self.step), f"the work at {self.step}", seconds)

    def wait_held(self, seconds: float = 120) -> None:
        """Return once the step can go no further."""
        self.wait_begun(seconds)
        if self.step in ("restore", "cold_start"):
            until(lambda: self.watch.copies() == 1, "the processes that do not answer", 60)
            until(self._answers, "they run", 60)  # before that, a restore has used nothing up
        elif self.step == "maintain":
            until(self.patch_log.exists, "the patch begins", 60)
        elif self.save_held:
            until(self._probing.exists, "the checkpoint's probe", 60)

    def _answers(self) -> bool:
        with suppress(AssertionError):
            return bool(self.rig.ask("/inflight"))
        return False

    def let_go(self) -> None:
        """Let the step go on, where something of it is left."""
        self._hold.unlink(missing_ok=True)
        (self.rig.root / "broken").unlink(missing_ok=True)
        (self.rig.root / "let-go").touch()
        if self.step == "maintain" and not self._powerless:
            until(self._patch_waits, "the patch waits", 60)
            self._go_on.write_text("go\n")
        if self._slow is not None:
            self._slow.wait(timeout=60)

    def _patch_waits(self) -> bool:
        return self.watch._count()[1]

    def power_lost(self) -> None:
        """The node was without power: what was in memory alone is gone."""
        self._powerless = True
        self._counted = 0 if self.step in ("drain", "checkpoint", "restore") else self._counted

    def events(self) -> list[Event]:
        return self._journal.events(RUN)

    def has(self, kind: str, verb: str = "") -> bool:
        """Whether the journal has such an event."""
        return any(e.kind == kind and verb in ("", e.verb) for e in self.events())

    def result(self) -> RunResult:
        return result_of(self._journal.plan(RUN), RUN, self.events())

    def check_in_the_middle(self) -> None:
        """While the step is held and its driver is gone: nothing goes on behind our back."""
        if self.step not in ("maintain", "gate"):
            return
        assert self.watch.copies() == 0
        assert self.look()["holder"] == RUN
        verbs = {e.verb for e in self.events() if e.kind == "step.started"}
        assert not verbs & _MOVED_BACK

    def look(self) -> dict[str, Any]:
        """What the node's engine says of node and workload."""
        node = self.rig.remote()
        try:
            found = node.call("inspect", workloads={WORKLOAD: {"probes": {}, "pid_file": None}})
        finally:
            node.close()
        workload = found["workloads"][WORKLOAD]
        return {
            "quarantine": found["quarantine"],
            "holder": workload["holder"],
            "running": workload["running"],
        }

    def check(self, endings: Sequence[Ending]) -> None:
        """After all has settled: one copy, its memory, admission, the node, and the record."""
        result = self.result()
        [workload] = result.workloads
        patch = self.patch_log.read_text() if self.patch_log.exists() else ""
        found = Ending(str(workload.outcome), patch)
        assert found in endings, (found, result, self._told())
        self._check_workload(workload)
        self._check_journal()
        assert self.watch.looks > 0
        assert not self.watch.violations, (self.watch.violations, self._told())

    def _check_workload(self, workload: WorkloadResult) -> None:
        assert (self.rig.copies(), self.watch.copies()) == (1, 1)
        counted = 0 if workload.outcome == COLD else self._counted
        assert self.rig.ask("/count").get("count") == counted + 1
        assert self.rig.ask("/")["open"] is True
        look = self.look()
        assert (look["holder"], look["running"]) == ("", True)
        assert look["quarantine"] is None or look["quarantine"]["run"] == RUN

    def _check_journal(self) -> None:
        events = self.events()
        assert faults(events) == []
        # A recovery by a person validates and asks the gate anew; all else is done once.
        epoch, finished = 0, Counter[tuple[str, str, int]]()
        for event in events:
            if event.kind == "run.resumed" and event.data.get("recover"):
                epoch += 1
            elif event.kind == "step.finished":
                anew = epoch if event.verb in ("validate", "gate") else 0
                finished[event.verb, event.subject, anew] += 1
        assert set(finished.values()) <= {1}, self._told()
        self._check_order(events)

    def _check_order(self, events: Sequence[Event]) -> None:
        """Nothing that brings work back lies between beginning and end of the maintenance."""
        changing = False
        for event in events:
            if event.verb == "maintain" and event.kind == "step.started":
                changing = True
            elif event.verb == "maintain" and event.kind in ("step.finished", "step.failed"):
                changing = False
            elif event.kind == "step.started" and event.verb in _MOVED_BACK:
                assert not changing, self._told()

    def _told(self) -> str:
        return "\n".join(
            f"{e.seq} {e.kind} {e.verb} {e.subject} {e.attempt} {str(e.data)[:300]}"
            for e in self.events()
        )
