"""YAML to models: every fault names file, line and field, and nothing gets by."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from pitstop.model.base import Model
from pitstop.model.errors import BadInput
from pitstop.model.yamltext import MAX_CHARACTERS, MAX_DEPTH, load_model


class Part(Model):
    name: str
    size: int = 0


class Whole(Model):
    title: str
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = Field(default_factory=dict)
    anything: Any = None


def load(text: str, first_line: int = 1) -> Whole:
    return load_model(Whole, text, "f.yaml", first_line)


def fault(text: str, first_line: int = 1) -> BadInput:
    with pytest.raises(BadInput) as caught:
        load(text, first_line)
    assert caught.value.exit_code == 2
    assert caught.value.subject.startswith("f.yaml:")
    return caught.value


def test_good() -> None:
    found = load("title: t\nparts:\n- {name: a, size: 3}\n- name: b\nby_name:\n  x: {name: c}\n")
    assert found.parts == (Part(name="a", size=3), Part(name="b"))
    assert found.by_name["x"].name == "c"


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("title: t\ntitel: x\n", 2, "titel"),
        ("title: t\nwrong:\n  deep:\n  - 1\n", 2, "wrong"),
        ("title: t\nparts:\n- name: a\n  sise: 3\n", 4, "parts.0.sise"),
        ("title: t\nparts:\n- name: a\n-\n  name: b\n  colour: red\n", 6, "parts.1.colour"),
        ("title: t\nby_name:\n  x:\n    name: a\n  y:\n    name: b\n    n: 1\n", 7, "by_name.y.n"),
        ("title: t\nparts: [{name: a}, {name: b, z: 1}]\n", 2, "parts.1.z"),
    ],
)
def test_unknown_keys_are_refused_where_they_are(text: str, line: int, field: str) -> None:
    error = fault(text)
    assert error.subject == f"f.yaml:{line}"
    assert error.cause.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("title: 3\n", 1, "title"),
        ("title: t\nparts: 7\n", 2, "parts"),
        ("title: t\n\n# comment\nparts:\n- name: a\n  size: big\n", 6, "parts.0.size"),
        ("title: t\nparts:\n- name: [a]\n", 3, "parts.0.name"),
        ("title: 2026-01-01\n", 1, "title"),
        ("title: null\n", 1, "title"),
        ("title: yes\n", 1, "title"),
    ],
)
def test_wrong_types_are_refused_where_they_are(text: str, line: int, field: str) -> None:
    error = fault(text)
    assert error.subject == f"f.yaml:{line}"
    assert error.cause.startswith(f"{field}: ")


def test_a_missing_key_points_at_what_it_is_missing_in() -> None:
    error = fault("title: t\nparts:\n- name: a\n- size: 3\n")
    assert error.subject == "f.yaml:4"
    assert error.cause.startswith("parts.1.name: ")


def test_all_faults_are_listed_first_line_first() -> None:
    error = fault("titel: t\nparts:\n- nam: a\n")
    assert error.subject == "f.yaml:1"
    for field in ("title", "titel", "parts.0.name", "parts.0.nam"):
        assert field in f"{error.cause} {error.hint}"


def test_many_faults_are_counted() -> None:
    error = fault("title: t\n" + "".join(f"k{n}: 1\n" for n in range(20)))
    assert error.hint.endswith("(and 14 more)")


def test_lines_count_from_where_the_text_begins() -> None:
    assert fault("title: t\nx: 1\n", first_line=40).subject == "f.yaml:41"
    assert fault("a: [\n", first_line=40).subject == "f.yaml:41"
    assert fault("", first_line=40).subject == "f.yaml:40"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("title: a\ntitle: b\n", 2),
        ("title: a\nparts:\n- name: x\n  name: y\n", 4),
        ("title: a\nanything: {1: x, '1': y}\n", 2),
    ],
)
def test_duplicate_keys(text: str, line: int) -> None:
    error = fault(text)
    assert error.subject == f"f.yaml:{line}"
    assert "twice" in error.cause


def test_an_alias_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for n in range(1, 12):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]")
    error = fault("\n".join(lines))
    assert "aliases included" in error.cause


def test_an_alias_of_itself_is_refused() -> None:
    assert "nested deeper" in fault("title: t\nanything: &a [*a]\n").cause


def test_a_plain_alias_is_fine() -> None:
    found = load("title: &t t\nparts:\n- &p {name: a}\n- *p\nanything: *t\n")
    assert found.parts[0] == found.parts[1]
    assert found.anything == "t"


def test_merge_keys_are_refused() -> None:
    error = fault("title: t\nanything:\n  <<: {a: 1}\n")
    assert error.subject == "f.yaml:3"
    assert "merge" in error.cause


def nested(depth: int) -> str:
    return "title: t\nanything: " + "[" * depth + "]" * depth


def test_nesting() -> None:
    load(nested(MAX_DEPTH - 1))
    assert "nested deeper" in fault(nested(MAX_DEPTH + 1)).cause
    fault(nested(20_000))


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "...\n"])
def test_empty(text: str) -> None:
    fault(text)


@pytest.mark.parametrize("text", ["just text", "- a\n- b\n", "3", "null", "~"])
def test_not_a_mapping(text: str) -> None:
    assert "mapping" in fault(text).cause


def test_two_documents_are_not_one() -> None:
    assert fault("title: t\n---\ntitle: u\n").subject == "f.yaml:2"


def test_huge() -> None:
    assert "longer than" in fault("title: " + "x" * MAX_CHARACTERS).cause


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("title: t\n\tparts: 1\n", 2),
        ("title: t\nparts:\n\t- name: a\n", 3),
        ("title: [a\n", 2),
        ("title: t\nparts: {a: b\n", 3),
        ("title: 'a\n", 2),
        ("title: t\nanything: *nowhere\n", 2),
        ("title: t\n  x: y: z\n", 2),
    ],
)
def test_not_yaml(text: str, line: int) -> None:
    error = fault(text)
    assert error.cause.startswith("not YAML")
    assert error.subject == f"f.yaml:{line}"


@pytest.mark.parametrize("character", ["\0", "\x07", "\x1b", "\ufffe"])
def test_control_characters_are_refused(character: str) -> None:
    assert fault(f"title: a{character}b\n").cause.startswith("not YAML")


@pytest.mark.parametrize(
    "scalar",
    [
        '!!int ""',
        "!!int '-'",
        "!!int x",
        "!!bool maybe",
        "!!float ''",
        "!!timestamp soon",
        "!!binary x",
        "!!python/object/apply:os.system [id]",
        "!!python/name:os.system",
        "!!set {a}",
        "!!omap [a: 1]",
        "!own {a: 1}",
        "!own 3",
        "2026-13-45",
        "9" * 5000,
        ".nan",
        ".inf",
        '"\\ud800"',
    ],
)
def test_a_text_that_its_tag_does_not_fit_is_refused_with_its_line(scalar: str) -> None:
    error = fault(f"title: t\nparts: []\nanything: {scalar}\n")
    assert error.subject == "f.yaml:3"


@pytest.mark.parametrize("key", ["? [a, b]\n  : 1", "? {a: b}\n  : 1"])
def test_a_key_is_plain_text(key: str) -> None:
    assert "plain text" in fault(f"title: t\nanything:\n  {key}\n").cause


def test_half_a_character_in_a_key() -> None:
    assert fault('title: t\nanything: {"\\udfff": 1}\n').subject == "f.yaml:2"


@pytest.mark.parametrize("title", ["Grüße", "日本語", "🛠", "e\u0301", "\u202eabc"])
def test_unicode_comes_through_as_it_is(title: str) -> None:
    assert load(f"title: '{title}'\n").title == title


def test_a_byte_order_mark_is_no_fault() -> None:
    assert load("\ufefftitle: t\n").title == "t"


def test_words_of_yaml_1_1_stay_keys() -> None:
    assert load("title: t\nanything: {on: 1, no: 2, null: 3}\n").anything == {
        "on": 1,
        "no": 2,
        "null": 3,
    }


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain)
def test_plain_data_survives(data: Any) -> None:
    text = yaml.safe_dump({"title": "t", "anything": data})
    assert load(text).anything == data


@given(st.text(st.sampled_from("abt:- \n\t[]{}&*!#?|>'\"%@`,<.0123\0é\ud800\U0001f6e0")))
def test_any_text_is_loaded_or_refused_as_bad_input(text: str) -> None:
    try:
        load(text)
    except BadInput as error:
        assert error.subject.startswith("f.yaml:")
        assert int(error.subject.rpartition(":")[2]) <= text.count("\n") + 2


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_line_of_an_unknown_key_is_its_line(before: int, after: int) -> None:
    text = "title: t\nanything:\n" + "".join(f"- {n}\n" for n in range(before))
    line = text.count("\n") + 1
    text += "wrong: 1\n" + "".join(f"# {n}\n" for n in range(after))
    assert fault(text).subject == f"f.yaml:{line}"
