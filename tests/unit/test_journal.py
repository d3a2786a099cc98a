"""The journal: append-only, one gapless chain per run, whoever writes and whoever dies."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.journal.chain import START, faults, link
from pitstop.journal.store import Journal
from pitstop.model.errors import BadInput
from pitstop.model.event import Event
from pitstop.model.plan import Plan, RunbookRef
from pitstop.model.site import Node, SitePolicy

PLAN = Plan(
    site="lab",
    policy=SitePolicy(),
    title="节点 ✓",
    reason="",
    node="n1",
    node_spec=Node(),
    boot_id="b",
    runbook=RunbookRef(
        name="r", title="r", digest="", source="", risk="low", variables={}, changes={}, steps=()
    ),
    workloads=(),
    go=True,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal with one run, `r1`."""
    made = Journal(tmp_path / "state" / "journal.db")
    made.create_run("r1", PLAN)
    yield made
    made.close()


def note(journal: Journal, number: int = 0, run: str = "r1", **data: Any) -> Event:
    return journal.append(run, "note", "me@here", "n1", data={"number": number, **data})


def raw(journal: Journal) -> sqlite3.Connection:
    return sqlite3.connect(path_of(journal), isolation_level=None)


def path_of(journal: Journal) -> Path:
    return Path(str(journal._engine.url.database))


# --- append-only ---


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = '{}'",
        "UPDATE events SET seq = seq + 10",
        "DELETE FROM events",
        "DELETE FROM events WHERE seq = 2",
        "UPDATE runs SET plan = '{}'",
        "DELETE FROM runs",
        "INSERT OR REPLACE INTO events (run, seq, body) VALUES ('r1', 1, '{}')",
        "REPLACE INTO runs (run, created, plan) VALUES ('r1', '', '{}')",
        "INSERT INTO events (run, seq, body) VALUES ('r1', 1, '{}') "
        "ON CONFLICT DO UPDATE SET body = excluded.body",
    ],
)
def test_the_database_itself_refuses_to_change_what_was_written(
    journal: Journal, statement: str
) -> None:
    for number in range(3):
        note(journal, number)
    before = journal.events("r1")
    connection = raw(journal)
    try:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    finally:
        connection.close()
    assert journal.events("r1") == before
    assert journal.plan("r1") == PLAN


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    """In a directory that was there before, too, and with all the files SQLite makes."""
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        journal = Journal(tmp_path / "journal.db")
        journal.create_run("r1", PLAN)
        note(journal)
        files = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        journal.close()
    finally:
        os.umask(before)
    assert "journal.db-wal" in files
    assert files == dict.fromkeys(files, 0o600)


def test_events_are_there_for_the_next_process(journal: Journal) -> None:
    written = [note(journal, number) for number in range(3)]
    again = Journal(path_of(journal))
    assert again.events("r1") == written
    assert again.plan("r1") == PLAN
    assert [run for run, _ in again.runs()] == ["r1"]
    again.close()


@pytest.mark.parametrize("case", ["text", "directory", "below a file"])
def test_something_else_at_its_place_is_bad_input_and_left_alone(tmp_path: Path, case: str) -> None:
    path = tmp_path / "journal.db"
    if case == "text":
        path.write_text("not a database, and not a short text either\n" * 40)
    elif case == "directory":
        path.mkdir()
    else:
        path.touch()
        path = path / "journal.db"
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(BadInput) as caught:
        Journal(path)
    assert caught.value.subject == str(path)
    if case == "text":
        assert path.read_bytes() == before


# --- runs ---


def test_run_id_is_used_once(journal: Journal) -> None:
    with pytest.raises(BadInput, match="exists"):
        journal.create_run("r1", PLAN.model_copy(update={"title": "another"}))
    assert journal.plan("r1") == PLAN


