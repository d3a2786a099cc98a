"""A program on another machine that is spoken with over an SSH channel."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator

import paramiko

from pitstop.fleet.transport import TAIL, Conversation, Ended
from pitstop.model.errors import ConnectionLost, DeadlineExceeded, NodeUnreachable
from pitstop.model.ssh import Ssh

LOST = (paramiko.SSHException, OSError, EOFError)
"""What paramiko raises when a connection has ended."""


@contextlib.contextmanager
def ends_after(connection: paramiko.Transport, seconds: float) -> Iterator[None]:
    """End the connection unless the block is over by then.

    Whatever it waits for, also in paramiko and without a limit of its own, ends with that.
    """
    watchdog = threading.Timer(seconds, connection.close)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


class SshConversation(Conversation):
    """One channel whose command runs."""

    def __init__(
        self, name: str, ssh: Ssh, connection: paramiko.Transport, channel: paramiko.Channel
    ) -> None:
        self._name = name
        self._ssh = ssh
        self._connection = connection
        self._channel = channel
        self._tail = bytearray()
        self._heard = time.monotonic()

    @property
    def stderr(self) -> bytes:
        """See `Conversation.stderr`."""
        return bytes(self._tail)

    def over(self) -> bool:
        """See `Conversation.over`."""
        if time.monotonic() - self._heard > self._ssh.keepalive:
            # A connection may have died unnoticed, as behind a proxy: any reply will do.
            with ends_after(self._connection, self._ssh.connect_timeout):
                self._connection.global_request("keepalive@pitstop", wait=True)
        channel = self._channel
        ended = channel.closed or channel.eof_received or channel.exit_status_ready()
        return bool(ended or not self._connection.is_active())

    def exchange(self, data: bytes, enough: Callable[[bytes], bool], timeout: float) -> None:
        """Say something and hand on what comes back; see `Conversation.exchange`."""
        end = time.monotonic() + timeout
        said = _Said(self._channel, data)
        try:
            with ends_after(self._connection, timeout):
                self._exchange(said, enough)
        except LOST as error:
            if time.monotonic() >= end:
                raise DeadlineExceeded(self._name, f"no answer after {timeout:g} s") from error
            lost = ConnectionLost if said.any else NodeUnreachable
            raise lost(self._name, f"the connection was lost: {error}") from error
        self._heard = time.monotonic()

    def _exchange(self, said: _Said, enough: Callable[[bytes], bool]) -> None:
        channel = self._channel
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        over = False
        while not over:
            said.more()
            # Asked before the streams are drained, so that nothing sent before is missed.
            over = channel.closed or bool(channel.exit_status_ready() and channel.eof_received)
            while channel.recv_stderr_ready():
                self._tail += channel.recv_stderr(1 << 16)
                del self._tail[:-TAIL]
            while channel.recv_ready():
                if enough(channel.recv(1 << 16)):
                    return
            # Nothing tells when there is room for more.
            seconds = 1.0 if said.all else 0.02
            if channel.eof_received:
                channel.status_event.wait(seconds)  # it says no more, and has not ended yet
            else:
                poll.poll(seconds * 1000)
        status = channel.recv_exit_status() if channel.exit_status_ready() else -1
        if status == -1:
            raise EOFError("the program's end is unknown")
        raise Ended(status, self.stderr, said.any)

    def close(self) -> None:
        """Close the channel, by which its stdin ends; see `Conversation.close`."""
        with contextlib.suppress(*LOST):
            self._channel.close()


class _Said:
    """What is said to a program, as the other side has room for it."""

    def __init__(self, channel: paramiko.Channel, data: bytes) -> None:
        self._channel = channel
        self._left = data
        self.any = False

    @property
    def all(self) -> bool:
        return not self._left

    def more(self) -> None:
        try:
            while self._left and self._channel.send_ready():
                if self._channel.closed:
                    self._left = b""
                    return
                # Before it is sent: what fails in the middle may have arrived.
                self.any = True
                self._left = self._left[self._channel.send(self._left) :]
        except OSError:
            # It reads no more: how it ended says the rest.
            self._left = b""
