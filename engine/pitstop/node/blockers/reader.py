"""Read the facts of a tree from /proc, without touching a process of it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

from pitstop.node import processes
from pitstop.node.blockers import room, sockets
from pitstop.node.blockers.facts import (
    Descriptor,
    Holder,
    Mapped,
    Mount,
    Node,
    Process,
    Tree,
    inode_of,
)
from pitstop.node.processes import Identity

_GONE = (FileNotFoundError, ProcessLookupError)
_SLOW = re.compile(r"nfs|fuse|cifs|smb|ceph|lustre|gpfs|beegfs|9p|autofs|afs|gfs|ocfs")
"""File systems whose server may not answer: nothing on them is looked at, only its name."""
_DELETED = " (deleted)"
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_VM = 1
_libc = ctypes.CDLL(None, use_errno=True)


def read(
    tree: Sequence[Identity], images: Path, cuda: Collection[int] = (), gpu_bytes: int = 0
) -> Tree:
    """Return the facts of a tree. A process that ends meanwhile is left out."""
    found = [process for identity in tree if (process := read_process(identity.pid)) is not None]
    if not found:  # the caller notices by the identities
        found = [Process(tree[0].pid)]
    members = {process.pid for process in found}
    return Tree(
        processes=tuple(found),
        room=room.read(found, images, cuda),
        sockets=sockets.read(found),
        outside=tuple(_outside(found, members)),
        below_init=_is_init(found[0].parent),
        own_namespaces=_namespaces("self"),
        own_mounts=_mounts("self"),
        cuda=frozenset(cuda),
        gpu_bytes=gpu_bytes,
    )


def read_process(pid: int) -> Process | None:
    """Return the facts of one process; None when it is gone."""
    try:
        status = _status(pid)
        mounts = _mounts(str(pid))
        slow = frozenset(mount.number for mount in mounts if _SLOW.search(mount.kind))
        slow_devices = frozenset(mount.device for mount in mounts if _SLOW.search(mount.kind))
        return Process(
            pid=pid,
            parent=int(status.get("PPid", "0")),
            session=processes.session_of(pid),
            tracer=int(status.get("TracerPid", "0")),
            namespaces=_namespaces(str(pid)),
            root=os.readlink(f"/proc/{pid}/root"),
            resident=sum(
                int(status.get(name, "0 kB").split()[0]) << 10 for name in ("VmRSS", "HugetlbPages")
            ),
            shares_memory=_same_memory(pid, int(status.get("PPid", "0"))),
            descriptors=tuple(_descriptors(pid, slow)),
            mapped=tuple(_mapped(pid, slow_devices)),
            mounts=mounts,
        )
    except _GONE:
        return None


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Parse mountinfo (proc_pid_mountinfo(5))."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if separator and len(fields) >= 5:
            number, _parent, device, root, point = fields[:5]
            kind = right.split(" ")[0]
            found.append(Mount(int(number), device, _plain(root), _plain(point), kind))
    return tuple(found)


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _is_init(pid: int) -> bool:
    try:
        return _status(pid).get("NSpid", "").split()[1:][-1:] == ["1"]
    except _GONE:
        return False


def _same_memory(pid: int, parent: int) -> bool:
    """Ask kcmp(2); where it does not answer, two processes have memory of their own."""
    number = _SYS_KCMP.get(os.uname().machine)
    return number is not None and _libc.syscall(number, pid, parent, _KCMP_VM, 0, 0) == 0


def _mounts(process: str) -> tuple[Mount, ...]:
    try:
        return parse_mounts(Path(f"/proc/{process}/mountinfo").read_text(errors="replace"))
    except OSError as error:
        if error.errno == errno.EINVAL:  # it is ending, and has left its mounts already
            raise ProcessLookupError(error.errno, f"pid {process} is ending") from error
        raise


def _namespaces(process: str) -> dict[str, str]:
    directory = f"/proc/{process}/ns"
    found = {}
    for kind in os.listdir(directory):
        with suppress(*_GONE):  # pid_for_children is empty until a first child is there
            found[kind] = os.readlink(f"{directory}/{kind}")
    return found


def _descriptors(pid: int, slow: Collection[int]) -> Iterator[Descriptor]:
    directory = f"/proc/{pid}/fd"
    for entry in os.listdir(directory):
        try:
            target = os.readlink(f"{directory}/{entry}")
            # Sockets and most kernel objects have nothing there that a rule asks for.
            plain = target.startswith(("socket:", "anon_inode:")) and "pidfd" not in target
            info = {} if plain else _pairs(f"/proc/{pid}/fdinfo/{entry}")
            mount = int(info["mnt_id"]) if "mnt_id" in info else None
            device = held = links = None
            if target.startswith("/") and mount not in slow:
                device, held, links = _look(f"{directory}/{entry}", target)
        except _GONE:
            continue  # closed while we looked
        yield Descriptor(
            number=int(entry),
            target=target,
            flags=int(info.get("flags", "0"), 8),
            mount=mount,
            device=device,
            pid=int(info["Pid"]) if "Pid" in info else None,
            terminal=int(info["tty-index"]) if "tty-index" in info else None,
            held=held,
            links=links,
        )


def _pairs(path: str) -> dict[str, str]:
    # Of thousands of small files: without the layers of open().
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _look(path: str, target: str) -> tuple[Node | None, int | None, int | None]:
    """Return device, bytes held and links of an open file, each None where it means nothing."""
    found = os.stat(path)
    block = stat.S_ISBLK(found.st_mode)
    if block or stat.S_ISCHR(found.st_mode):
        return Node(block, (os.major(found.st_rdev), os.minor(found.st_rdev))), None, None
    if target.endswith(_DELETED) and stat.S_ISREG(found.st_mode):
        return None, found.st_blocks * 512, found.st_nlink
    return None, None, None


def _mapped(pid: int, slow_devices: Collection[str]) -> Iterator[Mapped]:
    """Yield every file once that is mapped, with the first of its areas."""
    seen = set()
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[5].startswith("["):
            continue
        area, _flags, _offset, device, inode, target = fields
        if (device, inode, target) in seen:
            continue
        seen.add((device, inode, target))
        begin, _, end = area.partition("-")
        node = held = links = None
        if target.startswith("/") and _decimal(device) not in slow_devices:
            # The kernel's links have no leading zeros.
            link = f"/proc/{pid}/map_files/{int(begin, 16):x}-{int(end, 16):x}"
            with suppress(*_GONE, PermissionError):  # unmapped, or a kind that cannot be opened
                node, held, links = _look(link, target)
        yield Mapped(area, target, node, held, links)


def _decimal(device: str) -> str:
    """Return a device number of maps, which is hexadecimal, as mountinfo has it."""
    major, _, minor = device.partition(":")
    return f"{int(major, 16)}:{int(minor, 16)}"


def one_sided_pipes(found: Iterable[Process]) -> set[str]:
    """Return the pipes of which a tree holds one end only."""
    reads: set[str] = set()
    writes: set[str] = set()
    for process in found:
        for descriptor in process.descriptors:
            if inode_of(descriptor.target, "pipe") is not None:
                both = descriptor.flags & os.O_ACCMODE == os.O_RDWR
                if both or descriptor.writes:
                    writes.add(descriptor.target)
                if both or not descriptor.writes:
                    reads.add(descriptor.target)
    return reads ^ writes


def _outside(found: Sequence[Process], members: Set[int]) -> Iterator[Holder]:
    """Look through all other processes, and only if the tree has something to ask about."""
    pipes = one_sided_pipes(found)
    files = {
        (descriptor.target, process.pid, descriptor.number)
        for process in found
        for descriptor in process.descriptors
        if descriptor.writes
        and descriptor.target.startswith("/")
        and descriptor.device is None
        and descriptor.held is None
        and not descriptor.target.startswith(("/dev/", "/proc/", "/sys/", "/memfd:"))
    }
    ours: Mapping[str, tuple[int, int]] = {path: (pid, number) for path, pid, number in files}
    if not pipes and not ours:
        return
    above = _above(found[0].pid)
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in members:
            continue
        for holder in _held_outside(int(entry), pipes, {} if int(entry) in above else ours):
            # One that a process of the tree has started since the tree was read is no stranger.
            if not members & _above(holder.pid):
                yield holder


def _held_outside(
    pid: int, pipes: Collection[str], ours: Mapping[str, tuple[int, int]]
) -> Iterator[Holder]:
    directory = f"/proc/{pid}/fd"
    try:
        for number in os.listdir(directory):
            target = os.readlink(f"{directory}/{number}")
            if target not in pipes and target not in ours:
                continue
            flags = int(_pairs(f"/proc/{pid}/fdinfo/{number}").get("flags", "0"), 8)
            if target in ours:
                holder, descriptor = ours[target]
                # Of one name in two mount namespaces: is it one file?
                if not os.path.samefile(f"/proc/{holder}/fd/{descriptor}", f"{directory}/{number}"):
                    continue
            yield Holder(pid, target, flags)
    except (*_GONE, PermissionError):
        return  # it ended, or is not for us to look at


def _above(pid: int) -> set[int]:
    """Return the ancestors of a process: they end, or wait, with it."""
    found: set[int] = set()
    while (pid := processes.parent_of(pid)) > 1 and pid not in found:
        found.add(pid)
    return found
