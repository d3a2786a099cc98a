"""How a command gets to a machine: the interface that local and SSH share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

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

    @abstractmethod
    def close(self) -> None:
        """Give the connection back. The next `run` makes a new one."""
