"""Connect stdin and stdout to a TCP port inside a network namespace: an SSH ProxyCommand.

`python -m pitstop.lab.dial NETNS_PATH HOST PORT`
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading

from pitstop.lab.syscalls import CLONE_NEWNET, setns

CHUNK = 1 << 16
CONNECT_TIMEOUT = 15.0


def _send(connection: socket.socket) -> None:
    """Pass stdin on until it ends, then close that half: the other one may go on."""
    try:
        while data := os.read(0, CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        # The connection is gone. The receiving side sees that too, and ends the process.
        return


def _receive(connection: socket.socket) -> None:
    """Pass the connection on to stdout until it ends or nobody reads stdout any more."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(1, 0)  # only its errors: the reader has gone
    while True:
        events = dict(poll.poll())
        if events.get(1):
            return
        data = connection.recv(CHUNK)
        if not data:
            return
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def main() -> int:
    """Dial, relay both ways, end when either side ends."""
    netns, host, port = sys.argv[1:]
    try:
        setns(netns, CLONE_NEWNET)
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT)
    except OSError as error:
        sys.stderr.write(f"dial: {host} port {port}: {error}\n")
        return 1
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    try:
        _receive(connection)
    except OSError as error:
        sys.stderr.write(f"dial: {host} port {port}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    # The sender may be blocked in a read of stdin, which an orderly exit would wait for.
    sys.stderr.flush()
    os._exit(status)
