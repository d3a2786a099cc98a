"""What the sockets of a tree are, and where UNIX sockets lead.

/proc/PID/net lists only sockets that are bound or connected, and shows Multipath TCP as plain
TCP. So each socket is borrowed for a moment (pidfd_getfd(2)) and asked.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pitstop.node.blockers.facts import Process, Socket, inode_of

_SYS_PIDFD_GETFD = 438
"""The same on every architecture (pidfd_getfd(2), since Linux 5.6)."""
_SO_DOMAIN, _SO_PROTOCOL = 39, 38
_CLONE_NEWNET = 0x40000000
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 0x4, 2
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_UNIX_REQUEST = struct.Struct("=BxxxIIIQ")
_UNIX_MESSAGE = struct.Struct("=BBBBIII")

_libc = ctypes.CDLL(None, use_errno=True)


def read(found: Sequence[Process]) -> dict[int, Socket]:
    """Return what is known of the sockets of a tree, by inode."""
    known: dict[int, Socket] = {}
    for process in found:
        held = {
            inode: descriptor.number
            for descriptor in process.descriptors
            if (inode := inode_of(descriptor.target, "socket")) is not None and inode not in known
        }
        if held:
            known.update(_borrow(process.pid, held))
    if any(known_.family == socket.AF_UNIX for known_ in known.values()):
        peers = _peers_in(found[0].pid)
        for inode, known_ in known.items():
            if known_.family == socket.AF_UNIX and inode in peers:
                known[inode] = replace(known_, peer=peers[inode])
    return known


def _borrow(pid: int, held: dict[int, int]) -> dict[int, Socket]:
    known = {}
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return {}
    try:
        for inode, number in held.items():
            copy = _libc.syscall(_SYS_PIDFD_GETFD, process, number, 0)
            if copy < 0:
                continue  # closed meanwhile, or not permitted: it stays unknown
            try:
                # Another file may have this number by now.
                if os.fstat(copy).st_ino == inode:
                    known[inode] = _asked(copy)
            finally:
                os.close(copy)
    finally:
        os.close(process)
    return known


def _asked(descriptor: int) -> Socket:
    # The family named here is not looked at: some have no address to find it out by.
    borrowed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        family, kind, protocol = (
            borrowed.getsockopt(socket.SOL_SOCKET, option)
            for option in (_SO_DOMAIN, socket.SO_TYPE, _SO_PROTOCOL)
        )
        return Socket(family, kind, protocol)
    finally:
        borrowed.detach()


def _peers_in(pid: int) -> dict[int, int]:
    """Return UNIX sockets of a process's network namespace as inode to the peer's inode."""
    found: dict[int, int] = {}

    def ask() -> None:
        with suppress(OSError):  # what is not known is not in the answer
            descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(descriptor, _CLONE_NEWNET) == 0:
                    found.update(_peers())
            finally:
                os.close(descriptor)

    # A namespace is entered by one thread, which ends in it.
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found


def _peers() -> dict[int, int]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        wanted = struct.pack(
            "=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _UDIAG_SHOW_PEER, 0, 0
        )
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        size = _HEADER.size + len(wanted)
        link.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, flags, 1, 0) + wanted)
        found: dict[int, int] = {}
        while True:
            data = link.recv(1 << 17)
            if parse_peers(data, found):
                return found


def parse_peers(data: bytes, found: dict[int, int]) -> bool:
    """Add what one answer of sock_diag(7) holds to `found`; tell whether it was the last.

    Raises:
        OSError: the kernel refused.
    """
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _flags, _sequence, _port = _HEADER.unpack_from(data, offset)
        begin, end = offset + _HEADER.size, offset + length
        if kind == _NLMSG_DONE or length < _HEADER.size:
            return True
        if kind == _NLMSG_ERROR:
            number = -struct.unpack_from("=i", data, begin)[0]
            raise OSError(number, os.strerror(number))
        inode = _UNIX_MESSAGE.unpack_from(data, begin)[4]
        found[inode] = 0
        place = begin + _UNIX_MESSAGE.size
        while place + _ATTRIBUTE.size <= end:
            size, attribute = _ATTRIBUTE.unpack_from(data, place)
            if size < _ATTRIBUTE.size:
                break
            if attribute == _UNIX_DIAG_PEER:
                found[inode] = struct.unpack_from("=I", data, place + _ATTRIBUTE.size)[0]
            place += (size + 3) & ~3
        offset += (length + 3) & ~3
    return False
