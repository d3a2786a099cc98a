"""Rules about ends that lie outside of the tree: sockets, pipes, and files shared with others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from pitstop.node.blockers.blocker import Blocker, Kind
from pitstop.node.blockers.facts import Descriptor, Process, Socket, Tree, inode_of

MPTCP = Kind(
    "a Multipath TCP socket",
    "CRIU cannot dump protocol 262 (criu#2655)",
    "GODEBUG=multipathtcp=0 at its start for Go programs, or plain TCP in its settings",
)
PROTOCOL = Kind(
    "a socket of another protocol",
    "CRIU dumps TCP, UDP, UDP-Lite and raw sockets (criu: sk-inet.c, can_dump_ipproto)",
    "start the program without it, or a cold start",
)
FAMILY = Kind(
    "a socket of another family",
    "CRIU dumps IPv4, IPv6, UNIX, netlink and packet sockets (criu: sockets.c, dump_socket)",
    "start the program without it, or a cold start",
)
UNIX_OUTSIDE = Kind(
    "a UNIX socket that leads outside",
    "the other end is held by a process outside of the workload, and would be lost with the "
    "connection (criu: sk-unix.c, external sockets)",
    "let it end (drain), or configure the program without it: a log daemon, D-Bus, an MPS "
    "server, a local client",
)
PIPE_OUTSIDE = Kind(
    "a pipe that leads outside",
    "after a restore nobody is at its other end: the program sees its end, or dies by SIGPIPE "
    "(pipe(7))",
    "start it through pitstop-node launch, or with its output in files",
)
SHARED_FILE = Kind(
    "a file that others append to",
    "if it grows between dump and restore, CRIU refuses to restore (criu#1258)",
    "a file of its own for each writer; the workload's own output is safe under the launcher",
)
KINDS = (MPTCP, PROTOCOL, FAMILY, UNIX_OUTSIDE, PIPE_OUTSIDE, SHARED_FILE)

_FAMILIES = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET}
_UDPLITE, _MPTCP = 136, 262
_PROTOCOLS = {0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, _UDPLITE}


def unsupported_sockets(tree: Tree) -> Iterator[Blocker]:
    """Families and protocols that CRIU refuses, whatever state the socket is in."""
    for process, descriptor, found in _sockets(tree):
        where = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
        if found.family not in _FAMILIES:
            yield FAMILY.at(where, f"family {family_name(found.family)}")
        elif found.family in (socket.AF_INET, socket.AF_INET6):
            if found.protocol == _MPTCP:
                yield MPTCP.at(where)
            elif found.kind != socket.SOCK_RAW and found.protocol not in _PROTOCOLS:
                yield PROTOCOL.at(where, f"protocol {found.protocol}")


def family_name(number: int) -> str:
    """Return such as AF_VSOCK, or the number that this Python has no name for."""
    try:
        return socket.AddressFamily(number).name
    except ValueError:
        return str(number)


def unix_sockets_to_outside(tree: Tree) -> Iterator[Blocker]:
    """A connected UNIX socket has to have both ends in the tree."""
    members = {
        inode
        for process in tree.processes
        for descriptor in process.descriptors
        if (inode := inode_of(descriptor.target, "socket")) is not None
    }
    for process, descriptor, found in _sockets(tree):
        if found.peer and found.peer not in members:
            where = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
            yield UNIX_OUTSIDE.at(where)


def _sockets(tree: Tree) -> Iterator[tuple[Process, Descriptor, Socket]]:
    """Yield every socket of the tree once, with the first descriptor of it."""
    seen = set()
    for process in tree.processes:
        for descriptor in process.descriptors:
            inode = inode_of(descriptor.target, "socket")
            if inode is None or inode in seen or inode not in tree.sockets:
                continue
            seen.add(inode)
            yield process, descriptor, tree.sockets[inode]


def pipes_to_outside(tree: Tree) -> Iterator[Blocker]:
    """One end of a pipe in the tree, the other in a process outside."""
    ends = {
        (holder.target, holder.flags & os.O_ACCMODE): holder.pid
        for holder in tree.outside
        if inode_of(holder.target, "pipe") is not None
    }
    both = _ends_within(tree)
    for process in tree.processes:
        for descriptor in process.descriptors:
            other = os.O_RDONLY if descriptor.writes else os.O_WRONLY
            holder = ends.get((descriptor.target, other))
            if holder is not None and (descriptor.target, other) not in both:
                where = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
                yield PIPE_OUTSIDE.at(where, f"pid {holder} holds the other end")


def _ends_within(tree: Tree) -> set[tuple[str, int]]:
    ends: set[tuple[str, int]] = set()
    for process in tree.processes:
        for descriptor in process.descriptors:
            if inode_of(descriptor.target, "pipe") is not None:
                mode = descriptor.flags & os.O_ACCMODE
                modes = (os.O_RDONLY, os.O_WRONLY) if mode == os.O_RDWR else (mode,)
                ends.update((descriptor.target, one) for one in modes)
    return ends


def files_others_append_to(tree: Tree) -> Iterator[Blocker]:
    """Of files that both write to, only those that grow by it are a danger: logs."""
    appended = {holder.target: holder.pid for holder in tree.outside if holder.flags & os.O_APPEND}
    for process in tree.processes:
        for descriptor in process.descriptors:
            holder = appended.get(descriptor.target)
            if holder is not None and descriptor.writes and descriptor.target.startswith("/"):
                where = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
                yield SHARED_FILE.at(where, f"pid {holder} appends to it")
