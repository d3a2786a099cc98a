"""The doctor on the real machine: a real CRIU, a real dump, a real restore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.durable import write_json
from pitstop.node import criu
from pitstop.node.checks import clock_sync, kernel_features
from pitstop.node.doctor import FOR_CPU, FOR_GPU, examine
from pitstop.node.paths import StateDir
from pitstop.node.trial import run_trial
from tests.rigs.gpus import EmulatedGpus


@pytest.fixture
def state() -> Iterator[StateDir]:
    """A state directory with a path that the engine takes (pytest's may hold brackets)."""
    with tempfile.TemporaryDirectory(prefix="pitstop-doctor-", dir="/tmp") as name:
        yield StateDir(Path(name))


def left_behind(state: StateDir) -> list[str]:
    """Files of a trial, and processes whose command line or open lock is one's."""
    found = [str(path) for path in state.root.glob("trial.*")]
    wanted = f"{state.root}/trial."
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if wanted in command:
            found.append(command)
    return found


def by_id(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {check["id"]: check for check in found["checks"]}


def test_this_machine_can_save(state: StateDir) -> None:
    found = examine(state, trial=True)
    checks = by_id(found)
    assert checks["trial"]["state"] == "ok", checks["trial"]
    assert "counted on" in checks["trial"]["found"]
    assert found["able"] is True
    assert found["can"]["cpu_workloads"] is True
    assert len(checks) == len(found["checks"])
    assert set(checks) >= FOR_CPU
    for check in found["checks"]:
        assert set(check) == {"id", "state", "what", "found", "why", "fix"}
        assert check["state"] in ("ok", "warning", "failed", "absent", "unknown")
        assert check["state"] != "unknown", check
    assert left_behind(state) == []


def doctor(environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """What `pitstop doctor` says of a machine, by the id of each check."""
    shown = subprocess.run(
        [sys.executable, "-m", "pitstop.cli.main", "doctor", "--no-trial", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,  # a GPU that is broken keeps no workload without a GPU from being saved
    )
    return by_id(json.loads(shown.stdout))


def test_a_machine_without_a_gpu_lacks_nothing() -> None:
    checks = doctor({})
    assert [checks[name]["state"] for name in sorted(FOR_GPU)] == ["absent"] * 3


def test_a_node_with_gpus_is_read_through_the_bindings(tmp_path: Path) -> None:
    machine = EmulatedGpus(tmp_path / "machine", 2, model=["NVIDIA L4", "NVIDIA H200"])
    checks = doctor(machine.environment())
    assert [checks[name]["state"] for name in sorted(FOR_GPU)] == ["ok"] * 3
    assert "2 GPU: 1 x NVIDIA H200, 1 x NVIDIA L4" in checks["gpu-driver"]["found"]
    assert "cuda-core" in checks["cuda-checkpoint"]["found"]


def test_a_node_whose_nvml_crashes_is_still_judged(tmp_path: Path) -> None:
    machine = EmulatedGpus(tmp_path / "machine", 1)
    machine.fault("nvmlDeviceGetHandleByIndex_v2", "die")
    checks = doctor(machine.environment())
    assert checks["gpu-driver"]["state"] == "failed"
    assert "SIGSEGV" in checks["gpu-driver"]["found"]
    assert checks["gpu-state"]["state"] == "failed"
    assert checks["criu"]["state"] == "ok"


def test_the_command_and_the_call_say_the_same(state: StateDir) -> None:
    command = [sys.executable, "-m", "pitstop.node.main", "--state-dir", str(state.root)]
    shown = subprocess.run([*command, "doctor", "--no-trial"], capture_output=True, check=True)
    request = {"call": "doctor", "state_dir": str(state.root), "arguments": {"trial": False}}
    asked = subprocess.run(
        [*command, "rpc", "--nonce", "n1"],
        input=json.dumps(request).encode(),
        capture_output=True,
        check=True,
    )
    from pitstop.node.frame import unwrap

    answer = unwrap("n1", asked.stdout)
    assert answer is not None
    states = {c["id"]: c["state"] for c in json.loads(shown.stdout)["checks"]}
    assert states == {c["id"]: c["state"] for c in answer["result"]["checks"]}
    assert states["trial"] == "unknown"


def test_without_a_trial_no_state_directory_is_made() -> None:
    with tempfile.TemporaryDirectory(prefix="pitstop-doctor-", dir="/tmp") as name:
        root = Path(name) / "state"
        examine(StateDir(root), trial=False)
        assert not root.exists()


def test_a_quarantine_and_a_loose_key_are_found(state: StateDir) -> None:
    write_json(state.quarantine, {"run": "r-1", "cause": "no GPU", "time": "t"})
    key = state.keys() / "signing.pem"
    key.touch(mode=0o644)
    key.chmod(0o644)
    state.root.chmod(0o755)
    found = examine(state, trial=False)
    checks = by_id(found)
    assert checks["quarantine"]["state"] == "warning"
    assert checks["signing-key"]["state"] == "failed"
    assert checks["state-dir"]["state"] == "warning"
    assert found["able"] is False


def wrapper(directory: Path, body: str) -> Path:
    """A stand-in for CRIU that does something else around the real one."""
    program = directory / "criu-wrapper"
    program.write_text(f"#!/bin/sh\ncriu={criu.program()}\n{body}\n")
    program.chmod(0o700)
    return program


def test_a_criu_that_cannot_dump_is_found_though_its_check_is_happy(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = wrapper(
        state.root,
        'case "$1" in dump) exec "$criu" "$@" --no-such-option;; esac\nexec "$criu" "$@"',
    )
    monkeypatch.setenv("PITSTOP_CRIU", str(program))
    found = examine(state, trial=True)
    checks = by_id(found)
    assert checks["criu"]["state"] == "ok"
    assert checks["trial"]["state"] == "failed"
    assert checks["trial"]["found"].startswith("dump: ")
    assert found["able"] is False
    assert left_behind(state) == []


def test_crius_own_error_lines_are_shown(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that goes missing after it was verified: the trial repeats what CRIU says."""
    program = wrapper(
        state.root, 'case "$1" in restore) rm "$3"/core-*.img;; esac\nexec "$criu" "$@"'
    )
    monkeypatch.setenv("PITSTOP_CRIU", str(program))
    trial = run_trial(state)
    assert trial.stage == "restore"
    assert "Unexpected EOF on (empty-image)" in trial.causes[0]
    assert trial.parts.keys() == {"dump"}
    assert left_behind(state) == []


def test_a_dump_whose_criu_dies_with_the_namespace_is_a_good_dump(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU runs in the namespace it dumps; here it is always still there when that ends.

    It is then killed, after it has ended the tree at the boundary. Taking that for a failed
    dump would throw away the only copy of the workload.
    """
    program = wrapper(state.root, '"$criu" "$@"; status=$?; sleep 1; exit $status')
    monkeypatch.setenv("PITSTOP_CRIU", str(program))
    trial = run_trial(state)
    assert (trial.stage, trial.causes) == ("", ())
    assert left_behind(state) == []


def test_a_trial_that_cannot_start_says_so(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.node.trial.tempfile.gettempdir", lambda: str(state.root / "no"))
    trial = run_trial(StateDir(state.root / "none"))
    assert trial.stage == "start"
    assert "No such file" in trial.causes[0]


def test_a_trial_over_its_deadline_is_ended_with_all_it_started(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = wrapper(state.root, 'case "$1" in dump) exec sleep 300;; esac\nexec "$criu" "$@"')
    monkeypatch.setenv("PITSTOP_CRIU", str(program))
    monkeypatch.setattr("pitstop.node.trial.DEADLINE", 5.0)
    monkeypatch.setattr("pitstop.node.trial.CLEAN_DEADLINE", 5.0)
    trial = run_trial(state)
    assert trial.stage == "trial"
    assert "none after 5 s" in trial.causes[0]
    assert left_behind(state) == []


def test_the_kernel_answers_what_is_asked_of_it() -> None:
    assert kernel_features.kcmp_errno() == 0
    clock = clock_sync.read_clock()
    assert clock.maxerror >= 0
    assert clock.result in range(6)
    # adjtimex returns TIME_ERROR for an unsynchronised clock: layout of the struct is right.
    if clock.status & clock_sync.STA_UNSYNC:
        assert clock.result == clock_sync.TIME_ERROR


def test_io_uring_is_seen_to_be_denied() -> None:
    """Under the launcher's own filter the question is answered with ENOSYS."""
    code = (
        "from pitstop.node import kernel; from pitstop.node.checks import kernel_features as k;"
        "before = k.io_uring_errno(); kernel.deny_io_uring(); print(before, k.io_uring_errno())"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    before, after = map(int, output.split())
    assert before != 38 or after == 38
    assert after == 38
