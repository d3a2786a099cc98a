"""Where a step stands, as the journal tells it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.attempts import PATH_BACK, Standing, is_final, standing
from pitstop.journal.chain import link
from pitstop.model.errors import ConnectionLost, NodeUnreachable, PitstopError
from pitstop.model.event import Event
from pitstop.model.words import Verb

CODES = sorted(PitstopError.registry)
LOST = {ConnectionLost.code, NodeUnreachable.code}


class Log:
    """Writes events the way a run does."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(
        self, kind: str, verb: str = "", subject: str = "web", attempt: int = 0, **data: Any
    ) -> Log:
        fields = {
            "run": "r1",
            "time": "2026-11-30T00:00:00.000000+00:00",
            "kind": kind,
            "actor": "me@here",
            "subject": subject,
            "verb": verb,
            "attempt": attempt,
            "data": data,
        }
        self.events.append(link(fields, self.events[-1] if self.events else None))
        return self

    def finished(self, verb: str, subject: str = "web", **result: Any) -> Log:
        return self.add("step.finished", verb, subject, 1, result=result)

    def failed(self, verb: str, code: str, final: bool, subject: str = "web") -> Log:
        return self.add("step.failed", verb, subject, 1, error={"code": code}, final=final)

    def recovered(self) -> Log:
        return self.add("run.resumed", subject="n1", recover=True)

    def of(self, verb: Verb, subject: str = "web") -> Standing:
        return standing(self.events, verb, subject)


def test_a_step_that_was_never_asked_for() -> None:
    assert Log().of(Verb.DRAIN) == Standing(None, None, 0, 0, 1)
    begun = Log().add("step.started", "drain", attempt=1)
    assert begun.of(Verb.DRAIN) == Standing(None, None, 0, 0, 1)


def test_finished_and_failed() -> None:
    log = Log().failed("drain", "deadline", False)
    assert log.of(Verb.DRAIN) == Standing(None, None, 1, 1, 2)
    assert log.finished("drain", waited=1).of(Verb.DRAIN) == Standing({"waited": 1}, None, 1, 1, 2)
    log = Log().failed("stop", "busy", False).failed("stop", "busy", True)
    assert log.of(Verb.STOP) == Standing(None, {"code": "busy"}, 2, 2, 3)


def test_other_steps_do_not_matter() -> None:
    log = Log().finished("drain", "chat").finished("stop", "web").failed("drain", "busy", True, "x")
    assert log.of(Verb.DRAIN) == Standing()


@pytest.mark.parametrize("code", CODES)
def test_work_that_contact_was_lost_to_is_asked_for_again_and_not_begun_anew(code: str) -> None:
    """The node knows work by its attempt: another number would be the same work once more."""
    log = Log().failed("checkpoint", code, False)
    assert log.of(Verb.CHECKPOINT).attempt == (1 if code in LOST else 2)
    # It counts as a failure all the same, or asking would never end.
    assert log.of(Verb.CHECKPOINT).recent_failures == 1
    log.failed("checkpoint", "busy", False).failed("checkpoint", code, False)
    assert log.of(Verb.CHECKPOINT).attempt == (2 if code in LOST else 4)


@pytest.mark.parametrize("verb", list(Verb))
def test_recovery_tries_the_path_back_anew_and_nothing_before_it(verb: Verb) -> None:
    failed = Log().failed(verb, "busy", False).failed(verb, "not_ready", True).recovered().of(verb)
    finished = Log().finished(verb, ok=1).recovered().of(verb)
    if verb in PATH_BACK:
        assert failed == Standing(None, None, 2, 0, 3)
    else:
        assert failed == Standing(None, {"code": "not_ready"}, 2, 2, 3)
    # What is to be looked at again after a repair; what was done is done.
    again = verb in (Verb.VALIDATE, Verb.GATE)
    assert finished.result == (None if again else {"ok": 1})


def test_resuming_alone_is_no_recovery() -> None:
    log = Log().failed("restore", "restore_failed", True)
    log.add("run.resumed", subject="n1", recover=False)
    assert log.of(Verb.RESTORE).failure == {"code": "restore_failed"}


@pytest.mark.parametrize(
    ("retryable", "failures", "retries", "final"),
    [
        (False, 1, 5, True),
        (True, 1, 0, True),
        (True, 1, 1, False),
        (True, 2, 1, True),
        (True, 3, 3, False),
        (True, 4, 3, True),
    ],
)
def test_is_final(retryable: bool, failures: int, retries: int, final: bool) -> None:
    assert is_final(retryable, failures, retries) is final


happening = st.tuples(
    st.sampled_from(["finish", "fail", "fail for good", "recover", "resume"]),
    st.sampled_from(list(Verb)),
    st.sampled_from(["web", "chat"]),
    st.sampled_from(CODES),
)


@given(st.lists(happening, max_size=30))
def test_any_history_that_steps_can_write(history: list[tuple[str, Verb, str, str]]) -> None:
    """A step is only executed while it has neither result nor failure."""
    log = Log()
    used: dict[tuple[Verb, str], list[int]] = {}
    for what, verb, subject, code in history:
        before = log.of(verb, subject)
        if what == "recover":
            log.recovered()
        elif what == "resume":
            log.add("run.resumed", subject="n1", recover=False)
        elif before.result is None and before.failure is None:
            used.setdefault((verb, subject), []).append(before.attempt)
            if what == "finish":
                log.finished(verb, subject, code=code)
                assert log.of(verb, subject).result == {"code": code}
            else:
                log.failed(verb, code, what == "fail for good", subject)
                after = log.of(verb, subject)
                assert (after.failure is not None) is (what == "fail for good")
                assert after.failures == before.failures + 1
                assert after.recent_failures == before.recent_failures + 1
                assert after.attempt == before.attempt + (code not in LOST)
    for verb in Verb:
        for subject in ("web", "chat"):
            found = log.of(verb, subject)
            assert found.result is None or found.failure is None
            assert 0 <= found.recent_failures <= found.failures
            assert 1 <= found.attempt <= found.failures + 1
            numbers = used.get((verb, subject), [])
            assert numbers == sorted(numbers)
            # Only its own events and recoveries tell.
            own = [
                e
                for e in log.events
                if (e.verb, e.subject) == (verb, subject) or e.kind == "run.resumed"
            ]
            assert standing(own, verb, subject) == found
