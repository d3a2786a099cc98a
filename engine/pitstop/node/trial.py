"""A trial: save and restore a throw-away process with this very engine, and remove it all.

`criu check` looks at single features and can say yes where no dump works (CRIU 4.1.1 on
kernel 6.18: any process with a TCP socket). So the doctor asks for the real thing: start,
dump, end, restore, and the proof that the same process answers.

The trial runs in a process of its own, so that it has its own signals and deadline, and so
that a caller which is cut off does not leave it half done.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pitstop.model.errors import PitstopError, Refused
from pitstop.node.checks.check import Check, CheckState, first_line
from pitstop.node.clock import running_seconds
from pitstop.node.paths import StateDir
from pitstop.node.record import WorkloadState

WORKLOAD = "trial"
READY_DEADLINE = 20.0
DEADLINE = 120.0
CLEAN_DEADLINE = 90.0
END_GRACE = 5.0

_STAGES = {
    "start": "a process cannot be started in namespaces of its own",
    "dump": "CRIU cannot save even a small process here",
    "restore": "what was saved cannot be brought back here",
    "proof": "what came back is not the process that was saved",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """How a trial went.

    Attributes:
        stage: where it stopped; empty when all of it worked.
        causes: in CRIU's own words where they are CRIU's.
        seconds: for all of it; the others for their part.
    """

    stage: str = ""
    causes: tuple[str, ...] = ()
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


def try_it(state: StateDir) -> Check:
    """Make a trial and judge it. Everything it made is removed, whatever happens."""
    return judge_trial(run_trial(state))


def not_tried() -> Check:
    """Say that no trial was made."""
    return Check(
        "trial",
        CheckState.UNKNOWN,
        "trial dump and restore",
        "not tried",
        "nothing else proves that a dump and a restore work here",
        "pitstop-node doctor, without --no-trial",
    )


def judge_trial(found: Trial) -> Check:
    """Turn the outcome of a trial into a check."""
    what = "trial dump and restore"
    if not found.stage:
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.parts.items())
        return Check(
            "trial",
            CheckState.OK,
            what,
            f"a process with a listening TCP socket was saved, ended and restored, and counted "
            f"on, in {found.seconds:.1f} s ({parts})",
        )
    return Check(
        "trial",
        CheckState.FAILED,
        what,
        f"{found.stage}: {'; '.join(found.causes) or 'no cause is known'}",
        _STAGES.get(found.stage, "the trial itself broke"),
        "mend the failed checks beside this one first; scripts/install-criu installs a CRIU "
        "that is known to work",
    )


def run_trial(state: StateDir) -> Trial:
    """Run a trial in a process of its own, below the state directory where there is one."""
    # The same file system that images will lie on; but a doctor makes no state directory.
    above = state.root if state.root.is_dir() else Path(tempfile.gettempdir())
    try:
        directory = Path(tempfile.mkdtemp(prefix="trial.", dir=above))
    except OSError as error:
        return Trial("start", (f"{above}: {error.strerror}",))
    begun = running_seconds()
    try:
        status, output, errors = _run(["--run", str(directory)], DEADLINE)
        if status != 0:
            _run(["--clean", str(directory)], CLEAN_DEADLINE)
            lines = errors.strip().splitlines()[-3:]
            return Trial("trial", (f"ended with status {status}", *lines))
        # The engine's own words may stand before it.
        said = json.loads(output.splitlines()[-1])
        return Trial(
            stage=str(said["stage"]),
            causes=tuple(said["causes"]),
            seconds=round(running_seconds() - begun, 3),
            parts=dict(said["parts"]),
        )
    finally:
        shutil.rmtree(directory)


def _run(arguments: list[str], deadline: float) -> tuple[int | str, str, str]:
    with subprocess.Popen(
        [sys.executable, "-m", "pitstop.node.trial", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            # SIGTERM first: the trial then ends what it started.
            process.terminate()
            try:
                output, errors = process.communicate(timeout=CLEAN_DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
            return f"none after {deadline:g} s", output, errors
        except BaseException:
            process.terminate()
            raise
    return process.returncode, output, errors


class _Attempt:
    """The trial itself, inside its own process."""

    def __init__(self, state: StateDir) -> None:
        self.state = state
        self.port_file = state.root / "port"
        self.stage = "start"
        self.parts: dict[str, float] = {}

    def run(self) -> None:
        """Do it.

        Raises:
            PitstopError: it does not work; `stage` says where.
            OSError: the process does not answer.
        """
        from pitstop.model.words import Connections
        from pitstop.node.checkpointer import Order, take
        from pitstop.node.starter import start

        server = Path(__file__).with_name("trial_server.py")
        arguments: dict[str, Any] = {
            "workload": WORKLOAD,
            "run": WORKLOAD,
            "launch": {"command": [sys.executable, "-I", "-S", str(server), str(self.port_file)]},
            "ready": {
                "command": ["test", "-s", str(self.port_file)],
                "deadline": READY_DEADLINE,
                "interval": 0.01,
            },
        }
        start(self.state, "cold", arguments)
        address = ("127.0.0.1", int(self.port_file.read_text()))
        # A client that stays connected over the dump, as clients do.
        with socket.create_connection(address, READY_DEADLINE) as client:
            _ask(client)
            word, count = _ask(client)
            self.stage = "dump"
            order = Order(
                workload=WORKLOAD,
                checkpoint=WORKLOAD,
                run=WORKLOAD,
                node=os.uname().nodename,
                shape="single-node",
                connections=Connections.CLOSE,
                deadline=DEADLINE / 2,
            )
            self.parts["dump"] = float(take(self.state, order)["frozen_seconds"])
        self.stage = "restore"
        restored = start(self.state, "restore", {**arguments, "checkpoint": WORKLOAD})
        self.parts["restore"] = float(restored["ready_seconds"])
        self.stage = "proof"
        with socket.create_connection(address, READY_DEADLINE) as client:
            again = _ask(client)
        if again != (word, count + 1):
            raise Refused(WORKLOAD, f"it answers {again}, and not {(word, count + 1)}")

    def log_tail(self) -> tuple[str, ...]:
        """The last words of the launcher."""
        log = WorkloadState(self.state, WORKLOAD).launcher_log
        return tuple(log.read_text(errors="replace").splitlines()[-3:]) if log.exists() else ()


def _ask(connection: socket.socket) -> tuple[str, int]:
    connection.sendall(b"?\n")
    answer = b""
    while not answer.endswith(b"\n"):
        part = connection.recv(256)
        if not part:
            raise ConnectionError("it closed the connection without an answer")
        answer += part
    word, count = answer.decode("ascii").split()
    return word, int(count)


def _attempt(directory: Path) -> dict[str, Any]:
    """Make the attempt in this process, and say how it went."""
    from pitstop.node import cancelling

    cancelling.listen(WORKLOAD)
    causes: tuple[str, ...] = ()
    stage = "start"
    parts: dict[str, float] = {}
    try:
        attempt = _Attempt(StateDir.at(str(directory)))
        try:
            attempt.run()
            stage = ""
        except PitstopError as error:
            stage, causes = attempt.stage, (error.cause, *attempt.log_tail())
        except OSError as error:
            stage, causes = attempt.stage, (first_line(error), *attempt.log_tail())
        parts = attempt.parts
    except PitstopError as error:  # a path that the engine does not take
        causes = (str(error),)
    finally:
        _clean(directory)
    return {"stage": stage, "causes": causes, "parts": parts}


def _clean(directory: Path) -> None:
    """End what runs, and reap it: on some machines nobody else would."""
    from pitstop.node.stopper import end_launched

    files = WorkloadState(StateDir(directory), WORKLOAD)
    if files.running():
        # By its signal first, so that the launcher reaps before it ends.
        end_launched(files, grace=END_GRACE)
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        return  # none is left


def main(arguments: list[str]) -> int:
    """Entry point of the trial's own process."""
    verb, directory = arguments[0], Path(arguments[1])
    if verb == "--clean":
        _clean(directory)
        return 0
    try:
        print(json.dumps(_attempt(directory)), flush=True)
    except Exception:  # noqa: BLE001  # the caller shows its last lines
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
