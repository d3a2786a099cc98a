"""The command `pitstop`: help, exit codes, JSON, and what a terminal is shown."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pitstop.cli.main import app
from pitstop.cli.output import printable
from pitstop.journal.store import Journal
from pitstop.model.plan import Plan
from pitstop.steps.runs import create_run

Cli = Callable[..., Result]

COMMANDS = {
    ("demo",),
    ("doctor",),
    ("inventory",),
    ("plan",),
    ("run",),
    ("resume",),
    ("reconcile",),
    ("report",),
    ("runs",),
    ("start",),
    ("checkpoint",),
    ("gate",),
    ("restore",),
    ("suspend",),
    ("unsuspend",),
    ("images",),
    ("coverage",),
    ("images", "list"),
    ("images", "verify"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def cli(home: Path) -> Cli:
    """Run the command in this process, with a home of its own."""

    def call(*arguments: str) -> Result:
        environment = {"PITSTOP_HOME": str(home), "PITSTOP_SITE": "", "COLUMNS": "200"}
        return CliRunner().invoke(app, list(arguments), env=environment, catch_exceptions=False)

    return call


def site_file(tmp_path: Path, **node: Any) -> Path:
    """A site with this machine as its node, and no workload."""
    data = {
        "schema": "pitstop/site/v1",
        "name": "test",
        "nodes": {
            "here": {
                "engine": [sys.executable, "-m", "pitstop.node.main"],
                "state_dir": str(tmp_path / "state"),
                **node,
            }
        },
    }
    path = tmp_path / "site.yaml"
    path.write_text(json.dumps(data))
    return path


def maintenance_file(tmp_path: Path, **changes: Any) -> Path:
    """A maintenance that needs no reboot, so that this machine can be its node."""
    (tmp_path / "touch.md.j2").write_text(
        "---\nschema: pitstop/runbook/v1\ntitle: Touch\nrequired: [command]\n---\n# Touch\n\n"
        '```pitstop\nstep: touch\nkind: command\ncommand: "{{ command }}"\ntimeout: 60\n```\n'
    )
    data = {
        "schema": "pitstop/maintenance/v1",
        "title": "touch",
        "runbook": "touch.md.j2",
        "nodes": ["here"],
        "variables": {"command": ["touch", str(tmp_path / "touched")]},
        **changes,
    }
    path = tmp_path / "touch.yaml"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def saved(tmp_path: Path, cli: Cli) -> Path:
    """A plan saved as JSON."""
    path = tmp_path / "plan.json"
    site, maintenance = site_file(tmp_path), maintenance_file(tmp_path)
    done = cli("plan", str(maintenance), "--site", str(site), "--save", str(path))
    assert done.exit_code == 0, done.output
    return path


def error_of(result: Result) -> dict[str, Any]:
    [line] = result.stdout.splitlines()
    error: dict[str, Any] = json.loads(line)["error"]
    assert set(error) == {"code", "subject", "cause", "hint", "retryable"}
    return error


# --- help and usage ---


def test_every_command_is_tested_here() -> None:
    found: set[tuple[str, ...]] = {(name,) for name in _names(app)}
    groups = {str(group.name): group.typer_instance for group in app.registered_groups}
    found |= {(name,) for name in groups}
    found |= {(name, sub) for name, inner in groups.items() for sub in _names(inner or app)}
    assert found == COMMANDS


def _names(of: Any) -> list[str]:
    return [str(c.name or c.callback.__name__) for c in of.registered_commands]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(cli: Cli, command: tuple[str, ...]) -> None:
    done = cli(*command, "--help")
    assert done.exit_code == 0
    assert " ".join(command) in done.stdout
    assert done.stderr == ""
    if command != ("images",):
        assert "--json" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["run"], ["plan", "--nonsense"], ["report", "a", "b"], ["images", "nonsense"]],
)
def test_wrong_usage_is_bad_input(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments).exit_code == 2


def test_installed_command_starts_and_takes_an_exit_code_to_the_shell(home: Path) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("pitstop")), "report", "nope", "--json"],
        env={**os.environ, "PITSTOP_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "bad_input"
    assert "Traceback" not in done.stderr


# --- runs and reports ---


def test_without_runs(cli: Cli, home: Path) -> None:
    assert json.loads(cli("runs", "--json").stdout) == []
    assert cli("runs").exit_code == 0
    done = cli("report", "--json")
    assert done.exit_code == 2
    assert "no runs yet" in error_of(done)["cause"]
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("command", ["report", "resume"])
@pytest.mark.parametrize("run", ["nope", "", "../../etc/passwd", "a b\nc", "x" * 300])
def test_unknown_run_is_bad_input_and_makes_no_directory(
    cli: Cli, home: Path, command: str, run: str
) -> None:
    done = cli(command, run, "--json")
    assert done.exit_code == 2
    assert error_of(done)["code"] == "bad_input"
    assert not (home / "runs").exists()


def test_run_from_a_saved_plan_and_its_report(cli: Cli, saved: Path, tmp_path: Path) -> None:
    done = cli("run", str(saved), "--run", "r1", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    plan = Plan.model_validate_json(saved.read_text())
    assert (result["state"], result["run"], result["plan_digest"]) == ("done", "r1", plan.digest)
    assert (tmp_path / "touched").exists()
    report = json.loads(cli("report", "r1", "--json").stdout)
    assert report["chain_faults"] == []
    assert Path(report["report"]).is_file()
    assert json.loads(cli("report", "--json").stdout)["report"] == report["report"]
    [listed] = json.loads(cli("runs", "--json").stdout)
    assert listed["run"] == "r1"
    # It has ended, and its id is used.
    done = cli("resume", "r1", "--json")
    assert (done.exit_code, error_of(done)["code"]) == (3, "refused")
    done = cli("run", str(saved), "--run", "r1", "--json")
    assert (done.exit_code, error_of(done)["code"]) == (2, "bad_input")


def test_failed_run_is_partial_for_programs_and_people(cli: Cli, tmp_path: Path) -> None:
    maintenance = maintenance_file(tmp_path, variables={"command": ["false"]})
    done = cli("run", str(maintenance), "--site", str(site_file(tmp_path)), "--run", "r1")
    assert done.exit_code == 4
    assert "pitstop resume r1" in done.stdout
    assert cli("runs").stdout.count("quarantined") == 1
    # The node refuses another run meanwhile.
    done = cli("plan", str(maintenance), "--site", str(site_file(tmp_path)), "--json")
    assert done.exit_code == 3
    assert "quarantined" in json.loads(done.stdout)["no_go"][0]


def test_broken_chain_is_said_and_is_a_failure(cli: Cli, saved: Path, home: Path) -> None:
    assert cli("run", str(saved), "--run", "r1").exit_code == 0
    with sqlite3.connect(home / "journal.db") as connection:
        for name in ("events_no_update", "events_no_delete", "events_no_replace"):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE events SET body = replace(body, 'touched', 'nothing')")
    connection.close()
    done = cli("report", "r1", "--json")
    assert done.exit_code == 1
    assert any("was changed" in fault for fault in json.loads(done.stdout)["chain_faults"])


# --- plans ---


def test_plan_digest_binds_to_every_edit(cli: Cli, saved: Path) -> None:
    digest = Plan.model_validate_json(saved.read_text()).digest
    data = json.loads(saved.read_text())
    data["title"] = "edited"
    saved.write_text(json.dumps(data))
    result = json.loads(cli("run", str(saved), "--json").stdout)
    assert result["plan_digest"] != digest
    assert result["plan_digest"] == Plan.model_validate_json(saved.read_text()).digest


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "unknown key": lambda data: data.update(goo=True),
    "missing key": lambda data: data.pop("node"),
    "wrong type": lambda data: data.update(workloads="none"),
    "another schema": lambda data: data.update(schema="pitstop/plan/v2"),
    "name that is none": lambda data: data.update(node="../n"),
}


@pytest.mark.parametrize("case", [*EDITS, "not JSON", "empty", "missing", "directory", "binary"])
def test_malformed_plan_is_refused_and_nothing_recorded(
    cli: Cli, saved: Path, case: str, tmp_path: Path
) -> None:
    if case in EDITS:
        data = json.loads(saved.read_text())
        EDITS[case](data)
        saved.write_text(json.dumps(data))
    else:
        saved.unlink()
    if case == "directory":
        saved.mkdir()
    elif case not in (*EDITS, "missing"):
        saved.write_bytes({"not JSON": b"{", "empty": b"", "binary": b"\x00\xff{"}[case])
    done = cli("run", str(saved), "--json")
    assert (done.exit_code, error_of(done)["code"]) == (2, "bad_input")
    assert error_of(done)["subject"] == str(saved)
    assert json.loads(cli("runs", "--json").stdout) == []
    assert not (tmp_path / "touched").exists()


def test_plan_that_says_no_go_is_not_run_even_when_saved(cli: Cli, saved: Path) -> None:
    data = json.loads(saved.read_text())
    data.update(go=False, no_go=["web: must not"])
    saved.write_text(json.dumps(data))
    done = cli("run", str(saved), "--json")
    assert (done.exit_code, error_of(done)["code"]) == (3, "refused")
    assert "web: must not" in error_of(done)["cause"]
    assert json.loads(cli("runs", "--json").stdout) == []


@pytest.mark.parametrize("run", ["a/b", "../x", "with space", "ünïcode", "x" * 64])
def test_run_id_that_is_no_name_is_refused_and_breaks_no_list(
    cli: Cli, saved: Path, run: str
) -> None:
    done = cli("run", str(saved), "--run", run, "--json")
    assert (done.exit_code, error_of(done)["code"]) == (2, "bad_input")
    assert json.loads(cli("runs", "--json").stdout) == []


def test_unknown_front_end_records_nothing(cli: Cli, saved: Path) -> None:
    assert cli("run", str(saved), "--on", "crontab", "--json").exit_code == 2
    assert json.loads(cli("runs", "--json").stdout) == []


@pytest.mark.parametrize("command", ["run", "resume"])
def test_unknown_front_end_is_bad_input(cli: Cli, saved: Path, home: Path, command: str) -> None:
    home.mkdir(mode=0o700)
    create_run(home, Plan.model_validate_json(saved.read_text()), "r1", "steps")
    target = str(saved) if command == "run" else "r1"
    done = cli(command, target, "--on", "crontab", "--json")
    assert (done.exit_code, error_of(done)["code"]) == (2, "bad_input")
    assert "crontab" in error_of(done)["subject"]
    assert "steps" in error_of(done)["hint"]


# --- errors ---


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "web"],
        ["checkpoint", "web"],
        ["restore", "web"],
        ["suspend", "web"],
        ["unsuspend", "web"],
        ["gate", "web"],
        ["images", "list", "web"],
        ["images", "verify", "web"],
        ["doctor", "web"],
    ],
)
def test_what_the_site_does_not_declare_is_bad_input(
    cli: Cli, tmp_path: Path, arguments: list[str]
) -> None:
    done = cli(*arguments, "--site", str(site_file(tmp_path)), "--json")
    assert (done.exit_code, error_of(done)["code"]) == (2, "bad_input")
    missing = cli(*arguments, "--site", str(tmp_path / "none.yaml"), "--json")
    assert (missing.exit_code, error_of(missing)["code"]) == (2, "bad_input")
    assert "none.yaml" in error_of(missing)["subject"]


def test_node_that_cannot_be_asked_is_a_failure_without_a_trace(cli: Cli, tmp_path: Path) -> None:
    site = site_file(tmp_path, ssh={"address": "127.0.0.1", "port": 1, "host_keys": []})
    done = cli("plan", str(maintenance_file(tmp_path)), "--site", str(site), "--json")
    assert (done.exit_code, error_of(done)["code"]) == (1, "node_unreachable")
    assert error_of(done)["retryable"] is True
    assert "Traceback" not in done.stderr
    assert "refused" in done.stderr


def test_home_that_is_none_is_bad_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        done = cli("runs", "--home", str(tmp_path / place), "--json")
        assert (done.exit_code, error_of(done)["code"]) == (2, "bad_input")


def test_journal_that_is_none_is_bad_input(cli: Cli, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "journal.db").write_text("not a database, and not a short text either\n" * 40)
    for arguments in (["runs"], ["report"], ["report", "r1"], ["resume", "r1"]):
        done = cli(*arguments, "--json")
        assert (done.exit_code, error_of(done)["code"]) == (2, "bad_input")


HOSTILE = "a\x1b[31mred\x1b]0;title\x07\r\x9b2J\u202egnp.exe[/red][bold]\x00"


def test_control_characters_are_made_visible() -> None:
    shown = printable(HOSTILE)
    assert all(c.isprintable() for c in shown)
    assert "\\x1b[31mred" in shown
    assert "\\u202e" in shown
    assert printable("two\nlines, ✓ 节点") == "two\nlines, ✓ 节点"


def test_error_text_cannot_drive_the_terminal_or_the_markup(cli: Cli, tmp_path: Path) -> None:
    done = cli("start", HOSTILE.replace("\0", ""), "--site", str(site_file(tmp_path)))
    assert done.exit_code == 2
    assert all(c.isprintable() or c == "\n" for c in done.stderr)
    assert "\\x1b[31mred" in done.stderr
    assert "[/red][bold]" in done.stderr
    # A program gets them as they are, and escaped by JSON.
    exact = cli("start", HOSTILE.replace("\0", ""), "--site", str(site_file(tmp_path)), "--json")
    assert error_of(exact)["subject"] == HOSTILE.replace("\0", "")
    assert "\x1b" not in exact.stdout


def test_hostile_names_in_a_plan_are_shown_harmlessly(cli: Cli, saved: Path) -> None:
    data = json.loads(saved.read_text())
    data["title"] = HOSTILE
    saved.write_text(json.dumps(data))
    done = cli("run", str(saved), "--run", "r1")
    assert done.exit_code == 0, done.output
    for output in (done.output, cli("runs").output, cli("report", "r1").output):
        assert all(c.isprintable() or c == "\n" for c in output)


def test_runs_are_listed_also_while_one_has_only_begun(cli: Cli, saved: Path, home: Path) -> None:
    """As after a crash between recording the run and its first event."""
    home.mkdir(mode=0o700)
    journal = Journal(home / "journal.db")
    journal.create_run("r0", Plan.model_validate_json(saved.read_text()))
    journal.close()
    [listed] = json.loads(cli("runs", "--json").stdout)
    assert (listed["run"], listed["state"], listed["ended"]) == ("r0", "partial", False)
    assert "not ended" in cli("runs").stdout
    done = cli("resume", "r0", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["state"] == "done"
