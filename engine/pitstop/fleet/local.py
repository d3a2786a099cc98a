"""The machine pitstop itself runs on."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence

from pitstop.fleet.local_talk import LocalConversation
from pitstop.fleet.transport import (
    OUTPUT_LIMIT,
    Completed,
    Conversation,
    SessionTransport,
    Stream,
)
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

    def stream(self, argv: Sequence[str]) -> Stream:
        """Start a command; see `Transport.stream`."""
        try:
            return _LocalStream(argv)
        except OSError as error:
            raise NodeUnreachable(argv[0], f"cannot be started: {error.strerror}") from error

    def open(self, argv: Sequence[str], timeout: float) -> Conversation:  # noqa: ARG002
        """Start a program to speak with; see `SessionTransport.open`."""
        return LocalConversation(argv)

    def close(self) -> None:
        """Nothing is held."""


CHUNK = 1 << 18


class _LocalStream(Stream):
    def __init__(self, argv: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the stream
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )
        assert self._process.stdin is not None  # noqa: S101  # asked for above
        assert self._process.stdout is not None  # noqa: S101  # likewise
        self._input, self._output = self._process.stdin, self._process.stdout

    def read(self) -> bytes:
        return self._output.read(CHUNK) or b""

    def write(self, data: bytes) -> bool:
        left = memoryview(data)
        try:
            while left:
                left = left[self._input.write(left) or 0 :]
        except BrokenPipeError:
            return False
        return True

    def end_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def finish(self) -> Completed:
        self.end_input()
        out = self._output.read()
        status = self._process.wait()
        self._errors.seek(0)
        errors = self._errors.read()
        return Completed(status, out[-OUTPUT_LIMIT:], errors[-OUTPUT_LIMIT:])

    def abandon(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.end_input()
        self._output.close()
        self._errors.close()
