"""Where a run stands: told from journal and node, without a trace in either."""

from __future__ import annotations

from pathlib import Path

import pytest

from pitstop.journal.store import Journal
from pitstop.model.errors import BadInput
from pitstop.model.plan import Plan
from pitstop.model.words import Verb
from pitstop.steps.agenda import Due, next_step, peek
from pitstop.steps.context import RunContext
from pitstop.steps.outlook import Outlook, outlook
from pitstop.steps.runs import create_run
from tests.unit.test_planning import planned, process, site, workload

__all__ = ["process"]  # a fixture

RUN = "r1"


@pytest.fixture
def plan(tmp_path: Path, process: Path) -> Plan:
    return planned(site(tmp_path, web=workload({"here": 1}, process)))


@pytest.fixture
def home(tmp_path: Path, plan: Plan) -> Path:
    create_run(tmp_path / "home", plan, RUN, "steps")
    return tmp_path / "home"


def record(home: Path, kind: str, verb: Verb, subject: str, **data: object) -> None:
    journal = Journal(home / "journal.db")
    journal.append(RUN, kind, "me", subject, verb.value, 1, data)  # type: ignore[arg-type]
    journal.close()


def finish(home: Path, verb: Verb, subject: str) -> None:
    record(home, "step.started", verb, subject)
    record(home, "step.finished", verb, subject, seconds=0.1, result={"ok": True})


def written(home: Path) -> list[str]:
    return sorted(str(path) for path in (home / "runs").rglob("*") if path.is_file())


def test_before_in_and_after_a_step(home: Path) -> None:
    found = outlook(home, RUN)
    assert (found.state, found.verb, found.subject, found.since) == ("", "precheck", "here", "")
    assert found.sentences()[0] == f"run {RUN} (patch) stands before precheck of here"
    finish(home, Verb.PRECHECK, "here")
    record(home, "step.started", Verb.DRAIN, "web")
    found = outlook(home, RUN)
    assert (found.verb, found.subject) == ("drain", "web")
    assert found.since
    assert f"stands in drain of web, begun {found.since}" in found.sentences()[0]
    error = {"code": "temporary", "subject": "web", "cause": "no", "hint": "", "retryable": True}
    record(home, "step.failed", Verb.DRAIN, "web", error=error, final=False)
    assert outlook(home, RUN).since == ""


def test_looking_leaves_no_trace_where_driving_would(home: Path) -> None:
    """The drain has failed for good: whoever drives records the decision, and ends the run."""
    finish(home, Verb.PRECHECK, "here")
    error = {"code": "permanent", "subject": "web", "cause": "no", "hint": "", "retryable": False}
    record(home, "step.failed", Verb.DRAIN, "web", error=error, final=True)
    ctx = RunContext(home, RUN)
    try:
        before, files = ctx.events(), written(home)
        assert peek(home, RUN) == Due(Verb.RETURN_TO_SERVICE, "web")
        assert (ctx.events(), written(home)) == (before, files)
        assert next_step(ctx) == peek(home, RUN)
        assert len(ctx.events()) == len(before) + 1
        finish(home, Verb.RETURN_TO_SERVICE, "web")
        before = ctx.events()
        assert peek(home, RUN) is None
        assert "has come to its end" in outlook(home, RUN).sentences()[0]
        assert (ctx.events(), written(home)) == (before, files)
    finally:
        ctx.close()


@pytest.mark.parametrize(
    ("state", "commands"), [("", 2), ("partial", 2), ("failed", 1), ("refused", 1), ("done", 0)]
)
def test_way_on_fits_how_it_ended(home: Path, state: str, commands: int) -> None:
    if state:
        journal = Journal(home / "journal.db")
        journal.append(RUN, "run.ended", "me", "here", data={"state": state, "cause": "so"})
        journal.close()
    found = outlook(home, RUN)
    assert found.state == state
    way = found.way_on(Path("/srv/home dir"), Path("/etc/site.yaml"))
    assert (
        way
        == [
            "pitstop reconcile here --site /etc/site.yaml --home '/srv/home dir'",
            f"pitstop resume {RUN} --home '/srv/home dir'",
        ][:commands]
    )


def test_node_says_what_holds_it_or_why_it_does_not(home: Path, tmp_path: Path, plan: Plan) -> None:
    assert outlook(home, RUN).sentences()[1] == "node here: nothing holds it"
    state = tmp_path / "state"
    from pitstop.images.durable import write_json
    from pitstop.node.paths import StateDir
    from pitstop.node.record import Moved, WorkloadState

    files = StateDir.at(str(state))
    WorkloadState(files, "web").hold("r0")
    WorkloadState(files, "web").note_move(Moved("gpu2", "r3", ""))
    write_json(files.quarantine, {"run": "r7", "cause": "burnt", "time": ""})
    found = outlook(home, RUN)
    assert found.holds == (
        "web is held by run r0",
        "web has moved to gpu2 (run r3)",
        "quarantined by run r7: burnt",
    )

    spec = plan.node_spec.model_copy(update={"engine": ("/not/there",)})
    create_run(home, plan.model_copy(update={"node_spec": spec}), "gone", "steps")
    found = outlook(home, "gone")
    assert found.holds == ()
    assert "/not/there" in found.unknown
    assert "does not say what holds it" in found.sentences()[1]


def test_there_is_no_such_run(home: Path) -> None:
    with pytest.raises(BadInput, match="no such run"):
        outlook(home, "r2")
    assert Outlook("r", "t", "n", "done").way_on(home, home) == []
