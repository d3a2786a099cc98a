"""A user's workload, started through sudo: theirs, as them, and nothing of root's."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path

import pytest

from pitstop.model.errors import BadInput, CheckpointFailed, PermanentError
from pitstop.node import subject
from pitstop.node.launch import read_environment
from pitstop.node.main import main
from pitstop.node.owner import through_sudo
from tests.rigs.engine import NODE_COMMAND, WORKLOAD, Engine, until

CAP_SYS_RESOURCE = 24
THEIRS = f"nobody.{WORKLOAD}"
USER = pwd.getpwnam("nobody")
WHO = """
id -u; id -g; id -G; echo "$MINE"; echo "$HOME $SUDO_UID"
n=0
while :; do n=$((n + 1)); echo "n $n"; sleep 0.02; done
"""


@pytest.fixture
def sudo(engine: Engine) -> dict[str, str]:
    """The environment as sudo leaves it for one of its users."""
    return {**engine.env(), "SUDO_UID": str(USER.pw_uid), "SUDO_GID": str(USER.pw_gid)}


def said(engine: Engine) -> str:
    return engine.output(THEIRS) if engine.files(THEIRS).stdout.exists() else ""


def started(engine: Engine, env: dict[str, str], *options: str) -> subprocess.Popen[bytes]:
    errors = (engine.root / "sudo.err").open("wb")
    command = [*NODE_COMMAND, "launch", "--workload", WORKLOAD, "--cwd", "/", *options]
    process = subprocess.Popen(
        [*command, "--", "/bin/sh", "-c", WHO],
        env=env,
        stdin=subprocess.PIPE,
        stderr=errors,
    )
    errors.close()
    assert process.stdin is not None
    process.stdin.write(b"MINE=a b\nc\0HOME=/h\0SLURM_JOB_ID=7\0")
    process.stdin.close()
    return process


def test_it_runs_as_its_user_and_goes_on_as_its_user(engine: Engine, sudo: dict[str, str]) -> None:
    first = started(engine, sudo, "--environment-stdin")
    until(lambda: "n 5" in said(engine), "it counts")
    uid, gid = str(USER.pw_uid), str(USER.pw_gid)
    lines = said(engine).splitlines()
    assert lines[:2] == [uid, gid]
    assert "0" not in lines[2].split()
    assert lines[3:6] == ["a b", "c", "/h "]
    assert (engine.record(THEIRS).owner, engine.record(THEIRS).job) == (USER.pw_uid, "7")
    [found] = engine.rpc("launched")["launched"]
    assert found == {"workload": THEIRS, "user": "nobody", "job": "7"}
    if not may_read_limits():
        # So it is in many containers. It must be said, and the workload must run on.
        with pytest.raises(CheckpointFailed, match="rlimit") as caught:
            engine.save(workload=THEIRS)
        assert caught.value.hint.startswith("the workload runs on; root lacks CAP_SYS_RESOURCE")
        before = said(engine)
        until(lambda: len(said(engine)) > len(before), "it runs on")
        end(first)
        return
    engine.save(workload=THEIRS)
    assert first.wait(30) == 0
    second = started(engine, sudo, "--environment-stdin")
    until(
        lambda: engine.record(THEIRS).start_seconds and engine.record(THEIRS).how == "restored",
        "runs",
    )
    before = said(engine)
    until(lambda: len(said(engine)) > len(before), "it goes on")
    numbers = [int(x.split()[1]) for x in said(engine).splitlines() if x.startswith("n ")]
    assert numbers == list(range(1, len(numbers) + 1))
    status = Path(f"/proc/{_root(engine)}/status").read_text()
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status
    end(second)


def may_read_limits() -> bool:
    """Whether root may read the limits of another user's process (prlimit(2))."""
    effective = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    return bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM


def _root(engine: Engine) -> int:
    return subject.find(engine.files(THEIRS), None).root.pid


def test_nobody_starts_what_is_somebody_elses(engine: Engine, sudo: dict[str, str]) -> None:
    launched = engine.serve(workload=THEIRS)
    launched.signal(signal.SIGTERM)
    launched.wait()
    process = started(engine, sudo)
    assert process.wait(30) == 3
    assert "belongs to another user" in (engine.root / "sudo.err").read_text()


@pytest.mark.parametrize(
    "options",
    [
        ["--checkpoint", "ck1"],
        ["--run", "r"],
        ["--env-file", "/etc/shadow"],
        ["--gated"],
        ["--report-fd", "1"],
        ["--report-fd", "0"],
        ["--begun", "1"],
        ["--begun", "0"],
    ],
)
def test_what_is_for_root_alone(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUDO_UID", str(USER.pw_uid))
    assert main(["launch", "--workload", "w", *options, "--", "true"]) == 2
    assert f"{options[0]}: not for a user's launch" in capsys.readouterr().err


def test_the_state_directory_is_not_a_users_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds keys that are trusted and images that run as root."""
    monkeypatch.setenv("SUDO_UID", str(USER.pw_uid))
    assert main(["--state-dir", str(tmp_path), "launch", "--workload", "w", "--", "true"]) == 2
    assert "--state-dir" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_users_workloads_have_names_of_their_own() -> None:
    found = through_sudo({"SUDO_UID": str(USER.pw_uid)})
    assert found is not None
    assert found.name_for("web") == "nobody.web"
    for name in ("", "../web", "w" * 60, "a b"):
        with pytest.raises(BadInput, match="not a name"):
            found.name_for(name)


def test_who_runs_it() -> None:
    assert through_sudo({}) is None
    assert through_sudo({"SUDO_UID": "0"}) is None
    assert through_sudo({"SUDO_UID": "x"}) is None
    found = through_sudo({"SUDO_UID": str(USER.pw_uid)})
    assert found is not None and found.name == "nobody"
    with pytest.raises(BadInput, match="no user 4000000001"):
        through_sudo({"SUDO_UID": "4000000001"})


def test_an_environment_from_stdin() -> None:
    assert read_environment(b"") == {}
    assert read_environment(b"A=1=2\0B=\0") == {"A": "1=2", "B": ""}
    assert os.fsencode(read_environment(b"A=\xff\0")["A"]) == b"\xff"
    for raw in (b"SECRET\0", b"A=1\0=SECRET\0", b"\0"):
        with pytest.raises(PermanentError) as caught:
            read_environment(raw)
        assert "SECRET" not in str(caught.value)
