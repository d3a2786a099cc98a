"""What stands in the way of a dump, judged from facts; and the facts from the kernel's texts."""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from pitstop.node.blockers import KINDS, judge, room
from pitstop.node.blockers.facts import (
    PTMX,
    Descriptor,
    Holder,
    Mapped,
    Node,
    Process,
    Room,
    Socket,
    Tree,
)
from pitstop.node.blockers.mounts import hides
from pitstop.node.blockers.reader import parse_mounts
from pitstop.node.blockers.sockets import parse_peers

ROOM = Room("/images", disk=1 << 30, memory=1 << 30, limit=None)
GPU = Node(False, (195, 0))
MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:30 / /dev/shm rw shared:4 - tmpfs tmpfs rw
31 22 0:31 / /mnt/with\\040space rw - tmpfs tmpfs rw
"""


def tree(*descriptors: Descriptor, **facts: object) -> Tree:
    process = Process(70, session=70, descriptors=descriptors, **facts)  # type: ignore[arg-type]
    return Tree(processes=(process,), room=ROOM)


def kinds(facts: Tree) -> list[str]:
    return [blocker.what for blocker in judge(facts)]


def device(path: str, number: tuple[int, int], block: bool = False) -> Descriptor:
    return Descriptor(7, path, os.O_RDWR, device=Node(block, number))


@pytest.mark.parametrize(
    ("path", "elsewhere", "of_cuda"),
    [
        ("/dev/nvidia0", "a GPU device", None),
        ("/dev/nvidiactl", "a GPU device", None),
        ("/dev/nvidia-uvm", "a GPU device", None),
        ("/dev/nvidia-uvm-tools", "a profiler of GPU memory", "a profiler of GPU memory"),
        ("/dev/nvidia-caps/nvidia-cap21", "a MIG slice", "a MIG slice"),
        *[("/dev/nvidia-caps-imex-channels/channel0", *["GPU memory shared between nodes"] * 2)],
        ("/dev/nvidia-nvswitch0", "a GPU device", "a GPU device"),
        ("/dev/infiniband/uverbs3", "an RDMA device", "an RDMA device"),
        ("/dev/gdrdrv", "a GDRCopy device", "a GDRCopy device"),
        ("/dev/dri/renderD128", *["a GPU device of another make"] * 2),
        ("/dev/kfd", *["a GPU device of another make"] * 2),
        ("/dev/vfio/vfio", "a device", "a device"),
        ("/dev/tty3", "a terminal", "a terminal"),
    ],
)
def test_devices_by_name(path: str, elsewhere: str, of_cuda: str | None) -> None:
    number = (4, 3) if "tty" in path else (240, 1)
    opened = tree(device(path, number))
    assert kinds(opened) == [elsewhere]
    mapped = tree(mapped=(Mapped("7f00-7f10", path, Node(False, number)),))
    assert kinds(mapped) == [elsewhere]
    for facts in (opened, mapped):
        expected = [of_cuda] if of_cuda else []
        assert kinds(replace(facts, cuda=frozenset({70}))) == expected
        assert kinds(replace(facts, cuda=frozenset({71}))) == [elsewhere]


@pytest.mark.parametrize("number", [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (1, 11), (10, 235)])
def test_devices_that_criu_knows(number: tuple[int, int]) -> None:
    assert kinds(tree(device("/anywhere", number))) == []
    assert kinds(tree(device("/anywhere", number, block=True))) == ["a block device"]


def test_a_terminal_needs_its_owner_in_the_tree() -> None:
    slave = device("/dev/pts/4", (136, 4))
    assert kinds(tree(slave)) == ["a terminal"]
    owner = Descriptor(8, "/dev/pts/ptmx", device=Node(False, PTMX), terminal=4)
    assert kinds(tree(slave, owner)) == []
    assert kinds(tree(slave, replace(owner, terminal=5))) == ["a terminal"]


@pytest.mark.parametrize(
    ("family", "kind", "protocol", "what"),
    [
        (socket.AF_INET, 1, 6, None),
        (socket.AF_INET6, 2, 136, None),
        (socket.AF_INET, 3, 89, None),
        (socket.AF_INET, 2, 1, "a socket of another protocol"),
        (socket.AF_INET, 1, 132, "a socket of another protocol"),
        (socket.AF_INET6, 1, 262, "a Multipath TCP socket"),
        (socket.AF_NETLINK, 3, 15, None),
        (21, 5, 0, "a socket of another family"),
        (38, 5, 0, "a socket of another family"),
    ],
)
def test_sockets(family: int, kind: int, protocol: int, what: str | None) -> None:
    facts = tree(Descriptor(3, "socket:[9]"), Descriptor(4, "socket:[9]"))
    assert kinds(facts) == [], "what could not be looked at is not judged"
    facts = replace(facts, sockets={9: Socket(family, kind, protocol)})
    assert kinds(facts) == ([what] if what else [])


@pytest.mark.parametrize(("peer", "outside"), [(None, 0), (0, 0), (9, 0), (10, 0), (11, 1)])
def test_unix_peers(peer: int | None, outside: int) -> None:
    facts = tree(Descriptor(3, "socket:[9]"), Descriptor(4, "socket:[10]"))
    sockets = {9: Socket(socket.AF_UNIX, 1, 0, peer), 10: Socket(socket.AF_UNIX, 1, 0, 9)}
    found = kinds(replace(facts, sockets=sockets))
    assert found == ["a UNIX socket that leads outside"] * outside


def test_a_log_is_a_danger_only_if_it_grows() -> None:
    facts = tree(Descriptor(3, "/var/log/all", os.O_WRONLY))
    for flags, what in ((os.O_RDWR, []), (os.O_APPEND, ["a file that others append to"])):
        assert kinds(replace(facts, outside=(Holder(5, "/var/log/all", flags),))) == what


@pytest.mark.parametrize(
    ("target", "held", "links", "blocked"),
    [
        ("/data/x (deleted)", 256 << 20, 0, False),
        ("/data/x (deleted)", (256 << 20) + 512, 0, True),
        ("/data/x (deleted)", 1 << 33, 1, False),
        ("/memfd:x (deleted)", 1 << 33, 0, False),
        ("/dev/zero (deleted)", 1 << 33, 0, False),
    ],
)
def test_ghosts(target: str, held: int, links: int, blocked: bool) -> None:
    mapped = (Mapped("7f00-7f10", target, held=held, links=links),)
    assert kinds(tree(mapped=mapped)) == (["a large deleted file"] if blocked else [])


@pytest.mark.parametrize(
    ("resident", "gpu", "free", "what"),
    [
        (900, 0, (1000, 1000, None), []),
        (950, 0, (1000, 1000, None), ["too little room"]),
        (500, 450, (1000, 1000, None), ["too little room"]),
        (0, 500, (1000, 499, None), ["too little memory"]),
        (0, 500, (1000, 1000, 499), ["too little memory"]),
        (0, 500, (1000, None, None), []),
    ],
)
def test_room(
    resident: int, gpu: int, free: tuple[int, int | None, int | None], what: list[str]
) -> None:
    facts = replace(tree(resident=resident), gpu_bytes=gpu, room=Room("/images", *free))
    assert kinds(facts) == what


def test_namespaces() -> None:
    root = Process(70, session=70, namespaces={"net": "a", "time": "t"})
    other = Process(71, parent=70, namespaces={"net": "b", "time": "t"})
    facts = Tree((root, other), ROOM, own_namespaces={"net": "x", "time": "t", "mnt": "m"})
    [blocker] = judge(facts)
    assert blocker.what == "a nested namespace"
    assert blocker.where == "pid 71"
    assert "net" in blocker.why
    facts = replace(facts, processes=(replace(root, namespaces={"mnt": "n"}),))
    assert kinds(facts) == ["a foreign namespace"]
    restored = replace(facts, processes=(replace(root, namespaces={"mnt": "m", "time": "u"}),))
    assert kinds(restored) == [], "CRIU gives a time of its own to what it restores"
    launched = replace(facts, processes=(replace(root, namespaces={"mnt": "n"}),), below_init=True)
    assert kinds(launched) == []


@pytest.mark.parametrize(
    ("path", "mount", "what"),
    [
        ("/data/x", 22, []),
        ("/dev/shm/x", 30, []),
        ("/dev/shm/x", 22, ["a file below another mount"]),
        ("/dev/shm/x (deleted)", 22, []),
        ("/dev/shmoo", 22, []),
        ("/data/x", 99, ["a file on no mount"]),
        ("/memfd:x (deleted)", 99, []),
        ("socket:[9]", 99, []),
    ],
)
def test_mounts(path: str, mount: int, what: list[str]) -> None:
    seen = parse_mounts(MOUNTS)
    facts = replace(tree(Descriptor(3, path, mount=mount), mounts=seen), own_mounts=seen)
    assert kinds(facts) == what


def test_a_mount_that_only_the_workload_has() -> None:
    seen = parse_mounts(MOUNTS)
    assert seen[2].point == "/mnt/with space"
    file = Descriptor(3, "/mnt/with space/x", mount=31)
    facts = replace(tree(file, mounts=seen), own_mounts=seen[:2])
    assert kinds(facts) == ["a file on a mount of its own"]
    assert not hides(seen, seen[2], "/mnt/with space/x")


def test_where_memory_is_accounted() -> None:
    second = "40 22 0:40 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"
    first = "41 22 0:41 /pods/p1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    assert list(room.cgroups("0::/jobs/7\n", second)) == [
        (Path("/sys/fs/cgroup/jobs/7"), Path("/sys/fs/cgroup"), True)
    ]
    own = "4:memory:/pods/p1/c\n3:cpu,cpuacct:/x\n0::/\n"
    assert list(room.cgroups(own, first)) == [
        (Path("/sys/fs/cgroup/memory/c"), Path("/sys/fs/cgroup/memory"), False)
    ]
    assert list(room.cgroups("", second)) == []


def test_answers_of_the_kernel_about_unix_sockets() -> None:
    def message(inode: int, *attributes: bytes) -> bytes:
        body = struct.pack("=BBBBIQ", 1, 1, 1, 0, inode, 0) + b"".join(attributes)
        return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body

    peer = struct.pack("=HHI", 8, 2, 77)
    name = struct.pack("=HH5sxxx", 9, 0, b"/name")
    found: dict[int, int] = {}
    assert not parse_peers(message(5, name, peer) + message(6, name), found)
    assert found == {5: 77, 6: 0}
    assert parse_peers(struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0), found)
    with pytest.raises(PermissionError):
        parse_peers(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -1), found)


def test_the_page_lists_every_kind_with_reason_and_way_out() -> None:
    page = (Path(__file__).parents[2] / "docs" / "blockers.md").read_text()
    rows = re.findall(r"^\| (a[n]? .+?|io_uring|[A-Za-z].+?) \| (.+?) \| (.+?) \|$", page, re.M)
    written = {row for row in rows if row[0] != "found"}
    assert written == {(kind.what, kind.why, kind.fix) for kind in KINDS}
    assert len({kind.what for kind in KINDS}) == len(KINDS)