@pytest.mark.parametrize("run", ["", "../r", "a b", "a/b", ".hidden", "r\n", "r" * 64, "é"])
def test_run_id_that_is_no_name_is_refused_and_nothing_recorded(journal: Journal, run: str) -> None:
    """An id becomes a directory and part of operation ids, and nothing can be taken back."""
    with pytest.raises(BadInput):
        journal.create_run(run, PLAN)
    assert [found for found, _ in journal.runs()] == ["r1"]


def test_unknown_run_is_bad_input(journal: Journal) -> None:
    with pytest.raises(BadInput, match="no such run") as caught:
        journal.plan("r2")
    assert caught.value.exit_code == 2
    assert journal.events("r2") == []
    with pytest.raises(BadInput, match="no such run"):
        note(journal, run="r2")
    assert journal.events("r2") == []


def test_runs_have_chains_of_their_own(journal: Journal) -> None:
    journal.create_run("r2", PLAN)
    for number in range(3):
        note(journal, number, "r1")
        note(journal, number, "r2")
    for run in ("r1", "r2"):
        events = journal.events(run)
        assert [event.seq for event in events] == [1, 2, 3]
        assert faults(events) == []


# --- content ---

plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """A journal for many examples, each in a run of its own."""
    made = Journal(tmp_path_factory.mktemp("journal") / "journal.db")
    yield made
    made.close()


@settings(max_examples=25)
@given(data=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), plain_json))
def test_any_data_comes_back_as_it_was_and_its_chain_holds(
    shared: Journal, data: dict[str, Any]
) -> None:
    run = f"data-{len(shared.runs())}"
    shared.create_run(run, PLAN)
    written = [shared.append(run, "note", "me", "n1", data=data) for _ in range(2)]
    assert written[0].data == data
    found = shared.events(run)
    assert found == written
    assert faults(found) == []


@pytest.mark.parametrize(
    "text",
    ["nul\0 esc\x1b", "节点完成 ✓ 🦄", "é e\u0301", "\u2028\u202e", "'; DROP TABLE events --"],
)
def test_odd_text_is_kept(journal: Journal, text: str) -> None:
    event = journal.append("r1", "note", text, text, data={text: text})
    [found] = journal.events("r1")
    assert found == event
    assert (found.actor, found.subject, found.data) == (text, text, {text: text})
    assert faults([found]) == []


def test_half_a_character_is_replaced_and_costs_no_event(journal: Journal) -> None:
    """A file name that is not UTF-8 is half a character in Python."""
    event = journal.append("r1", "note", "me", "a\udca6b", data={"path\ud800": ["\udca6"]})
    assert (event.subject, event.data) == ("a?b", {"path?": ["?"]})
    found = journal.events("r1")
    assert found == [event]
    assert faults(found) == []


def test_huge_data_is_kept(journal: Journal) -> None:
    text = "x" * (8 << 20)
    note(journal, text=text)
    note(journal)
    events = journal.events("r1")
    assert events[0].data["text"] == text
    assert faults(events) == []


# --- the chain ---


def chain(length: int) -> list[Event]:
    events: list[Event] = []
    for number in range(length):
        fields = {
            "run": "r1",
            "time": f"2026-11-30T00:00:{number:02}.000000+00:00",
            "kind": "step.finished",
            "actor": "me@here",
            "subject": "n1",
            "verb": "drain",
            "attempt": number,
            "data": {"number": number, "flag": True, "text": "a"},
        }
        events.append(link(fields, events[-1] if events else None))
    return events


CHAIN = chain(6)


def test_chain_begins_with_nothing_and_has_no_fault() -> None:
    assert CHAIN[0].prev == START
    assert faults(CHAIN) == []
    assert faults([]) == []


