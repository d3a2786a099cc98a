"""Pid 1 of a node: makes the node's namespaces its own, starts sshd, reaps.

`python -m pitstop.lab.init NODE_DIRECTORY READY_FD`, started by the node's supervisor as the
first process of a new pid namespace. One byte is written to READY_FD once sshd listens.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

from pitstop.lab.errors import LabError
from pitstop.lab.keys import READY_FIFO
from pitstop.lab.layout import NETNS_DIR, NodeSpec
from pitstop.lab.network import ip
from pitstop.lab.reboot import MARK, pid_namespace
from pitstop.lab.syscalls import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWUTS,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    die_with_parent,
    mount,
    setns,
    unshare,
)

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
SSHD_TIMEOUT = 20.0
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


def enter_namespaces(node: NodeSpec) -> None:
    """Leave the machine's namespaces; the network one exists before and after the node."""
    setns(str(NETNS_DIR / node.netns), CLONE_NEWNET)
    unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP)
    socket.sethostname(node.name)


def mount_all(node: NodeSpec) -> None:
    """Give the node its own view of what a machine keeps in memory."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)  # first: nothing below may reach the machine
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    if any(target.startswith("/dev/") for target in node.mounts):
        make_dev()
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount(str(node.path("boot_id")), "/proc/sys/kernel/random/boot_id", None, MS_BIND)
    mount(str(node.root / "hosts"), "/etc/hosts", None, MS_BIND)
    for directory in ("/run/sshd", "/run/lock"):
        os.mkdir(directory, 0o755)
    for target, source in node.mounts.items():
        show(source, target)
    MARK.write_text(pid_namespace())


def make_dev() -> None:
    """Cover /dev, which the machine shares, by one with what every program may expect there."""
    devices = {name: os.stat(f"/dev/{name}") for name in DEVICES}
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755")
    for name, status in devices.items():
        copy_device(f"/dev/{name}", status)
    for directory in ("/dev/shm", "/dev/pts"):  # noqa: S108
        os.mkdir(directory)
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=666")
    for name, target in LINKS.items():
        os.symlink(target, f"/dev/{name}")


def show(source: str, target: str) -> None:
    """Let a path of the node show one of the machine.

    Where it is missing it is made, which works below /run and in a /dev of the node's own.
    """
    status = os.stat(source)
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        copy_device(target, status)
        return
    if stat.S_ISDIR(status.st_mode):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        Path(target).touch()
    mount(source, target, None, MS_BIND | MS_REC)


def copy_device(path: str, status: os.stat_result) -> None:
    """Make another name for a device. A bind mount of its node may lie on a file system that
    is mounted without devices.
    """
    os.mknod(path, stat.S_IFMT(status.st_mode), status.st_rdev)
    os.chmod(path, stat.S_IMODE(status.st_mode))


def reopen_stdio(node: NodeSpec) -> None:
    """Open stdio again inside the node: CRIU cannot dump a file of a foreign mount."""
    null = os.open(os.devnull, os.O_RDWR)
    console = os.open(node.path("console.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(null, 0)
    os.dup2(console, 1)
    os.dup2(console, 2)
    os.close(null)
    os.close(console)


def bring_up_network() -> None:
    """Plug in, and forget firewall rules: a machine that booted has none."""
    nft = shutil.which("nft", path="/usr/sbin:/usr/bin")
    if nft:
        subprocess.run([nft, "flush", "ruleset"], check=True)
    ip(["-batch", "-"], ["link set lo up", "link set eth0 up"])


def start_sshd(node: NodeSpec) -> None:
    """Start sshd and return once it listens.

    Raises:
        LabError: it ended, or took too long.
    """
    if SSHD is None:
        raise LabError(node.name, "sshd is not installed")
    os.mkfifo(READY_FIFO, 0o600)
    fifo = os.open(READY_FIFO, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    # The process lives as long as the node does; pid 1 reaps it like any other.
    sshd = os.posix_spawn(
        SSHD, [SSHD, "-D", "-e", "-f", str(node.path("sshd_config"))], dict(os.environ)
    )
    ended = os.pidfd_open(sshd)
    poll = select.poll()
    poll.register(fifo, select.POLLIN)
    poll.register(ended, select.POLLIN)
    events = dict(poll.poll(SSHD_TIMEOUT * 1000))
    os.close(ended)
    if ended in events:
        raise LabError(node.name, "sshd ended at once; its words are in console.log")
    if fifo not in events:
        raise LabError(node.name, f"sshd did not listen within {SSHD_TIMEOUT:.0f} s")
    os.close(fifo)


def reap_forever() -> None:
    """Collect every process that ends; this process never does by itself."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        # Without any child, the next one to end is an orphan that came here later.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                continue
        signal.sigwait({signal.SIGCHLD})


def main() -> None:
    """Boot."""
    directory, ready = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent()
    os.set_inheritable(ready, False)
    node = NodeSpec.load(directory)
    enter_namespaces(node)
    mount_all(node)
    reopen_stdio(node)
    bring_up_network()
    start_sshd(node)
    os.write(ready, b"1")
    os.close(ready)
    reap_forever()


if __name__ == "__main__":
    main()
