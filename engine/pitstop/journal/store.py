"""The journal in a database: append-only, one hash chain per run."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from pitstop.journal.chain import link
from pitstop.model.errors import BadInput
from pitstop.model.event import Event, Kind
from pitstop.model.plain import is_name
from pitstop.model.plan import Plan

TIMEOUT = 60.0
"""Seconds that others may keep the database locked."""

AGAIN = 0.02
"""Seconds until a lock is asked for again that SQLite does not wait for."""

_metadata = sa.MetaData()

_runs = sa.Table(
    "runs",
    _metadata,
    sa.Column("run", sa.String(200), primary_key=True),
    sa.Column("created", sa.String(40), nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
)

_events = sa.Table(
    "events",
    _metadata,
    sa.Column("run", sa.ForeignKey("runs.run"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)


class Journal:
    """The record of all runs of a controller. Safe to use from several threads and processes.

    SQLite runs in WAL mode with full synchronisation: an event that was appended is there
    after a power cut. Triggers refuse to change, delete or replace what was written.
    """

    def __init__(self, path: Path) -> None:
        """Open a journal, or begin one.

        Raises:
            BadInput: there is something else at that place, or it cannot be written.
        """
        self._engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": TIMEOUT})
        self._lock = threading.Lock()
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", _begin_immediate)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Before SQLite makes it: the files beside it get the mode that this one has.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            self._lay_out()
        except OSError as error:
            raise BadInput(str(path), f"no journal can be kept here: {error.strerror}") from error
        except sa.exc.DatabaseError as error:
            self.close()
            raise BadInput(str(path), f"no journal can be kept here: {error.orig}") from error

    def _lay_out(self) -> None:
        _metadata.create_all(self._engine)
        with self._engine.begin() as connection:
            for table in ("runs", "events"):
                for verb in ("UPDATE", "DELETE"):
                    connection.execute(sa.text(_refuse(table, verb)))
            connection.execute(sa.text(_refuse_again("runs", "run = NEW.run")))
            connection.execute(sa.text(_refuse_again("events", "run = NEW.run AND seq = NEW.seq")))

    def close(self) -> None:
        """Give the database back."""
        self._engine.dispose()

    def create_run(self, run: str, plan: Plan) -> None:
        """Record a new run with its plan.

        Raises:
            BadInput: a run of this id exists, or it cannot be an id.
        """
        if not is_name(run):
            raise BadInput(
                repr(run),
                "cannot be the id of a run",
                "up to 63 of letters, digits, '.', '_', '-', the first a letter or digit",
            )
        with self._engine.begin() as connection:
            if connection.scalar(sa.select(_runs.c.run).where(_runs.c.run == run)):
                raise BadInput(run, "a run of this id exists")
            connection.execute(
                _runs.insert().values(
                    run=run, created=_now(), plan=plan.model_dump_json(by_alias=True)
                )
            )

    def plan(self, run: str) -> Plan:
        """Return the plan of a run.

        Raises:
            BadInput: there is no such run.
        """
        with self._engine.connect() as connection:
            text = connection.scalar(sa.select(_runs.c.plan).where(_runs.c.run == run))
        if text is None:
            raise BadInput(run, "there is no such run", "pitstop runs lists them")
        return Plan.model_validate_json(text)

    def runs(self) -> list[tuple[str, str]]:
        """Return id and creation time of all runs, oldest first."""
        with self._engine.connect() as connection:
            rows = connection.execute(
                sa.select(_runs.c.run, _runs.c.created).order_by(_runs.c.created, _runs.c.run)
            )
            return [(str(run), str(created)) for run, created in rows]

    def append(
        self,
        run: str,
        kind: Kind,
        actor: str,
        subject: str,
        verb: str = "",
        attempt: int = 0,
        data: dict[str, Any] | None = None,
    ) -> Event:
        """Append an event and return it, chained. It is durable on return.

        Raises:
            BadInput: there is no such run.
        """
        fields = {
            "run": run,
            "time": _now(),
            "kind": kind,
            "actor": actor,
            "subject": subject,
            "verb": verb,
            "attempt": attempt,
            "data": data or {},
        }
        # Through JSON once, so that what is hashed is what is stored. A name that is not UTF-8
        # is half a character in Python: it must not cost the event.
        plain = json.dumps(fields, ensure_ascii=False).encode(errors="replace")
        with self._lock, self._engine.begin() as connection:
            if connection.scalar(sa.select(_runs.c.run).where(_runs.c.run == run)) is None:
                raise BadInput(run, "there is no such run", "pitstop runs lists them")
            event = link(json.loads(plain), self._last(connection, run))
            connection.execute(
                _events.insert().values(
                    run=run, seq=event.seq, body=event.model_dump_json(by_alias=True)
                )
            )
        return event

    def events(self, run: str, after: int = 0) -> list[Event]:
        """Return the events of a run in order: all, or those after a sequence number."""
        with self._engine.connect() as connection:
            rows = connection.scalars(
                sa.select(_events.c.body)
                .where(_events.c.run == run, _events.c.seq > after)
                .order_by(_events.c.seq)
            )
            return [Event.model_validate_json(body) for body in rows]

    def _last(self, connection: sa.Connection, run: str) -> Event | None:
        body = connection.scalar(
            sa.select(_events.c.body)
            .where(_events.c.run == run)
            .order_by(_events.c.seq.desc())
            .limit(1)
        )
        return Event.model_validate_json(body) if body is not None else None


def _configure(connection: Any, _record: Any) -> None:
    # SQLAlchemy, not the driver, says where transactions begin (see _begin_immediate).
    connection.isolation_level = None
    cursor = connection.cursor()
    _enter_wal_mode(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    # The write lock is taken before the chain's head is read, or two writers could both
    # chain on the same event.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _refuse(table: str, verb: str) -> str:
    return (
        f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
    )


def _refuse_again(table: str, same: str) -> str:
    # INSERT OR REPLACE deletes without asking the trigger for that.
    return (
        f"CREATE TRIGGER IF NOT EXISTS {table}_no_replace BEFORE INSERT ON {table} "  # noqa: S608
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) "
        "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _enter_wal_mode(cursor: Any) -> None:
    """Switch a new database over; it stays so.

    Where several do that at once SQLite says "locked" at once, whatever its timeout is.
    """
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(AGAIN)
        else:
            return
