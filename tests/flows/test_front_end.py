"""Prefect as a driver when Prefect itself does not work: the journal is what counts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from pitstop.flows import front_end
from pitstop.flows.front_end import drive
from pitstop.flows.maintain_node import maintain_node
from pitstop.journal.store import Journal
from pitstop.model.errors import Refused, TemporaryError, Unexpected
from pitstop.steps.files import plan_from_files
from pitstop.steps.runs import create_run


@pytest.fixture
def home(here: tuple[Path, Path], tmp_path: Path) -> Path:
    create_run(tmp_path, plan_from_files(*here), "run", "prefect")
    return tmp_path


def kinds(home: Path) -> list[str]:
    journal = Journal(home / "journal.db")
    try:
        return [event.kind for event in journal.events("run")]
    finally:
        journal.close()


def test_without_a_server_nothing_is_done_and_the_way_on_is_named(home: Path) -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),
        pytest.raises(TemporaryError) as caught,
    ):
        drive(home, "run")
    assert "http://127.0.0.1:1/api" in caught.value.cause
    assert "pitstop resume run --on steps" in caught.value.hint
    assert kinds(home) == ["run.started"]


def test_server_lost_in_the_middle_loses_the_end_of_the_flow_run_alone(
    home: Path, server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The flow really runs; then its last word finds nobody, as if the server had gone."""

    def lost(**parameters: Any) -> None:
        maintain_node(**parameters)
        raise httpx.ConnectError("Connection refused")

    monkeypatch.setattr(front_end, "maintain_node", lost)
    with caplog.at_level(logging.WARNING, front_end.__name__):
        result = drive(home, "run")
    assert (result.state, result.exit_code) == ("done", 0)
    assert "Prefect does not know how the run ended" in caplog.text
    with pytest.raises(Refused, match="it has ended: done"):
        drive(home, "run")


def test_an_earlier_end_is_not_taken_for_this_ones(
    home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits for a person, and the flow dies of a bug before it has begun."""
    journal = Journal(home / "journal.db")
    journal.append("run", "run.ended", "test", "here", data={"state": "partial", "cause": "x"})
    journal.close()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pitstop.flows.maintain_node.show_plan", broken)
    with pytest.raises(Unexpected, match="ZeroDivisionError: a bug"):
        drive(home, "run")
    assert kinds(home) == ["run.started", "run.ended"]
