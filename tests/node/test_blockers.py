"""Blockers in real processes: each kind is made, and found; what CRIU can save is not."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import multiprocessing
import os
import pty
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pitstop.model.errors import WorkloadGone
from pitstop.node import processes
from pitstop.node.blockers import scan

Maker = Callable[[Path], Any]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p
NEWNS, NEWUTS, NEWNET, NEWIPC, NEWTIME = 0x20000, 0x4000000, 0x40000000, 0x8000000, 0x80
MPTCP = 262


def call(number: int, *arguments: Any) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def end_with_parent() -> None:
    """Nothing that is left behind waits for ever: not even if the tests are killed."""
    check(_libc.prctl(1, signal.SIGKILL, 0, 0, 0))


def reopen() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def own_mounts() -> None:
    """Mounts of one's own, with no file open from those before."""
    check(_libc.unshare(NEWNS))
    check(_libc.mount(b"none", b"/", None, 0x4000 | 1 << 18, None))
    reopen()


@contextmanager
def victim(make: Maker, where: Path, keep: tuple[int, ...] = ()) -> Iterator[int]:
    """A process in a session of its own that has made something and waits with it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent()
            os.setsid()
            reopen()
            for entry in os.listdir("/proc/self/fd"):
                if int(entry) > 2 and int(entry) not in (writer, *keep):
                    try:
                        os.close(int(entry))
                    except OSError:
                        continue  # that of the listing itself
            made = make(where)
            os.write(writer, b"ready")
            os.close(writer)
            while made is not None:
                signal.pause()
        except BaseException as error:  # noqa: BLE001  # told to the test
            os.write(writer, repr(error).encode())
        os._exit(1)
    os.close(writer)
    try:
        # Its children hold the pipe open too: what is waited for is the word, not the end.
        with os.fdopen(reader, "rb", buffering=0) as said:
            assert said.read(4096) == b"ready"
        yield pid
    finally:
        with suppress(WorkloadGone):
            for process in reversed(processes.tree(pid)):
                os.kill(process.pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def found(pid: int, images: Path, **options: Any) -> list[str]:
    return [blocker.what for blocker in scan(processes.tree(pid), images, **options)]


def ring() -> int:
    return call(425, 4, ctypes.create_string_buffer(120))


def ring_mapped(_: Path) -> Any:
    descriptor = ring()
    mapped = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
    return mapped


def perf() -> int:
    # The software's clock: every machine has that one.
    asked = bytearray(128)
    struct.pack_into("IIQ", asked, 0, 1, 128, 0)
    return call(298, ctypes.create_string_buffer(bytes(asked), 128), 0, -1, -1, 0)


def secret(_: Path) -> int:
    descriptor = call(447, 0)
    os.ftruncate(descriptor, 4096)
    return descriptor


def node(kind: int, major: int, minor: int, mode: int = os.O_RDONLY) -> Maker:
    def make(where: Path) -> int:
        os.mknod(where / "device", kind | 0o600, os.makedev(major, minor))
        return os.open(where / "device", mode | os.O_NONBLOCK)

    return make


def deleted(size: int) -> Maker:
    def make(where: Path) -> Any:
        file = (where / "deleted").open("wb+")
        os.posix_fallocate(file.fileno(), 0, size)
        (where / "deleted").unlink()
        return file

    return make


def sysv(_: Path) -> Any:
    number = _libc.shmget(0, 4096, 0o1600)
    check(number)
    address = _libc.shmat(number, None, 0)
    check(_libc.shmctl(number, 0, None))  # gone with its last user
    return address


def queue(_: Path) -> int:
    name = ctypes.c_char_p(f"pitstop-{os.getpid()}".encode())
    descriptor = call(240, name, 0o100 | 2, 0o600, None)
    call(241, name)
    return descriptor


def on_a_mount(then: Callable[[Path], None] = lambda _: None) -> Maker:
    def make(where: Path) -> Any:
        own_mounts()
        check(_libc.mount(b"tmpfs", bytes(where), b"tmpfs", 0, None))
        file = (where / "file").open("w")
        then(where)
        return file

    return make


def hidden(where: Path) -> Any:
    own_mounts()
    file = (where / "file").open("w")
    check(_libc.mount(b"tmpfs", bytes(where), b"tmpfs", 0, None))
    return file


def child(prepare: Callable[[], Any]) -> Maker:
    """Have a child prepare itself, and wait until it has."""

    def make(_: Path) -> int:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            prepare()
            os.write(writer, b"x")
            os.close(writer)
            os.close(reader)
            while True:
                signal.pause()
        os.close(writer)
        assert os.read(reader, 1)
        os.close(reader)
        return pid

    return make


def apart(flags: int) -> Callable[[], None]:
    return lambda: check(_libc.unshare(flags))


def later_apart(_: Path) -> bool:
    check(_libc.unshare(NEWTIME))
    return True


def traced(_: Path) -> int:
    pid = child(lambda: None)(_)
    check(_libc.ptrace(0x4206, pid, 0, 0x100000))  # and it ends with its tracer
    return int(pid)


def in_ones_memory(_: Path) -> Any:
    stack = ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 64)
    # It cannot be told to end with its parent, so it ends by itself.
    sleep = ctypes.cast(_libc.sleep, ctypes.c_void_p)
    check(_libc.clone(sleep, top, 0x100 | signal.SIGCHLD, ctypes.c_void_p(60)))
    return stack


MADE: dict[str, tuple[Maker, str]] = {
    "io_uring": (lambda _: ring(), "io_uring"),
    "io_uring, mapped alone": (ring_mapped, "io_uring"),
    "perf": (lambda _: perf(), "a kernel object"),
    "userfaultfd": (lambda _: call(323, 0), "a kernel object"),
    "secret": (secret, "secret memory"),
    "pidfd": (lambda _: os.pidfd_open(os.getppid()), "a pidfd of a process outside"),
    "kvm or the like": (node(0o020000, 10, 237), "a device"),
    "tun": (node(0o020000, 10, 200, os.O_RDWR), "a tunnel interface"),
    "block device": (node(0o060000, 7, 0), "a block device"),
    "mptcp, new": (lambda _: socket.socket(2, 1, MPTCP), "a Multipath TCP socket"),
    "vsock": (lambda _: socket.socket(40, 1), "a socket of another family"),
    "xdp": (lambda _: socket.socket(44, 3), "a socket of another family"),
    "ghost": (deleted(257 << 20), "a large deleted file"),
    "sysv": (sysv, "System V shared memory"),
    "queue": (queue, "a file on no mount"),
    "taken away": (
        on_a_mount(lambda where: check(_libc.umount2(bytes(where), 2))),
        "a file on no mount",
    ),
    "mount": (on_a_mount(), "a file on a mount of its own"),
    "hidden": (hidden, "a file below another mount"),
    "child's network": (child(apart(NEWNET)), "a nested namespace"),
    "child's mounts": (child(own_mounts), "a nested namespace"),
    "children's time": (later_apart, "a nested namespace"),
    "traced": (traced, "a traced process"),
    "shared memory": (in_ones_memory, "a process in its parent's memory"),
}


@pytest.mark.parametrize("name", MADE)
def test_what_criu_cannot_save_is_found(name: str, tmp_path: Path) -> None:
    make, what = MADE[name]
    with victim(make, tmp_path) as pid:
        kinds = set(found(pid, tmp_path))
    # A workload with mounts of its own that no launcher started is foreign as well.
    assert kinds - {"a foreign namespace"} == {what}


def test_what_a_process_has_started_meanwhile_is_no_stranger(tmp_path: Path) -> None:
    """The tree was read a moment before, so its newest child is not in it."""

    def append_and_fork(where: Path) -> Any:
        log = (where / "log").open("a")
        if os.fork() == 0:
            end_with_parent()
            signal.pause()
        return log

    with victim(append_and_fork, tmp_path) as pid:
        root, *children = processes.tree(pid)
        assert len(children) == 1
        assert scan([root], tmp_path) == []


def test_ends_outside_are_found(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    keep = (writer, theirs.fileno())
    writes = lambda where: (where / "log").open("a")  # noqa: E731
    try:
        with victim(writes, tmp_path, keep) as pid:
            # The log of whoever started it ends with it; that of a stranger does not.
            assert sorted(found(pid, tmp_path)) == [
                "a UNIX socket that leads outside",
                "a pipe that leads outside",
            ]
            with victim(writes, tmp_path):
                assert "a file that others append to" in found(pid, tmp_path)
            os.close(reader)
            reader = -1
            ours.close()
            # Ends that are closed for good are as they will be.
            assert found(pid, tmp_path) == []
    finally:
        for descriptor in (reader, writer, log):
            if descriptor >= 0:
                os.close(descriptor)
        theirs.close()


def many_things(where: Path) -> Any:
    """All that CRIU was seen to save, in one process."""
    epoll = select.epoll()
    pipe = os.pipe()
    epoll.register(pipe[0])
    master, slave = pty.openpty()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    locked = (where / "locked").open("w")
    fcntl.flock(locked, fcntl.LOCK_EX)
    small = deleted(1 << 20)(where)
    linked = (where / "one").open("w")
    os.link(where / "one", where / "two")
    (where / "one").unlink()
    watched = _libc.inotify_init()
    check(_libc.inotify_add_watch(watched, bytes(where), 2))
    return [
        *(epoll, pipe, master, slave, listening, locked, small, linked, watched),
        *(socket.socketpair(), socket.socket(2, 2), socket.socket(17, 3), socket.socket(2, 3, 255)),
        *(socket.socket(16, 3, 0), os.eventfd(3), call(283, 1, 0), os.memfd_create("memory")),
        *(os.pidfd_open(os.getpid()), multiprocessing.Lock(), multiprocessing.Queue()),
        *(os.open("/dev/urandom", os.O_RDONLY), os.open("/proc/self/status", os.O_RDONLY)),
        *(os.open("/proc/self/ns/net", os.O_RDONLY), mmap.mmap(-1, 4096)),
    ]


def test_what_criu_can_save_is_not_blocked(tmp_path: Path) -> None:
    with victim(many_things, tmp_path) as pid:
        assert scan(processes.tree(pid), tmp_path) == []
