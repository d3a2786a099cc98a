"""The answer of a node, framed so that noise around it does no harm.

Login shells, module systems and banners print before, after and around what was asked for.
The caller sends a fresh nonce with its request; the answer stands between a head with that
nonce and its exact length, so that no noise can be taken for it. In a session the request
has such a frame as well, which says its nonce and where it ends.
"""

from __future__ import annotations

import json
import re
from typing import Any

_LONGEST_HEAD = 256
"""Bytes: what is kept of noise, since a head may have begun in it."""


def head(nonce: str, length: int) -> bytes:
    """Return the line that comes before an answer of so many bytes."""
    return f"\n<<pitstop {nonce} {length}>>\n".encode()


def wrap(nonce: str, message: dict[str, Any]) -> bytes:
    """Return a message with its frame."""
    # A file name that is not UTF-8 is half a character in Python: it must not cost the answer.
    return frame(nonce, json.dumps(message, ensure_ascii=False).encode(errors="replace"))


def frame(nonce: str, body: bytes) -> bytes:
    """Return what is JSON already, with its frame."""
    return head(nonce, len(body)) + body + b"\n"


def unwrap(nonce: str, output: bytes) -> dict[str, Any] | None:
    """Find the answer in all that was printed; None when it is not there, or not whole."""
    prefix = f"\n<<pitstop {nonce} ".encode()
    # Output may begin with the frame; the newline before it belongs to the frame itself.
    at = output.rfind(prefix)
    if at < 0:
        return None
    start = at + len(prefix)
    end = output.find(b">>\n", start)
    if end < 0 or not output[start:end].isdigit():
        return None
    try:
        length = int(output[start:end])
        body = output[end + 3 : end + 3 + length]
        message = json.loads(body)
    except ValueError:  # somebody else wrote into the middle of it
        return None
    return message if len(body) == length and isinstance(message, dict) else None


class Framed:
    """Looks for one message in a stream that comes part by part.

    Args:
        nonce: that it must have; None takes any, which is then in `nonce`.
        limit: of its length in bytes. A longer one is read as broken, without keeping it.
    """

    def __init__(self, nonce: str | None, limit: int) -> None:
        self.nonce = nonce or ""
        wanted = rb"[0-9a-zA-Z]{1,64}" if nonce is None else re.escape(nonce.encode())
        self._head = re.compile(rb"\n<<pitstop (" + wanted + rb") ([0-9]{1,18})>>\n")
        self._limit = limit
        self._kept = bytearray()
        self._length: int | None = None

    def feed(self, part: bytes) -> bool:
        """Take the next part of the stream; True when nothing more has to come."""
        self._kept += part
        if self._length is None:
            head = self._head.search(self._kept)
            if head is None:
                del self._kept[:-_LONGEST_HEAD]
                return False
            self.nonce, self._length = head[1].decode(), int(head[2])
            del self._kept[: head.end()]
        # With the newline behind it, which no later message may find before it.
        return len(self._kept) > self._length or self._length > self._limit

    def message(self) -> dict[str, Any] | None:
        """What was found; None when there is nothing, or somebody wrote into the middle."""
        if self._length is None or self._length > min(self._limit, len(self._kept)):
            return None
        try:
            message = json.loads(self._kept[: self._length])
        except ValueError:
            return None
        return message if isinstance(message, dict) else None
