"""How a command gets to a machine: the interface that local and SSH share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pitstop.model.errors import PermanentError

OUTPUT_LIMIT = 64 << 20
"""Bytes kept of each stream; an answer is never near that, noise may be."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran.

    Attributes:
        exit_status: None when it is unknown: the connection closed without one.
    """

    exit_status: int | None
    stdout: bytes
    stderr: bytes


class Stream(ABC):
    """A command that runs, with its stdin and stdout in our hands. The end of stderr is kept."""

    @abstractmethod
    def read(self) -> bytes:
        """Return what comes next on stdout; empty when nothing more comes."""

    @abstractmethod
    def write(self, data: bytes) -> bool:
        """Write all of it to stdin. False: nobody reads any more."""

    @abstractmethod
    def end_input(self) -> None:
        """Say that nothing more comes on stdin."""

    @abstractmethod
    def finish(self) -> Completed:
        """Wait for its end, and return it with what was not read yet of its output.

        Raises:
            ConnectionLost: the connection ended; what became of the command is unknown.
        """

    @abstractmethod
    def abandon(self) -> None:
        """End the connection to it, and so all that waits for it, in any thread."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds here. A command that has not ended is ended or cut off."""


TAIL = 1 << 16
"""Bytes kept of the stderr of a program that is spoken with."""


class Ended(Exception):
    """A program that was spoken with ended before it had said enough.

    Attributes:
        exit_status: -n for signal n, where that is known.
        stderr: the end of it.
        sent: whether it may have read anything of what was said last.
    """

    def __init__(self, exit_status: int, stderr: bytes, sent: bool) -> None:
        super().__init__(exit_status, stderr, sent)
        self.exit_status = exit_status
        self.stderr = stderr
        self.sent = sent


class Conversation(ABC):
    """A program under way that is spoken with. Not for use by several threads at once.

    After any error it can only be closed.
    """

    @property
    @abstractmethod
    def stderr(self) -> bytes:
        """The end of what it wrote there."""

    @abstractmethod
    def over(self) -> bool:
        """Whether it is known that it, or the way to it, has ended. Asks after a pause."""

    @abstractmethod
    def exchange(self, data: bytes, enough: Callable[[bytes], bool], timeout: float) -> None:
        """Say something, and hand on what comes from its stdout until that is enough.

        All streams are fed and drained together: any one alone could block the others.

        Raises:
            Ended: the program ended.
            NodeUnreachable: the way to it was lost, with nothing said.
            ConnectionLost: it was lost, and the program may have read something.
            DeadlineExceeded: it was not enough after `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """End its stdin, by which it ends, and let go of it."""


class Transport(ABC):
    """A way to run commands on one machine. Not for use by several threads at once."""

    @abstractmethod
    def run(self, argv: Sequence[str], stdin: bytes, timeout: float) -> Completed:
        """Run a command given as a list of arguments, and wait for its end.

        Raises:
            NodeUnreachable: nothing was sent.
            ConnectionLost: something was sent; its effect is unknown.
            DeadlineExceeded: it had not ended after `timeout` seconds; it may run on.
            HostKeyRefused: the machine is not the one it should be.
        """

    def stream(self, argv: Sequence[str]) -> Stream:
        """Start a command given as a list of arguments, for who feeds and reads it himself.

        Nothing else is run by this transport until that has ended.

        Raises:
            NodeUnreachable: nothing was sent.
            HostKeyRefused: the machine is not the one it should be.
        """
        raise PermanentError(argv[0], "this way to a machine carries no streams")

    @abstractmethod
    def close(self) -> None:
        """Give the connection back. The next `run` or `open` makes a new one."""


class SessionTransport(Transport):
    """One that can also keep a program to speak with."""

    @abstractmethod
    def open(self, argv: Sequence[str], timeout: float) -> Conversation:
        """Start a program to speak with.

        Raises:
            NodeUnreachable: it could not be started.
            DeadlineExceeded: it was not started after `timeout` seconds.
            HostKeyRefused: the machine is not the one it should be.
        """
