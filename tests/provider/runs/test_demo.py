"""The main job from end to end on Airflow, as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.provider.conftest import LeftOver
from tests.rigs.lab import require_lab
from tests.rigs.site import cli_command


@pytest.mark.timeout(900)
def test_restored_then_started_cold_and_nothing_left(tmp_path: Path, left_over: LeftOver) -> None:
    """In the environment of a user with an Airflow of their own, which is not to be touched."""
    require_lab()
    home, temporary, database = tmp_path / "home", tmp_path / "tmp", tmp_path / "theirs.db"
    temporary.mkdir()
    done = subprocess.run(
        cli_command("demo", "--on", "airflow", "--json", "--home", str(home)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
        },
        timeout=800,
        check=False,
    )
    left = [(p, Path(f"/proc/{p.pid}/cmdline").read_text()) for p in left_over()]
    assert left == []
    assert list(temporary.iterdir()) == []
    assert not database.exists()

    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["front_end"] == "airflow"
    patch, upgrade = found["runs"]
    assert (patch["outcome"], patch["strategy"]) == ("restored", "checkpoint-restore")
    assert (patch["turn_before"], patch["turn_after"]) == (3, 4)
    assert patch["restore_seconds"] > 0
    assert (upgrade["outcome"], upgrade["strategy"]) == ("cold-started", "cold-start")
    assert upgrade["turn_after"] == 1
    assert upgrade["cold_start_seconds"] > 0
    [difference] = upgrade["differences"]
    assert (difference["field"], difference["saved"], difference["present"]) == (
        "engine.version",
        "pitstop-demo-server 1.0.0",
        "pitstop-demo-server 1.1.0",
    )
    for act in (patch, upgrade):
        report = report_of(act)
        assert (report["state"], report["chain"]["valid"]) == ("done", True)
        assert [w["outcome"] for w in report["workloads"]] == [act["outcome"]]


def report_of(act: dict[str, Any]) -> dict[str, Any]:
    path = Path(act["report"])
    assert path.exists()
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    return found
