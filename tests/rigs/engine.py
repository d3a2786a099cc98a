"""The node engine on this machine, in a network of its own, and an end to all it started.

Each test gets a state directory and a network namespace with nothing but a loopback, so
ports are free and CRIU's packet rules touch nobody. Whatever a test starts, through any
number of daemons, becomes a child of the test process in the end and is killed with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import Checkpoint
from pitstop.images.store import Store
from pitstop.model.errors import WorkloadGone
from pitstop.model.words import Connections
from pitstop.node import processes, subject
from pitstop.node.calls import answer
from pitstop.node.checkpointer import Order, take
from pitstop.node.main import main
from pitstop.node.paths import StateDir
from pitstop.node.processes import Identity
from pitstop.node.record import Record, WorkloadState
from tests.rigs.forked import Forked

SERVER = Path(__file__).with_name("counting_server.py")
FAMILY = Path(__file__).with_name("family.py")
WORKLOAD = "web"
PORT = 8090
FAMILY_PORT = 8091
NODE_COMMAND = (sys.executable, "-m", "pitstop.node.main")

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def until(found: Callable[[], Any], what: str, seconds: float = 20, pause: float = 0.01) -> Any:
    """Ask for what sends no event until it is true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {what}")
        time.sleep(pause)


def state_letter(pid: int) -> str:
    """The state of a process as the kernel shows it: R, S, T, t, Z; gone is an X."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def copies_of(*words: str) -> list[int]:
    """PIDs of what runs below this process with these as its first arguments."""
    wanted, found = [word.encode() for word in words], []
    for process in processes.tree(os.getpid()):
        with suppress(OSError):
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            if command[1 : 1 + len(wanted)] == wanted:
                found.append(process.pid)
    return sorted(found)


class EngineError(Exception):
    """An error as the engine sent it."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(dict(error)))
        self.code = str(error["code"])
        self.cause = str(error["cause"])
        self.hint = str(error["hint"])


class Client:
    """One connection to the family workload."""

    def __init__(self, timeout: float = 20) -> None:
        self.socket = socket.create_connection(("127.0.0.1", FAMILY_PORT), timeout=timeout)
        self.lines = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.socket.close()

    def send(self, line: str) -> None:
        self.socket.sendall(line.encode() + b"\n")

    def receive(self) -> str:
        """The next answer; empty when the connection was ended cleanly."""
        return self.lines.readline().decode().strip()

    def ask(self, line: str) -> str:
        self.send(line)
        return self.receive()


@dataclass
class Launched:
    """A launcher that was started, and its workload."""

    process: subprocess.Popen[bytes] | Forked
    reader: int
    errors: Path
    files: WorkloadState
    _report: dict[str, Any] | None = None

    @property
    def report(self) -> dict[str, Any]:
        """What it said once the workload ran, or could not be started; {} when it died."""
        if self._report is None:
            with os.fdopen(self.reader, "rb") as pipe:
                self._report = json.loads(pipe.readline() or b"{}")
        return self._report

    @property
    def tree(self) -> list[Identity]:
        """The workload's processes, root first."""
        assert self.report.get("running"), (self.report, self.said)
        return list(subject.find(self.files, None).tree)

    @property
    def root(self) -> int:
        """The workload's first process, as this machine counts."""
        return self.tree[0].pid

    @property
    def said(self) -> str:
        """What the launcher wrote to its stderr."""
        return self.errors.read_text(errors="replace")

    def wait(self, seconds: float = 30) -> int:
        """The exit status it ended with; -n for signal n."""
        return self.process.wait(seconds)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@dataclass
