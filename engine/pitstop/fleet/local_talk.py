"""A program on this machine that is spoken with over pipes."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence

from pitstop.fleet.transport import TAIL, Conversation, Ended
from pitstop.model.errors import DeadlineExceeded, NodeUnreachable

PART = 1 << 16
GRACE = 2.0
"""Seconds that a program has to end by itself once its stdin has."""


class LocalConversation(Conversation):
    """A child of this process.

    Raises:
        NodeUnreachable: it cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._name = argv[0]
        try:
            self._process = subprocess.Popen(
                list(argv),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise NodeUnreachable(argv[0], f"cannot be started: {error.strerror}") from error
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        assert all(streams)  # noqa: S101  # all three are pipes
        self._in, self._out, self._err = (s.fileno() for s in streams if s is not None)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._tail = bytearray()

    @property
    def stderr(self) -> bytes:
        """See `Conversation.stderr`."""
        return bytes(self._tail)

    def over(self) -> bool:
        """See `Conversation.over`."""
        return self._process.poll() is not None

    def exchange(self, data: bytes, enough: Callable[[bytes], bool], timeout: float) -> None:
        """Say something and hand on what comes back; see `Conversation.exchange`."""
        end = time.monotonic() + timeout
        left, sent = memoryview(data), False
        # It may end and leave its streams open in a process of its own.
        life = os.pidfd_open(self._process.pid)
        try:
            poll = select.poll()
            for descriptor in (life, self._out, self._err):
                poll.register(descriptor, select.POLLIN)
            poll.register(self._in, select.POLLOUT)
            while True:
                seconds = end - time.monotonic()
                if seconds <= 0:
                    self._process.kill()
                    raise DeadlineExceeded(self._name, f"no answer after {timeout:g} s")
                ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
                if self._in in ready:
                    written = self._send(left)
                    sent = sent or bool(written)
                    left = left[len(left) if written is None else written :]
                    if not left:
                        poll.unregister(self._in)
                if self._out in ready:
                    part = _read(self._out)
                    if part == b"":
                        poll.unregister(self._out)
                    if part and enough(part):
                        return
                if self._err in ready and self._keep_stderr() == b"":
                    poll.unregister(self._err)
                if life in ready:
                    self._end(enough, sent)
                    return
        finally:
            os.close(life)

    def _send(self, left: memoryview) -> int | None:
        """Return how much it took; None when it takes no more."""
        try:
            return os.write(self._in, left[:PART])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return None  # how it ended says the rest

    def _keep_stderr(self) -> bytes | None:
        part = _read(self._err)
        self._tail += part or b""
        del self._tail[:-TAIL]
        return part

    def _end(self, enough: Callable[[bytes], bool], sent: bool) -> None:
        """Take what it said last.

        Raises:
            Ended: that was not enough.
        """
        while part := _read(self._out):
            if enough(part):
                return
        while self._keep_stderr():
            pass
        raise Ended(self._process.wait(), self.stderr, sent)

    def close(self) -> None:
        """End its stdin and wait for its end; see `Conversation.close`."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _read(descriptor: int) -> bytes | None:
    """Return what is there: nothing at the end of the stream, None when it is to come."""
    try:
        return os.read(descriptor, PART)
    except BlockingIOError:
        return None
