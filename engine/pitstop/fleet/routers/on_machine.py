"""What is done on the machine of a router's socket or file. Standard library alone.

Called here, or by SSH as the program of a `python3 -I -c`: nothing has to be installed there.
So it must run under Python 3.7, and imports nothing of pitstop.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile

LIMIT = 64 << 20


def talk(address: str, timeout: str, command: bytes) -> bytes:
    """Send a line to a socket and return all that comes back until the other side closes.

    Args:
        address: a path, or `tcp:ADDRESS:PORT`.
        timeout: seconds for each wait.
        command: the line.
    """
    if address.startswith("tcp:"):
        host, _, port = address[4:].rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=float(timeout))
    else:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(float(timeout))
        try:
            connection.connect(address)
        except BaseException:
            connection.close()
            raise
    with connection:
        connection.sendall(command)
        said = bytearray()
        while len(said) < LIMIT:
            part = connection.recv(1 << 16)
            if not part:
                return bytes(said)
            said += part
    raise ValueError("the answer does not end")


def read(path: str) -> bytes:
    """Return a file's content."""
    with open(path, "rb") as file:
        return file.read(LIMIT)


def replace(path: str, expected: str, content: bytes) -> bytes:
    """Replace a file at once, with its owner and mode; a link stays, what it names is replaced.

    Args:
        path: the file.
        expected: SHA-256 of what is there, so that nobody's edit in between is lost.
        content: what will be there.
    """
    path = os.path.realpath(path)
    if hashlib.sha256(read(path)).hexdigest() != expected:
        raise ValueError(path + " was changed by somebody else meanwhile")
    found = os.stat(path)
    # In the same directory, or it could not be put in place in one move. The name is one that
    # no `include *.conf` takes.
    descriptor, beside = tempfile.mkstemp(prefix=".pitstop-", dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchown(descriptor, found.st_uid, found.st_gid)
            os.fchmod(descriptor, found.st_mode & 0o7777)
            file.flush()
            os.fsync(descriptor)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return b""


def children(pid_file: str) -> bytes:
    """Return the processes below the one whose PID a file has: JSON, `[pid, title]` each."""
    parent = int(read(pid_file).decode())
    if not os.path.exists(f"/proc/{parent}"):
        raise ValueError(f"{pid_file} names process {parent}, which is not there")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            # The name, in brackets, may hold anything; the parent comes second behind it.
            fields = read("/proc/" + name + "/stat").rpartition(b")")[2].split()
            title = read("/proc/" + name + "/cmdline").replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent and fields[0] not in (b"Z", b"X"):
            found.append([int(name), title.strip()])
    return json.dumps(found).encode()


def main(arguments: list[str], given: bytes) -> bytes:
    """Do what the first argument names."""
    verb, rest = arguments[0], arguments[1:]
    if verb == "talk":
        return talk(rest[0], rest[1], given)
    if verb == "read":
        return read(rest[0])
    if verb == "replace":
        return replace(rest[0], rest[1], given)
    if verb == "children":
        return children(rest[0])
    raise ValueError(verb)


if __name__ == "__main__":
    try:
        sys.stdout.buffer.write(main(sys.argv[1:], sys.stdin.buffer.read()))
    except (OSError, ValueError) as error:
        sys.exit(str(error))