@given(
    at=st.integers(0, 5),
    change=st.one_of(
        *(
            st.tuples(st.just(field), st.text("abcdef0123456789", min_size=1, max_size=64))
            for field in ("time", "actor", "subject", "verb", "prev", "hash", "run")
        ),
        st.tuples(st.just("seq"), st.integers(1, 20)),
        st.tuples(st.just("attempt"), st.integers(0, 20)),
        st.tuples(st.just("kind"), st.sampled_from(["note", "decision", "run.ended"])),
        st.tuples(
            st.just("data"),
            st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3),
        ),
        st.tuples(
            st.just("data"),
            st.sampled_from(
                [
                    {"number": 0.0, "flag": True, "text": "a"},
                    {"number": False, "flag": True, "text": "a"},
                    {"number": 0, "flag": 1, "text": "a"},
                    {"number": 0, "flag": True, "text": "a "},
                    {"number": 0, "flag": True, "text": None},
                ]
            ),
        ),
    ),
)
def test_every_change_of_a_single_field_is_found(at: int, change: tuple[str, Any]) -> None:
    before = CHAIN[at]
    changed = Event.model_validate({**before.model_dump(by_alias=True), change[0]: change[1]})
    same = json.dumps(changed.model_dump(mode="json")) == json.dumps(before.model_dump(mode="json"))
    events = [*CHAIN[:at], changed, *CHAIN[at + 1 :]]
    assert bool(faults(events)) is not same


@given(order=st.lists(st.integers(0, 5), max_size=9))
def test_only_a_beginning_of_the_chain_is_without_fault(order: list[int]) -> None:
    """Dropped, doubled and reordered events are found; a cut end cannot be, in itself."""
    events = [CHAIN[number] for number in order]
    assert (faults(events) == []) is (order == list(range(len(order))))


def test_event_of_another_run_is_found() -> None:
    other = link({**CHAIN[1].model_dump(exclude={"schema_"}), "run": "r2"}, CHAIN[0])
    assert faults([CHAIN[0], other]) == ["event 2 is of run r2"]


# --- several at once ---


def test_threads_and_views_keep_one_chain(journal: Journal) -> None:
    other = Journal(path_of(journal))

    def write(through: Journal) -> None:
        for number in range(25):
            note(through, number)

    threads = [threading.Thread(target=write, args=(j,)) for j in (journal, journal, other, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    events = journal.events("r1")
    assert [event.seq for event in events] == list(range(1, 101))
    assert faults(events) == []


WRITER = """
import sys
from pathlib import Path
from pitstop.journal.store import Journal

path, count = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
journal = Journal(path)
for number in range(count):
    journal.append("r1", "note", sys.argv[3], "n1", data={"number": number})
    if number == 5:
        print("under way", flush=True)
"""


def writer(path: Path, count: int, actor: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(count), actor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_keep_one_chain_and_a_killed_one_leaves_it_whole(journal: Journal) -> None:
    """Three write at once; one of them for ever, until it is killed in the middle."""
    path = path_of(journal)
    writers = [writer(path, 20, "a"), writer(path, 20, "b"), writer(path, 10**9, "c")]
    try:
        assert [said(process) for process in writers] == ["ready"] * 3
        for process in writers:
            let_go(process)
        assert said(writers[2]) == "under way"
        writers[2].send_signal(signal.SIGKILL)
        assert [process.wait(60) for process in writers] == [0, 0, -signal.SIGKILL]
    finally:
        for process in writers:
            process.kill()
            process.communicate()
    last = note(journal)
    events = journal.events("r1")
    assert [event.seq for event in events] == list(range(1, last.seq + 1))
    assert faults(events) == []
    for actor in ("a", "b"):
        numbers = [event.data["number"] for event in events if event.actor == actor]
        assert numbers == list(range(20))
    assert len([event for event in events if event.actor == "c"]) >= 6


def test_several_may_make_the_same_new_journal(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)
    failed: list[BaseException] = []

    def make(number: int) -> None:
        try:
            barrier.wait()
            journal = Journal(tmp_path / "journal.db")
            journal.create_run(f"r{number}", PLAN)
            journal.close()
        except BaseException as error:  # noqa: BLE001  # shown by the test
            failed.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    journal = Journal(tmp_path / "journal.db")
    assert sorted(run for run, _ in journal.runs()) == [f"r{number}" for number in range(6)]
    journal.close()
