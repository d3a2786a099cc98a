"""How a command gets to a machine: the interface that local and SSH share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
        """Give the connection back. The next `run` makes a new one."""
