"""Keys and the sshd configuration of a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pitstop.lab.errors import LabError
from pitstop.lab.layout import SSH_PORT, NodeSpec

# A FIFO: sshd writes its pid here once it listens, and pid 1 waits for that.
READY_FIFO = "/run/sshd-ready"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_key(path: Path, comment: str) -> None:
    """Make an ed25519 key pair without a passphrase, the private half 0600.

    Raises:
        LabError: ssh-keygen is missing or failed.
    """
    try:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise LabError(str(path), f"no key could be made: {error}") from error


def public_line(path: Path) -> str:
    """The type and the key of a pair, without its comment."""
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def search_path() -> str:
    """The PATH of a session on a node: the commands of this installation come first."""
    return f"{Path(sys.executable).parent}:{_SYSTEM_PATH}"


def sshd_config(node: NodeSpec) -> str:
    """A server that takes only the lab's key, and is otherwise like any other."""
    # SHLVL: bash reads the user's .bashrc for commands from sshd, but not in a shell within a
    # shell. What people put there is slow, and may wait for locks that a power cut left behind.
    environment = f'PATH="{search_path()}" PITSTOP_STATE_DIR="{node.path("state")}" SHLVL=2'
    environment += "".join(f' {name}="{value}"' for name, value in node.environment.items())
    lines = [
        f"Port {SSH_PORT}",
        "AddressFamily inet",
        f"HostKey {node.path('host_key')}",
        f"PidFile {READY_FIFO}",
        f"AuthorizedKeysFile {node.root / 'client_key.pub'}",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "Subsystem sftp internal-sftp",
        f"SetEnv {environment}",
        "UseDNS no",
        "PrintLastLog no",
        "PrintMotd no",
        "MaxStartups 100",
        "MaxSessions 100",
    ]
    return "".join(f"{line}\n" for line in lines)
