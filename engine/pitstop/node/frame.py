"""The answer of a node, framed so that noise around it does no harm.

Login shells, module systems and banners print before, after and around what was asked for.
The caller sends a fresh nonce with its request; the answer stands between a head with that
nonce and its exact length, so that no noise can be taken for it.
"""

from __future__ import annotations

import json
from typing import Any


def head(nonce: str, length: int) -> bytes:
    """Return the line that comes before an answer of so many bytes."""
    return f"\n<<pitstop {nonce} {length}>>\n".encode()


def wrap(nonce: str, message: dict[str, Any]) -> bytes:
    """Return a message with its frame."""
    # A file name that is not UTF-8 is half a character in Python: it must not cost the answer.
    body = json.dumps(message, ensure_ascii=False).encode(errors="replace")
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
