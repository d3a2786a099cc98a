"""The byte stream below an SSH connection: TCP, or a proxy command's stdin and stdout."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pitstop.model.errors import NodeUnreachable
from pitstop.model.ssh import Ssh

PROXY_GRACE = 2.0
"""Seconds a proxy command has to end by itself once it was asked to."""


class Line:
    """A connected socket, with the proxy process behind it where there is one."""

    def __init__(self, sock: socket.socket, proxy: subprocess.Popen[bytes] | None) -> None:
        self.socket = sock
        self._proxy = proxy

    def close(self) -> None:
        """End the connection and its proxy."""
        self.socket.close()
        if self._proxy is not None:
            self._proxy.terminate()
            try:
                self._proxy.wait(PROXY_GRACE)
            except subprocess.TimeoutExpired:
                self._proxy.kill()
                self._proxy.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


def dial(ssh: Ssh, subject: str) -> Line:
    """Connect.

    Raises:
        NodeUnreachable: it could not.
    """
    if ssh.proxy_command:
        return _through_proxy(proxy_arguments(ssh), subject)
    try:
        sock = socket.create_connection((ssh.address, ssh.port), timeout=ssh.connect_timeout)
    except OSError as error:
        raise NodeUnreachable(subject, f"{ssh.address} port {ssh.port}: {error}") from error
    # A node that loses power sends no FIN. Unacknowledged data (keepalives are sent all the
    # time) then ends the connection after this many milliseconds instead of many minutes.
    limit = int(ssh.keepalive * 3 * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Line(sock, None)


def proxy_arguments(ssh: Ssh) -> list[str]:
    """Return the proxy command with address and port filled in."""
    known = {"%h": ssh.address, "%p": str(ssh.port)}
    return [known.get(argument, argument) for argument in ssh.proxy_command]


def _through_proxy(argv: Sequence[str], subject: str) -> Line:
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            list(argv), stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL
        )
    except OSError as error:
        ours.close()
        raise NodeUnreachable(subject, f"proxy command {argv[0]}: {error.strerror}") from error
    finally:
        theirs.close()
    return Line(ours, process)
