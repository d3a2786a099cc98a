"""The engine of a node, asked over one session; if it is too old for that, by a process each."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pitstop.fleet.transport import OUTPUT_LIMIT, Conversation, Ended, SessionTransport
from pitstop.model.errors import NodeUnreachable, TemporaryError
from pitstop.node.frame import Framed, frame, unwrap
from pitstop.node.serve import AGAIN, IDLE

TOO_OLD = 2
"""Exit status of an engine that does not know the option, from `argparse`."""

TRUSTED_IDLE = IDLE / 3
"""Seconds of silence after which the other side might be about to end it."""

TRIES = 4
"""One for a session that was lost, one for an engine that was replaced, one by a process."""


class Session:
    """Requests to one node. Not for use by several threads at once."""

    def __init__(self, name: str, engine: Sequence[str], transport: SessionTransport) -> None:
        self._name = name
        self._engine = list(engine)
        self._transport = transport
        self._conversation: Conversation | None = None
        self._last = 0.0
        self._too_old = False

    def close(self) -> None:
        """End it, and the connection. The next request begins anew."""
        self._drop()
        self._too_old = False
        self._transport.close()

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the engine's answer.

        Raises:
            NodeUnreachable: nothing was sent.
            ConnectionLost: something was sent; its effect is unknown.
            DeadlineExceeded: there was no answer after `timeout` seconds.
            TemporaryError: what runs there is no engine, or it broke down.
            HostKeyRefused: the machine is not the one it should be.
        """
        data = json.dumps(request).encode()
        end = time.monotonic() + timeout
        for _ in range(TRIES):
            left = max(round(end - time.monotonic(), 3), 0.001)
            if self._too_old:
                return self._ask_process(data, left)
            answer = self._ask_session(data, left)
            if answer is not None:
                return answer
        raise TemporaryError(
            self._name, "its engine wants every request again", "is it being replaced just now?"
        )

    def _ask_session(self, data: bytes, timeout: float) -> dict[str, Any] | None:
        """None when nothing came of it, so that it can be asked again."""
        kept = self._kept()
        if kept is None:
            self._conversation = self._transport.open([*self._engine, "rpc", "--session"], timeout)
        conversation = kept or self._conversation
        assert conversation is not None  # noqa: S101  # one of both
        nonce = secrets.token_hex(8)
        found = Framed(nonce, OUTPUT_LIMIT)
        try:
            conversation.exchange(frame(nonce, data), found.feed, timeout)
        except Ended as ended:
            self._drop()
            if kept is not None and not ended.sent:
                return None
            if kept is None and ended.exit_status == TOO_OLD:
                self._too_old = True
                return None
            raise self._no_answer(ended.exit_status, ended.stderr) from None
        except NodeUnreachable:
            self._drop()
            self._transport.close()
            if kept is None:
                raise
            return None
        except BaseException:
            self._drop()  # its answer may still come
            self._transport.close()
            raise
        message = found.message()
        if message is None:
            self._drop()
            raise self._no_answer(None, conversation.stderr)
        if message == AGAIN:
            self._drop()
            return None
        self._last = time.monotonic()
        return message

    def _kept(self) -> Conversation | None:
        """Return the session that is open, if it can be relied on."""
        kept = self._conversation
        if kept is None:
            return None
        if time.monotonic() - self._last < TRUSTED_IDLE and not kept.over():
            return kept
        self._drop()
        return None

    def _ask_process(self, data: bytes, timeout: float) -> dict[str, Any]:
        nonce = secrets.token_hex(8)
        argv = [*self._engine, "rpc", "--nonce", nonce]
        completed = self._transport.run(argv, data, timeout)
        answer = unwrap(nonce, completed.stdout)
        if answer is None:
            raise self._no_answer(completed.exit_status, completed.stderr)
        return answer

    def _no_answer(self, exit_status: int | None, stderr: bytes) -> TemporaryError:
        tail = stderr.decode(errors="replace").strip().splitlines()[-3:]
        return TemporaryError(
            self._name,
            f"{self._engine[0]} gave no answer (exit status {exit_status}): "
            + (" / ".join(tail)[:500] or "nothing on stderr"),
            "is pitstop installed there, and `engine` in site.yaml right?",
        )

    def _drop(self) -> None:
        if self._conversation is not None:
            self._conversation.close()
            self._conversation = None
