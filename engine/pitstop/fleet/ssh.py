"""SSH by paramiko: strict host keys, arguments as a list, every wait with a deadline."""

from __future__ import annotations

import contextlib
import logging
import select
import shlex
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.pkey import UnknownKeyType

from pitstop.fleet import hostkeys
from pitstop.fleet.dialing import Line, dial
from pitstop.fleet.hostkeys import HostKeys
from pitstop.fleet.ssh_talk import LOST, SshConversation, ends_after
from pitstop.fleet.transport import (
    OUTPUT_LIMIT,
    Completed,
    Conversation,
    SessionTransport,
    Stream,
)
from pitstop.model.errors import (
    BadInput,
    ConnectionLost,
    DeadlineExceeded,
    HostKeyRefused,
    NodeUnreachable,
    PermanentError,
)
from pitstop.model.ssh import Ssh

# Without a handler of the application's own, its traces would go to a person's terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_RSA = ("rsa-sha2-512", "rsa-sha2-256")

_UNUSABLE_KEY = (
    *(OSError, ValueError, TypeError),
    *(paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm),
)
"""What reading a private key raises: TypeError is for one with a passphrase."""


class SshTransport(SessionTransport):
    """One SSH connection, made when it is needed and again after it was lost."""

    def __init__(self, name: str, ssh: Ssh) -> None:
        self._name = name
        self._ssh = ssh
        self._line: Line | None = None
        self._connection: paramiko.Transport | None = None

    def run(self, argv: Sequence[str], stdin: bytes, timeout: float) -> Completed:
        """Run a command; see `Transport.run`.

        The SSH protocol carries one string, which the login shell splits again; each
        argument is quoted for it. Data goes over stdin, never into the string.
        """
        channel = self._open()
        assert self._connection is not None  # noqa: S101  # the channel is one of it
        end = time.monotonic() + timeout
        # Whatever is waited for below, also by paramiko and without a limit of its own, ends
        # with the connection.
        watchdog = threading.Timer(timeout, self._connection.close)
        watchdog.daemon = True
        watchdog.start()
        try:
            channel.exec_command(shlex.join(argv))
            return _exchange(channel, stdin)
        except LOST as error:
            self.close()
            if time.monotonic() >= end:
                raise DeadlineExceeded(self._name, f"no answer after {timeout:g} s") from error
            raise ConnectionLost(self._name, f"the connection was lost: {error}") from error
        finally:
            watchdog.cancel()
            # The answer is complete or its loss is said; closing says so over a connection
            # that may have died in between, as it does when a node reboots.
            with contextlib.suppress(*LOST):
                channel.close()

    def stream(self, argv: Sequence[str]) -> Stream:
        """Start a command; see `Transport.stream`, and `run` for its arguments."""
        channel = self._open()
        assert self._connection is not None  # noqa: S101  # the channel is one of it
        try:
            channel.exec_command(shlex.join(argv))
        except LOST as error:
            self.close()
            raise ConnectionLost(self._name, f"the connection was lost: {error}") from error
        return _SshStream(self._name, channel, self._connection)

    def open(self, argv: Sequence[str], timeout: float) -> Conversation:
        """Start a program to speak with; see `SessionTransport.open`."""
        channel = self._open()
        assert self._connection is not None  # noqa: S101  # the channel is one of it
        end = time.monotonic() + timeout
        try:
            with ends_after(self._connection, timeout):
                channel.exec_command(shlex.join(argv))
        except LOST as error:
            self.close()
            if time.monotonic() >= end:
                raise DeadlineExceeded(self._name, f"not started after {timeout:g} s") from error
            raise NodeUnreachable(self._name, f"no command could be started: {error}") from error
        return SshConversation(self._name, self._ssh, self._connection, channel)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._line is not None:
            self._line.close()
            self._line = None

    def _open(self) -> paramiko.Channel:
        for fresh in (False, True):
            if self._connection is None or not self._connection.is_active():
                self.close()
                self._connect()
                fresh = True
            assert self._connection is not None  # noqa: S101  # _connect sets it or raises
            try:
                return self._connection.open_session(timeout=self._ssh.connect_timeout)
            except LOST as error:
                # A connection that died unnoticed: nothing was sent yet, so once more.
                self.close()
                if fresh:
                    raise NodeUnreachable(self._name, f"no session: {error}") from error
        raise NodeUnreachable(self._name, "no session")

    def _connect(self) -> None:
        keys = self._host_keys()
        self._line = dial(self._ssh, self._name)
        connection = paramiko.Transport(self._line.socket)
        self._connection = connection
        connection.banner_timeout = self._ssh.connect_timeout
        connection.auth_timeout = self._ssh.connect_timeout
        self._prefer_known_types(connection, keys)
        try:
            connection.start_client(timeout=self._ssh.connect_timeout)
            shown = connection.get_remote_server_key()
            refusal = keys.refusal(shown.get_name(), shown.asbytes())
            if refusal:
                raise HostKeyRefused(
                    f"{self._name} ({self._ssh.address}:{self._ssh.port})",
                    refusal,
                    "if the machine was reinstalled on purpose, put its new key into site.yaml",
                )
            self._authenticate(connection)
        except (HostKeyRefused, PermanentError):
            self.close()
            raise
        except LOST as error:
            self.close()
            raise NodeUnreachable(self._name, f"no SSH connection: {error}") from error
        connection.set_keepalive(max(1, int(self._ssh.keepalive)))

    def _host_keys(self) -> HostKeys:
        if self._ssh.host_keys:
            try:
                return HostKeys(hostkeys.from_lines(self._ssh.host_keys))
            except ValueError as error:
                raise BadInput(self._name, f"host_keys: {error}") from error
        path = Path(self._ssh.known_hosts or "~/.ssh/known_hosts").expanduser()
        try:
            text = path.read_text(errors="replace")
        except OSError:
            return HostKeys(frozenset(), source=str(path))
        return hostkeys.from_known_hosts(text, self._ssh.address, self._ssh.port, str(path))

    def _prefer_known_types(self, connection: paramiko.Transport, keys: HostKeys) -> None:
        """Ask for a known key's type first, or a host with several keys shows another.

        The other types stay: a host that has lost its old key is refused with both named.
        """
        known = {kind for kind, _ in keys.trusted}
        if "ssh-rsa" in known:
            known |= set(_RSA)
        options = connection.get_security_options()
        options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in known))

    def _authenticate(self, connection: paramiko.Transport) -> None:
        refused = "no key was offered"
        for key in self._private_keys():
            try:
                connection.auth_publickey(self._ssh.user, key)
            except paramiko.AuthenticationException as error:
                refused = str(error)
                continue
            return
        raise PermanentError(
            self._name,
            f"user {self._ssh.user} was not let in: {refused}",
            "check identity_file in site.yaml, or the agent",
        )

    def _private_keys(self) -> list[paramiko.PKey]:
        if self._ssh.identity_file is not None:
            path = Path(self._ssh.identity_file).expanduser()
            try:
                return [paramiko.PKey.from_path(path)]
            except _UNUSABLE_KEY as error:
                raise PermanentError(str(path), f"not a usable private key: {error}") from error
        keys: list[paramiko.PKey] = list(paramiko.Agent().get_keys())
        for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
            path = Path("~/.ssh").expanduser() / name
            with contextlib.suppress(*_UNUSABLE_KEY):
                keys.append(paramiko.PKey.from_path(path))
        return keys


