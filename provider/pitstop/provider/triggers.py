"""The trigger: waits for a node without holding a worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from pitstop.journal.store import Journal
from pitstop.provider.killing import GOES_ON, cancel, is_cancelled
from pitstop.steps.waiting import Waiter

SLICE = 10.0
"""Seconds a single question to the node may take."""


class NodeTrigger(BaseTrigger):
    """Waits until a node's operation or a scheduler's job is over, or a node has rebooted.

    Its keyword arguments are all it knows: a triggerer that dies loses nothing, another one
    starts over. It only asks: nothing on the node is started, and nothing is cancelled when
    the trigger ends, but for `on_kill`.

    :param home: directory of the journal, which names the node.
    :param run_id: the pitstop run.
    :param wait: what for, from `pitstop.fleet.node.Pending`.
    :param deadline: absolute, RFC 3339 with offset.
    :param verb: the step's verb.
    """

    def __init__(
        self, *, home: str, run_id: str, wait: dict[str, Any], deadline: str, verb: str = ""
    ) -> None:
        super().__init__()
        self.home = home
        self.run_id = run_id
        self.wait = wait
        self.deadline = deadline
        self.verb = verb

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments to make it again."""
        return (
            "pitstop.provider.triggers.NodeTrigger",
            {
                "home": self.home,
                "run_id": self.run_id,
                "wait": self.wait,
                "deadline": self.deadline,
                "verb": self.verb,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask until it is over; the event says whether it is, or time ran out."""
        deadline = datetime.fromisoformat(self.deadline)
        waiter = await asyncio.to_thread(self._waiter)
        try:
            while not await asyncio.to_thread(waiter.poll, self.wait, SLICE):
                if datetime.now(UTC) > deadline:
                    yield TriggerEvent({"over": False})
                    return
                # A node that is booting answers nothing; it is asked again.
                await asyncio.sleep(waiter.pause(self.wait))
        finally:
            await asyncio.to_thread(waiter.close)
        yield TriggerEvent({"over": True})

    async def on_kill(self) -> None:
        """Cancel the node's work where that is safe, and let the rest go on.

        Airflow 3.3 and later call it when a person marks or clears the deferred task. Before
        that nobody does: the work goes on, and the engine's fence holds off whatever comes.
        """
        if not is_cancelled(self.verb) or "id" not in self.wait:
            self.log.info("%s: %s", self.verb, GOES_ON)
            return
        self.log.info("killed: %s", await asyncio.to_thread(self._cancel))

    def _cancel(self) -> str:
        waiter = self._waiter()
        try:
            return cancel(waiter.node, str(self.wait["id"]))
        finally:
            waiter.close()

    def _waiter(self) -> Waiter:
        journal = Journal(Path(self.home) / "journal.db")
        try:
            plan = journal.plan(self.run_id)
        finally:
            journal.close()
        return Waiter(plan, self.run_id, "airflow triggerer")
