"""The launcher: whatever a supervisor expects of a program, its workload gives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pitstop.node import processes
from pitstop.node.locks import is_held
from pitstop.node.record import Phase
from tests.rigs.engine import SERVER, Engine, copies_of, until


@pytest.fixture(autouse=True)
def as_programs(engine: Engine) -> None:
    """What is tested here is the program, from its first instruction on."""
    engine.programs = True


SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))"


@pytest.mark.parametrize("status", [0, 3, 255])
def test_exit_status_passes_through(engine: Engine, status: int) -> None:
    launched = engine.launch("sh", "-c", f"exit {status}")
    assert launched.wait() == status
    assert engine.record().ended == {"exit": status}
    assert engine.record().phase is Phase.ENDED
    assert not engine.files().running()


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV"])
def test_ends_by_the_signal_that_ended_the_workload(engine: Engine, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    launched = engine.launch("sh", "-c", f"ulimit -c 0; kill -{name} $$")
    assert launched.wait() == -number
    assert engine.record().ended == {"signal": number}
    assert not engine.files().running()


def test_signals_are_forwarded(engine: Engine) -> None:
    launched = engine.launch(
        "sh",
        "-c",
        "trap 'echo got USR1' USR1; trap 'echo got HUP' HUP; trap 'echo got TERM; exit 7' TERM;"
        " echo up; sleep 1000 & while :; do wait; done",
    )
    assert launched.report["running"]
    until(lambda: "up" in engine.output(), "the traps are set")
    for name in ("USR1", "HUP"):
        launched.signal(signal.Signals[f"SIG{name}"])
        until(lambda name=name: f"got {name}" in engine.output(), f"{name} arrives")  # type: ignore[misc]
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 7
    assert engine.output() == "up\ngot USR1\ngot HUP\ngot TERM\n"


ECHO = """
import os, signal, socket, sys
numbers = [signal.SIGUSR1, signal.SIGUSR2]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    while True:
        peer.send(b".")
        signal.sigwait(numbers)
"""


def test_no_signal_is_lost_however_soon_it_follows_another(engine: Engine, tmp_path: Path) -> None:
    """The second comes at every moment of the launcher's way back to waiting for the next."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "peer"))
        listener.listen()
        launched = engine.launch(sys.executable, "-c", ECHO, str(tmp_path / "peer"))
        listener.settimeout(20)
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(5)
            assert peer.recv(1) == b"."
            for turn in range(3000):
                launched.signal(signal.SIGUSR1)
                later = time.perf_counter_ns() + 100 * (turn % 1000)
                while time.perf_counter_ns() < later:
                    pass
                launched.signal(signal.SIGUSR2)
                received = 0
                while received < 2:
                    received += len(peer.recv(2))