def _exchange(channel: paramiko.Channel, stdin: bytes) -> Completed:
    """Feed and drain all streams together: any one alone could block the others."""
    out, err = bytearray(), bytearray()
    feed = _Feed(channel, stdin)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    over = False
    while not over:
        feed.send()
        # Asked before the streams are drained, so that nothing sent before is missed.
        over = channel.closed or bool(channel.exit_status_ready() and channel.eof_received)
        while channel.recv_ready():
            _keep(out, channel.recv(1 << 16))
        while channel.recv_stderr_ready():
            _keep(err, channel.recv_stderr(1 << 16))
        # Nothing tells when there is room for more input.
        seconds = 1.0 if feed.done else 0.02
        if channel.eof_received:
            channel.status_event.wait(seconds)  # both streams have ended, the program not yet
        else:
            poll.poll(seconds * 1000)
    status = channel.recv_exit_status() if channel.exit_status_ready() else -1
    if status == -1:
        # It closed without a status. Unknown, neither success nor failure.
        raise EOFError("the command's end is unknown")
    return Completed(status, bytes(out), bytes(err))


class _Feed:
    """A command's input, sent as the other side has room for it."""

    def __init__(self, channel: paramiko.Channel, data: bytes) -> None:
        self._channel = channel
        self._left = data
        self.done = False

    def send(self) -> None:
        """Send what there is room for; after the last byte, say that it was the last."""
        if self.done:
            return
        try:
            while self._left and self._channel.send_ready():
                sent = self._channel.send(self._left)
                self._left = self._left[sent:]
            if not self._left:
                self._channel.shutdown_write()
        except OSError:
            # It ended without reading all of it, as it may: its status says the rest.
            self._left = b""
        self.done = not self._left


def _keep(buffer: bytearray, part: bytes) -> None:
    """Keep the end of a stream: an answer comes last."""
    buffer += part
    if len(buffer) > OUTPUT_LIMIT:
        del buffer[: len(buffer) - OUTPUT_LIMIT]


CHUNK = 1 << 18


class _SshStream(Stream):
    def __init__(
        self, name: str, channel: paramiko.Channel, connection: paramiko.Transport
    ) -> None:
        self._name = name
        self._channel = channel
        self._connection = connection

    def read(self) -> bytes:
        try:
            return self._channel.recv(CHUNK)
        except LOST:
            return b""  # the status that is missing then says that it was lost

    def write(self, data: bytes) -> bool:
        try:
            self._channel.sendall(data)
        except LOST:
            return False
        return True

    def end_input(self) -> None:
        with contextlib.suppress(*LOST):
            self._channel.shutdown_write()

    def finish(self) -> Completed:
        try:
            return _exchange(self._channel, b"")
        except LOST as error:
            raise ConnectionLost(self._name, f"the connection was lost: {error}") from error

    def abandon(self) -> None:
        self._connection.close()

    def close(self) -> None:
        with contextlib.suppress(*LOST):
            self._channel.close()
