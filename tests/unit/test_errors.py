"""The exception tree: what its picture says is what it is, and it crosses as JSON."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.model import errors
from pitstop.model.errors import PermanentError, PitstopError, TemporaryError, Unexpected

CLASSES = [
    kind
    for _name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PitstopError)
]
RAISED = [kind for kind in CLASSES if kind is not PitstopError]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def drawn_parents() -> dict[str, str]:
    """Read the tree in the module's docstring as child to parent."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?:\s{2,}.*)?$", line)
        if not found or (not found.group(1) and found.group(2) != "PitstopError"):
            continue
        depth = len(found.group(1)) // 4
        path[depth:] = [found.group(2)]
        if depth:
            parents[found.group(2)] = path[depth - 1]
    return parents


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in RAISED}
    assert drawn_parents() == real


def test_exit_codes_in_the_docstring_are_the_exit_codes() -> None:
    drawn = dict(re.findall(r"(\w+) +exit (\d)", errors.__doc__ or ""))
    assert drawn == {"BadInput": "2", "Refused": "3", "TemporaryError": "1", "PermanentError": "1"}
    for name, code in drawn.items():
        assert getattr(errors, name).exit_code == int(code)


def test_codes_are_unique_and_registered() -> None:
    codes = [kind.code for kind in CLASSES]
    assert len(codes) == len(set(codes))
    assert {kind.code: kind for kind in RAISED} == {
        code: kind
        for code, kind in PitstopError.registry.items()
        if kind.__module__ == errors.__name__
    }


@pytest.mark.parametrize("kind", RAISED)
def test_only_temporary_errors_are_retryable(kind: type[PitstopError]) -> None:
    assert kind.retryable is issubclass(kind, TemporaryError)
    assert kind.exit_code in (1, 2, 3)
    if issubclass(kind, TemporaryError | PermanentError):
        assert kind.exit_code == 1


@given(st.sampled_from(RAISED), text, text, text)
def test_errors_survive_json(kind: type[PitstopError], subject: str, cause: str, hint: str) -> None:
    error = kind(subject, cause, hint)
    back = PitstopError.from_json(json.loads(json.dumps(error.to_json())))
    assert type(back) is kind
    assert (back.subject, back.cause, back.hint) == (subject, cause, hint)
    assert str(back) == str(error)
    assert back.to_json() == error.to_json()


@pytest.mark.parametrize("kind", RAISED)
def test_errors_survive_pickling(kind: type[PitstopError]) -> None:
    """Workflow systems pass exceptions between processes."""
    back = pickle.loads(pickle.dumps(kind("s", "c", "h")))  # noqa: S301  # made here
    assert type(back) is kind
    assert str(back) == "s: c (h)"


@pytest.mark.parametrize(
    "data", [{"code": "of_a_newer_node", "subject": "s", "cause": "c"}, {}, {"code": None}]
)
def test_an_unknown_code_is_unexpected_and_not_retryable(data: dict[str, str]) -> None:
    error = PitstopError.from_json(data)
    assert type(error) is Unexpected
    assert error.retryable is False


def test_retryable_of_a_message_is_not_believed() -> None:
    """What may be tried again follows from the class on this side."""
    assert PitstopError.from_json({"code": "refused", "retryable": True}).retryable is False
    assert PitstopError.from_json({"code": "busy", "retryable": False}).retryable is True


@pytest.mark.parametrize("code", ["refused", "bad_input", "not_drained"])
def test_a_refusal_is_never_tried_again(code: str) -> None:
    data = {"code": code, "failure": "cuda-busy", "retryable": True}
    assert PitstopError.from_json(data).retryable is False


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("kind", [errors.CheckpointFailed, errors.PortTaken])
def test_a_known_failure_decides_over_the_class(kind: type[PitstopError], retryable: bool) -> None:
    error = kind("s", "c").judged("port-taken", retryable)
    for back in (error, PitstopError.from_json(error.to_json()), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert (back.failure, back.retryable) == ("port-taken", retryable)
    assert kind("s", "c").judged("", None).retryable is kind.retryable
    assert kind.retryable is issubclass(kind, TemporaryError)


def test_words() -> None:
    assert str(errors.Busy("s", "c")) == "s: c"
    assert str(errors.Busy("s", "c", "h")) == "s: c (h)"
