"""Processes as /proc shows them, and the proof that they are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pitstop.model.errors import BadInput, WorkloadGone
from pitstop.node import processes
from pitstop.node.processes import Identity


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process without reaping it: it is a zombie."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_identity(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.identity(sleeper.pid)
    assert found.alive()
    assert not Identity(found.pid, found.start + 1).alive(), "a reused PID is another process"
    ended(sleeper)
    assert not found.alive(), "a zombie does not run"
    with pytest.raises(WorkloadGone):
        processes.identity(sleeper.pid)
    sleeper.wait()
    assert not found.alive()
    with pytest.raises(WorkloadGone):
        processes.identity(sleeper.pid)


@pytest.mark.parametrize("pid", [1, 0, -1, -9999])
def test_pids_that_mean_everybody(pid: int) -> None:
    with pytest.raises(BadInput):
        processes.identity(pid)
    with pytest.raises(BadInput):
        processes.tree(pid)


def test_names_that_look_like_fields(tmp_path: Path) -> None:
    """The kernel does not escape a program's name in /proc/PID/stat."""
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(Path("/bin/sleep").resolve())
    with subprocess.Popen([program, "1000"]) as process:
        found = processes.identity(process.pid)
        assert found.alive()
        assert processes.parent_of(process.pid) == os.getpid()
        assert processes.session_of(process.pid) == os.getsid(0)
        assert process.pid in [member.pid for member in processes.tree(os.getpid())]
        process.kill()


def test_tree_and_group() -> None:
    script = "sleep 1000 & sh -c 'sleep 1000 & echo up; wait' & wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = processes.tree(process.pid)
        assert found[0].pid == process.pid
        assert len(found) == 4
        assert sorted(m.pid for m in processes.group(process.pid)) == sorted(m.pid for m in found)
        assert all(member.alive() for member in found)
        os.killpg(process.pid, signal.SIGKILL)
        assert processes.wait_gone(found, 10) == []
        assert processes.group(process.pid) == []
        with pytest.raises(WorkloadGone):
            processes.tree(process.pid)


def test_wait_gone(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.identity(sleeper.pid)
    begun = time.monotonic()
    assert processes.wait_gone([found], 0.1) == [found]
    assert time.monotonic() - begun >= 0.1
    other = Identity(found.pid, found.start + 1)
    assert processes.wait_gone([other], 10) == [], "another process has the PID"
    ended(sleeper)
    assert processes.wait_gone([found], 10) == []
    sleeper.wait()
    assert processes.wait_gone([found], 10) == []
    assert processes.wait_gone([], 0) == []


def test_wait_gone_returns_as_soon_as_the_last_one_ends() -> None:
    with subprocess.Popen(["sleep", "0.2"]) as one, subprocess.Popen(["sleep", "0.1"]) as two:
        both = [processes.identity(one.pid), processes.identity(two.pid)]
        begun = time.monotonic()
        assert processes.wait_gone(both, 30) == []
        assert 0.1 <= time.monotonic() - begun < 10


class TestPidFile:
    def test_of_a_running_process(self, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
        for text in (f"{sleeper.pid}", f" {sleeper.pid}\n"):
            (tmp_path / "pid").write_text(text)
            assert processes.read_pid_file(tmp_path / "pid") == sleeper.pid

    @pytest.mark.parametrize("text", ["", "0", "1", "-1", "+5", "1_0", "x", "2 3", "９", "\0"])
    def test_of_nobody(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "pid").write_text(text)
        with pytest.raises(BadInput):
            processes.read_pid_file(tmp_path / "pid")

    def test_of_somebody_who_ended(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadGone):
            processes.read_pid_file(tmp_path / "pid")
        (tmp_path / "pid").write_text("4194304")  # above the largest PID there can be
        with pytest.raises(WorkloadGone):
            processes.read_pid_file(tmp_path / "pid")

    def test_older_than_its_process(self, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
        path = tmp_path / "pid"
        path.write_text(str(sleeper.pid))
        old = time.time() - 60
        os.utime(path, (old, old))
        with pytest.raises(WorkloadGone, match="another process"):
            processes.read_pid_file(path)


def test_has_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w"):
        assert processes.has_open(os.getpid(), path)
    assert not processes.has_open(os.getpid(), path)
    assert not processes.has_open(4194304, path)


def test_has_open_while_other_files_come_and_go(tmp_path: Path) -> None:
    """One that was closed while we looked says nothing of the one that is asked for."""
    path = tmp_path / "file"
    code = (
        "import os, sys\n"
        "os.dup2(os.open(sys.argv[1], os.O_CREAT), 99)  # the last one that is looked at\n"
        "os.close(3)\n"
        "print(flush=True)\n"
        "while True:\n"
        "    for fd in [os.open('/dev/null', os.O_RDONLY) for _ in range(9)]: os.close(fd)"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert all(processes.has_open(process.pid, path) for _ in range(2000))
        process.kill()


def test_pid_inside_of_the_same_namespace() -> None:
    assert processes.pid_inside(os.getpid()) == os.getpid()
    code = "import sys; from pitstop.node import processes; print(processes.session_of(4194304))"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"0\n"