class Engine:
    """The engine with a state directory of its own.

    Attributes:
        programs: start the launcher as the program it is, and not as a `Forked` one.
    """

    root: Path
    programs: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    _launched: list[Launched] = field(default_factory=list)

    @property
    def state(self) -> StateDir:
        return StateDir.at(str(self.root))

    def files(self, workload: str = WORKLOAD) -> WorkloadState:
        return WorkloadState(self.state, workload)

    def record(self, workload: str = WORKLOAD) -> Record:
        return self.files(workload).record()

    def output(self, workload: str = WORKLOAD) -> str:
        return self.files(workload).stdout.read_text(errors="replace")

    def store(self, workload: str = WORKLOAD) -> Store:
        return Store(self.state.images(workload))

    def checkpoint(self, identifier: str, workload: str = WORKLOAD) -> Checkpoint:
        return self.store(workload).get(identifier)

    def env(self) -> dict[str, str]:
        return {**os.environ, **self.environment, "PITSTOP_STATE_DIR": str(self.root)}

    def cli(
        self, *arguments: str, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run `pitstop-node` as a person would."""
        return subprocess.run(
            [*NODE_COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.env(),
            timeout=timeout,
            check=False,
        )

    def launch(
        self,
        *command: str,
        workload: str = WORKLOAD,
        options: Sequence[str] = (),
        **popen: Any,
    ) -> Launched:
        """Start the launcher; returns at once. Ask for `report` to wait for the start."""
        reader, writer = os.pipe()
        errors = self.root / f"launcher-{len(self._launched)}.err"
        arguments = [
            *("launch", "--workload", workload, "--report-fd", str(writer)),
            *(*options, *(("--", *command) if command else ())),
        ]
        process: subprocess.Popen[bytes] | Forked
        with errors.open("wb") as stderr:
            if self.programs:
                process = subprocess.Popen(
                    [*NODE_COMMAND, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    pass_fds=(writer, *popen.pop("pass_fds", ())),
                    env=popen.pop("env", self.env()),
                    **popen,
                )
            else:
                assert not popen, "only for programs"
                process = Forked(
                    partial(self._launch, arguments), keep=(writer,), stderr=stderr.fileno()
                )
        os.close(writer)
        launched = Launched(process, reader, errors, self.files(workload))
        self._launched.append(launched)
        return launched

    def _launch(self, arguments: list[str]) -> int:
        os.environ.update(self.env())
        return main(arguments)

    def serve(self, *options: str, **launch: Any) -> Launched:
        """Launch the counting server and wait until it answers."""
        launched = self.launch(sys.executable, str(SERVER), *options, **launch)
        assert launched.report.get("running"), (launched.report, launched.said)
        until(lambda: self.ask("/", quiet=True), "the server answers")
        return launched

    def family(self, directory: Path, daemon: str = "leader", **launch: Any) -> Launched:
        """Launch the family and wait until it listens."""
        command = (sys.executable, str(FAMILY), str(FAMILY_PORT), str(directory), daemon)
        launched = self.launch(*command, **launch)
        assert launched.report.get("running"), (launched.report, launched.said)
        until(lambda: "up" in self.output(launched.files.name), "the family listens")
        return launched

    def restore(self, checkpoint: str = "ck1", run: str = "run1", **launch: Any) -> Launched:
        """Have the launcher restore a checkpoint; returns once it runs, or could not."""
        options = ("--start", "restore", "--checkpoint", checkpoint, "--run", run)
        launched = self.launch(options=options, **launch)
        assert launched.report
        return launched

    def ask(self, path: str, port: int = PORT, quiet: bool = False) -> dict[str, Any]:
        """Ask the counting server; {} when it does not answer and that is expected."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
                found: dict[str, Any] = json.loads(response.read())
                return found
        except urllib.error.HTTPError as error:
            with error:
                return {"status": error.code}
        except OSError:
            if quiet:
                return {}
            raise

    def count_to(self, number: int) -> int:
        last = 0
        for _ in range(number):
            last = int(self.ask("/count")["count"])
        return last

    def copies(self) -> int:
        """How many copies of the counting server live: counted, not believed."""
        return len(copies_of(str(SERVER)))

    def rpc(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Ask the engine what a controller asks it; in this process, by the same code."""
        reply = answer({"call": call, "state_dir": str(self.root), "arguments": arguments})
        if "error" in reply:
            raise EngineError(reply["error"])
        result: dict[str, Any] = reply["result"]
        return result

    def start(self, identifier: str, kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Start an operation and return at once."""
        reader, writer = os.pipe()

        def start() -> int:
            os.environ.update(self.env())
            asked = {"id": identifier, "kind": kind, "arguments": arguments}
            with os.fdopen(writer, "w") as pipe:
                json.dump(self.rpc("op.start", **asked), pipe)
            return 0

        starter = Forked(start, keep=(writer,))
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        assert starter.wait() == 0
        status: dict[str, Any] = json.loads(said)
        return status

    def wait(self, identifier: str, seconds: float = 60) -> dict[str, Any]:
        status = self.rpc("op.wait", id=identifier, seconds=seconds)
        assert status["state"] != "running", self.op_log(identifier)
        return status

    def op(self, identifier: str, kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run an operation to its end and return its status."""
        self.start(identifier, kind, arguments)
        return self.wait(identifier)

    def op_log(self, identifier: str) -> str:
        return (self.state.operations() / identifier / "log").read_text(errors="replace")

    def runner(self, identifier: str) -> int:
        """The PID of an operation's runner."""
        path = self.state.operations() / identifier / "runner.json"
        until(path.exists, "the runner is recorded")
        return int(json.loads(path.read_text())["pid"])

    def order(self, checkpoint: str = "ck1", **changes: Any) -> dict[str, Any]:
        """The arguments of a checkpoint operation."""
        return {
            "workload": WORKLOAD,
            "checkpoint": checkpoint,
            "run": "run1",
            "node": "here",
            "shape": "single-gpu",
            **changes,
        }

    def save(self, checkpoint: str = "ck1", **changes: Any) -> dict[str, Any]:
        """Take a checkpoint and return its summary; in this process, which is faster."""
        order = self.order(checkpoint, **changes)
        order["connections"] = Connections(order.get("connections", "close"))
        return take(self.state, Order(**order))

    def criu(self, verb: str = "") -> list[int]:
        """PIDs of CRIU below this process, at that work, without the programs that start it."""
        found = []
        for process in processes.tree(os.getpid())[1:]:
            with suppress(OSError):
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                ours = any(word.endswith(b"/sbin/criu") for word in words)
                if ours and words[0] != b"nsenter" and (not verb or verb.encode() in words):
                    found.append(process.pid)
        return found

    def bring_up(self, *options: str, **changes: Any) -> dict[str, Any]:
        """The arguments of a restore or cold-start operation of the counting server."""
        return {
            "workload": WORKLOAD,
            "run": "run1",
            "launch": {"command": [sys.executable, str(SERVER), *options], "cwd": "/"},
            "ready": {
                "http": {"url": f"http://127.0.0.1:{PORT}/"},
                "deadline": 20.0,
                "interval": 0.01,
            },
            "proof": None,
            "checkpoint": None,
            **changes,
        }

    def close(self) -> None:
        """End everything below this process, and prove that it is gone."""
        for launched in self._launched:
            if launched._report is None:
                os.close(launched.reader)
        end_descendants()
        for launched in self._launched:
            if isinstance(launched.process, subprocess.Popen):
                launched.process.poll()


def end_descendants() -> None:
    """Kill all that this process or anything it started has started; reap it."""
    deadline = time.monotonic() + 30
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            living = processes.tree(os.getpid())[1:]
        except WorkloadGone:  # pragma: no cover - this process runs
            return
        if not living:
            return
        assert time.monotonic() < deadline, f"still there: {living}"
        for process in living:
            if process.alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        processes.wait_gone(living, 5)


def _own_network() -> int:
    """Move this thread into a new network with its loopback up; return the way back."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if _libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare: a network of its own needs root")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
    return back


def require_engine() -> None:
    """Skip on a laptop without root or CRIU; in CI that is a failure."""
    from pitstop.model.errors import PermanentError
    from pitstop.node import criu

    try:
        criu.program()
        missing = "" if os.geteuid() == 0 else "not root"
    except PermanentError as error:
        missing = str(error)
    if missing and os.environ.get("CI") == "true":
        raise RuntimeError(missing)
    if missing:
        pytest.skip(missing)


@contextmanager
def running_engine(root: Path) -> Iterator[Engine]:
    """An engine with an empty state directory, alone in its network."""
    require_engine()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    back = _own_network()
    root.chmod(0o700)
    running = Engine(root)
    try:
        yield running
    finally:
        try:
            running.close()
        finally:
            if _libc.setns(back, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns back")
            os.close(back)
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine of a test's own."""
    with running_engine(tmp_path_factory.mktemp("state")) as running:
        yield running
