"""The machine pitstop itself runs on."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from pitstop.fleet.local_talk import LocalConversation
from pitstop.fleet.transport import OUTPUT_LIMIT, Completed, Conversation, SessionTransport
from pitstop.model.errors import DeadlineExceeded, NodeUnreachable


class LocalTransport(SessionTransport):
    """Runs commands as children of this process."""

    def run(self, argv: Sequence[str], stdin: bytes, timeout: float) -> Completed:
        """Run a command; see `Transport.run`."""
        try:
            result = subprocess.run(
                list(argv), input=stdin, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceeded(argv[0], f"no answer after {timeout:g} s") from error
        except OSError as error:
            raise NodeUnreachable(argv[0], f"cannot be started: {error.strerror}") from error
        return Completed(
            result.returncode, result.stdout[-OUTPUT_LIMIT:], result.stderr[-OUTPUT_LIMIT:]
        )

    def open(self, argv: Sequence[str], timeout: float) -> Conversation:  # noqa: ARG002
        """Start a program to speak with; see `SessionTransport.open`."""
        return LocalConversation(argv)

    def close(self) -> None:
        """Nothing is held."""