MOMENTS: dict[str, Callable[[Engine], bool]] = {
    "at once": lambda _engine: True,
    "lock taken": lambda engine: is_held(engine.files().lock_path),
    "starting": lambda engine: engine.record().phase is Phase.STARTING,
    "counted": lambda engine: engine.record().generation == 1,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_during_the_start_is_not_lost(engine: Engine, moment: str) -> None:
    launched = engine.launch("sleep", "1000")
    until(lambda: MOMENTS[moment](engine), moment)
    launched.signal(signal.SIGTERM)
    assert launched.wait() == -signal.SIGTERM
    assert not engine.files().running()
    assert processes.tree(os.getpid())[1:] == []


def test_ignored_signals_stay_ignored(engine: Engine) -> None:
    """Under nohup, or in the background of a script, a hang-up means nothing."""
    launched = engine.launch(
        "sh",
        "-c",
        "trap 'echo got HUP' HUP; trap 'exit 5' TERM; echo up; sleep 1000 & while :; do wait; done",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert launched.report["running"]
    until(lambda: "up" in engine.output(), "the traps are set")
    launched.signal(signal.SIGHUP)
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 5
    assert engine.output() == "up\n"


def test_the_workload_inherits_no_signal_settings_of_an_interpreter(engine: Engine) -> None:
    launched = engine.launch("sleep", "1000")
    status = Path(f"/proc/{launched.root}/status").read_text()
    found = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith("Sig"))
    assert {found[name].strip("0") for name in ("SigIgn", "SigBlk", "SigCgt")} == {""}


def test_stdio_is_the_engines_own_files_and_nothing_is_inherited(
    engine: Engine, tmp_path: Path
) -> None:
    files = engine.files()
    files.stdout.write_text("earlier\n")
    with (tmp_path / "leak").open("w") as leak:
        reader, writer = os.pipe()
        launched = engine.launch(
            "sh", "-c", "echo out; echo err >&2; exec sleep 1000", pass_fds=(leak.fileno(), writer)
        )
        root = launched.root
        os.close(reader)
        os.close(writer)
    until(lambda: "err" in files.stderr.read_text(), "output")
    assert files.stdout.read_text() == "earlier\nout\n"
    assert files.stderr.stat().st_mode & 0o777 == 0o600
    until(lambda: Path(f"/proc/{root}/comm").read_text() == "sleep\n", "the exec")
    links = {fd: os.readlink(f"/proc/{root}/fd/{fd}") for fd in os.listdir(f"/proc/{root}/fd")}
    assert links == {"0": "/dev/null", "1": str(files.stdout), "2": str(files.stderr)}
    for fd in ("1", "2"):
        fields = Path(f"/proc/{root}/fdinfo/{fd}").read_text().split()
        assert int(fields[fields.index("flags:") + 1], 8) & os.O_APPEND


def test_log_files_are_for_root_alone(engine: Engine) -> None:
    previous = os.umask(0)
    try:
        assert engine.launch("true").wait() == 0
    finally:
        os.umask(previous)
    for path in engine.files().log_paths():
        assert path.stat().st_mode & 0o777 == 0o600


def test_own_pid_and_mount_namespace_with_high_pids(engine: Engine) -> None:
    launched = engine.launch("sh", "-c", "ls -d /proc/[0-9]*; exec sleep 1000")
    root = launched.root
    for kind in ("pid", "mnt"):
        assert os.readlink(f"/proc/{root}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    assert os.readlink(f"/proc/{root}/ns/net") == os.readlink("/proc/self/ns/net")
    assert processes.pid_inside(root) > 1000
    assert os.getsid(root) == root
    until(lambda: "/proc/1\n" in engine.output(), "output")
    shown = [int(line.rpartition("/")[2]) for line in engine.output().split()]
    assert len(shown) <= 3, "its /proc shows processes of the node"


def test_environment_and_directory(engine: Engine, tmp_path: Path) -> None:
    secrets = tmp_path / "env"
    secrets.write_text("# comment\n\nTOKEN=a b=c\n  SPACED =x\nPLAIN=from the file\n")
    launched = engine.launch(
        sys.executable,
        "-c",
        SHOW,
        options=("--cwd", str(tmp_path), "--env-file", str(secrets)),
        env={**engine.env(), "PLAIN": "from outside", "OTHER": "kept"},
    )
    assert launched.wait() == 0
    _, directory, environment = json.loads(engine.output())
    assert directory == str(tmp_path)
    wanted = {"TOKEN": "a b=c", "SPACED": "x", "PLAIN": "from the file", "OTHER": "kept"}
    assert {name: environment[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    "content", [b"GOOD=1\nhidden secret\n", b"GOOD=1\n\xff\xfe=hidden secret\n"]
)
def test_a_bad_env_file_is_named_but_not_shown(
    engine: Engine, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "env"
    path.write_bytes(content)
    launched = engine.launch("true", options=("--env-file", str(path)))
    assert launched.wait() == 1
    assert str(path) in launched.said
    assert "hidden secret" not in launched.said
    assert "Traceback" not in launched.said


ARGUMENTS = [
    "ünï 🙂",
    "two words",
    "",
    'it\'s "quoted"',
    "$HOME; `id` && *",
    "line\nbreak",
    "--",
    "-x",
]


def test_arguments_arrive_untouched(engine: Engine) -> None:
    launched = engine.launch(sys.executable, "-c", SHOW, *ARGUMENTS)
    assert launched.wait() == 0
    assert json.loads(engine.output())[0] == ARGUMENTS


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("no-such-program", "no-such-program"),
        ("/no/such/program", "/no/such/program"),
        ("/dev/null", "Permission denied"),
    ],
)
def test_a_command_that_cannot_run(engine: Engine, command: str, named: str) -> None:
    launched = engine.launch(command, "x")
    assert launched.report["failed"]["code"] == "permanent"
    assert launched.wait() == 1
    assert named in launched.said
    assert command in launched.said
    assert "Traceback" not in launched.said
    assert engine.record().phase is Phase.ENDED
    assert not engine.files().running()


def test_a_directory_that_is_not_there(engine: Engine) -> None:
    launched = engine.launch("true", options=("--cwd", "/no/such/place"))
    assert launched.wait() == 1
    assert "/no/such/place" in launched.said


def test_killed_launcher_takes_the_whole_tree_along(engine: Engine) -> None:
    script = "setsid sh -c 'sleep 1000 & echo daemon; wait' & exec sleep 1000"
    launched = engine.launch("sh", "-c", script)
    assert launched.report["running"]
    until(lambda: "daemon" in engine.output(), "the daemon")
    members = processes.tree(launched.process.pid)
    assert len(members) >= 5  # launcher, pid 1, root, the daemon and its child
    launched.signal(signal.SIGKILL)
    assert launched.wait() == -signal.SIGKILL
    assert processes.wait_gone(members, 10) == []
    assert not is_held(engine.files().lock_path)
    assert engine.launch("true").wait() == 0


def test_workload_that_ends_takes_its_daemons_along(engine: Engine) -> None:
    launched = engine.launch("sh", "-c", "setsid sleep 4321 & sleep 0; exit 4")
    assert launched.wait() == 4
    assert copies_of("4321") == []


def test_second_copy_is_refused(engine: Engine) -> None:
    first = engine.launch("sleep", "1000")
    root = first.root
    before = engine.record()
    second = engine.launch("sh", "-c", "echo never")
    assert second.wait() == 3
    assert "a copy of it runs already" in second.said
    assert engine.record() == before
    assert first.root == root
    assert "never" not in engine.output()


def test_io_uring_can_be_kept_away(engine: Engine) -> None:
    command = (sys.executable, str(SERVER), "--ring")
    assert engine.launch(*command, options=("--deny-io-uring",)).wait() == 1
    assert "[Errno 38] io_uring_setup" in engine.files().stderr.read_text()


def test_a_refused_command_line_is_a_usage_error(engine: Engine) -> None:
    assert engine.cli("launch", "--workload", "../x", "--", "true").returncode == 2
    assert engine.cli("launch", "--workload", "web").returncode == 1
    assert "no command" in engine.cli("launch", "--workload", "web").stderr
