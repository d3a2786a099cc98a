"""The frame around a node's answer, in the noise of a login."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.node.frame import head, unwrap, wrap

quick = settings(deadline=None, max_examples=200)
NONCE = "5f2c9a"

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.dictionaries(
    plain_text,
    st.recursive(
        st.none() | st.booleans() | st.integers() | plain_text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
noise = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=30).map(lambda text: text.encode(errors="replace")),
    st.sampled_from(
        [
            head("other", 2) + b"{}\n",
            head("other", 999),
            b"\n<<pitstop ",
            b">>\n",
            b"<<pitstop 5f2c9a>>\n",
            f"+ pitstop-node rpc --nonce {NONCE}\n".encode(),
            b"Last login: Mon\r\n",
            "é".encode()[:1],
        ]
    ),
)


@quick
@given(noise, messages, noise)
def test_a_message_is_found_in_noise(before: bytes, message: dict[str, Any], after: bytes) -> None:
    assert unwrap(NONCE, before + wrap(NONCE, message) + after) == message


@quick
@given(st.lists(noise, max_size=4))
def test_noise_alone_is_no_message(parts: list[bytes]) -> None:
    assert unwrap(NONCE, b"".join(parts)) is None


@quick
@given(messages, st.data())
def test_a_truncated_message_is_no_message(message: dict[str, Any], data: st.DataObject) -> None:
    whole = wrap(NONCE, message)
    # The last newline is not part of the message.
    cut = data.draw(st.integers(0, len(whole) - 2))
    assert unwrap(NONCE, whole[:cut]) is None


@quick
@given(messages)
def test_another_request_does_not_get_this_answer(message: dict[str, Any]) -> None:
    assert unwrap("000000", wrap(NONCE, message)) is None
    assert unwrap(NONCE[:-1], wrap(NONCE, message)) is None
    assert unwrap(NONCE + "0", wrap(NONCE, message)) is None


@quick
@given(messages, messages)
def test_a_message_may_hold_a_frame(inner: dict[str, Any], outer: dict[str, Any]) -> None:
    """An answer that quotes output with the very nonce in it is not cut apart by it."""
    message = {**outer, "log": wrap(NONCE, inner).decode()}
    assert unwrap(NONCE, wrap(NONCE, message)) == message


def test_length_counts_bytes_not_characters() -> None:
    message = {"text": "Grüße 日本語 🛠"}
    framed = wrap(NONCE, message)
    body = json.dumps(message, ensure_ascii=False).encode()
    assert head(NONCE, len(body)) in framed
    assert unwrap(NONCE, framed + "noise ü".encode()) == message


def test_split_within_a_character_is_no_message() -> None:
    framed = wrap(NONCE, {"t": "ü"})
    at = framed.index("ü".encode())
    assert unwrap(NONCE, framed[: at + 1]) is None


def test_half_a_character_does_not_cost_the_answer() -> None:
    """Names of files that are not UTF-8 reach Python as lone surrogates."""
    name = b"caf\xe9".decode(errors="surrogateescape")
    assert unwrap(NONCE, wrap(NONCE, {"file": name, "n": 1})) == {"file": "caf?", "n": 1}


def test_the_last_of_several_answers_counts() -> None:
    output = wrap(NONCE, {"n": 1}) + b"noise" + wrap(NONCE, {"n": 2})
    assert unwrap(NONCE, output) == {"n": 2}


@pytest.mark.parametrize(
    "output",
    [
        head(NONCE, 3) + b"[1]\n",
        head(NONCE, 4) + b"null\n",
        head(NONCE, 2) + b"{]\n",
        head(NONCE, 0) + b"\n",
        head(NONCE, 9) + b"{}\n",
        head(NONCE, 4) + b'{"\xff\n',
        f"\n<<pitstop {NONCE} -2>>\n{{}}\n".encode(),
        f"\n<<pitstop {NONCE} 0x2>>\n{{}}\n".encode(),
        f"\n<<pitstop {NONCE} >>\n{{}}\n".encode(),
        f"\n<<pitstop {NONCE} 2>> {{}}\n".encode(),
        f"\n<<pitstop {NONCE} {'9' * 5000}>>\n{{}}\n".encode(),
        b"",
    ],
)
def test_what_is_not_an_answer_is_none(output: bytes) -> None:
    assert unwrap(NONCE, output) is None


def test_output_written_into_the_middle_makes_it_none() -> None:
    framed = wrap(NONCE, {"a": 1, "b": 2})
    at = framed.index(b'"b"')
    assert unwrap(NONCE, framed[:at] + b"warning: x" + framed[at:]) is None
