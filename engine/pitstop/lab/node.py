"""One node of a lab, as a test or the demo sees it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pitstop.lab.control import Power, ask
from pitstop.lab.errors import LabError
from pitstop.lab.keys import public_line
from pitstop.lab.layout import NETNS_DIR, SSH_PORT, NodeSpec

_TIMEOUT = 60.0


class LabNode:
    """A machine made of namespaces.

    Attributes:
        name: its hostname.
        address: its address inside the lab.
        port: where its sshd listens.
        netns: the path of its network namespace, which is there also while it is off.
        state_dir: the node engine's state; it survives reboots.
        identity_file: the private key that its sshd accepts.
        host_key: the public half of its own host key.
        proxy_command: connects stdin and stdout to its sshd, from the machine's network.
        reboot_command: restarts it, run inside; takes `--poweroff` and `--delay SECONDS`.
    """

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.address = spec.address
        self.port = SSH_PORT
        self.netns = str(NETNS_DIR / spec.netns)
        self.state_dir = spec.path("state")
        self.identity_file = spec.root / "client_key"
        self.host_key = public_line(spec.path("host_key"))
        self.proxy_command: tuple[str, ...] = (
            *(sys.executable, "-I", "-m", "pitstop.lab.dial"),
            *(self.netns, self.address, str(self.port)),
        )
        self.reboot_command: tuple[str, ...] = (sys.executable, "-I", "-m", "pitstop.lab.reboot")

    @property
    def known_hosts_line(self) -> str:
        """What pins its host key in a known_hosts file."""
        return f"{self.address} {self.host_key}"

    @property
    def power(self) -> Power:
        """Whether it is on, with its pid 1 and boot id."""
        return self._ask("status")

    @property
    def pid(self) -> int:
        """Its pid 1, as the machine counts.

        Raises:
            LabError: it is off.
        """
        power = self.power
        if not power.on:
            raise LabError(self.name, "the node is off")
        return power.pid

    @property
    def boot_id(self) -> str:
        """The id of this boot, or of the last one while it is off."""
        return self.power.boot_id

    @property
    def console(self) -> str:
        """What its pid 1 and sshd said."""
        return self.spec.path("console.log").read_text(errors="replace")

    def boot(self, timeout: float = _TIMEOUT) -> Power:
        """Switch the power on and wait until sshd listens; nothing happens if it is on."""
        return self._ask("boot", timeout)

    def power_cut(self, timeout: float = _TIMEOUT) -> None:
        """Take the power away: everything inside dies at once. It stays off until `boot`."""
        self._ask("cut", timeout)

    def wait_boot(self, after: str, timeout: float = _TIMEOUT) -> Power:
        """Wait until it has booted with another boot id than the one given."""
        return self._ask("wait-boot", timeout, after=after)

    def wait_off(self, timeout: float = _TIMEOUT) -> None:
        """Wait until it has switched itself off."""
        self._ask("wait-off", timeout)

    def wait_ssh(self, timeout: float = _TIMEOUT) -> None:
        """Wait until it is on and its sshd greets.

        Raises:
            LabError: not within the time.
        """
        deadline = time.monotonic() + timeout
        self._ask("wait-boot", timeout, after="")
        greeting = self._greeting(max(0.1, deadline - time.monotonic()))
        if not greeting.startswith(b"SSH-2.0-"):
            raise LabError(self.name, f"no greeting from sshd: {greeting!r}")

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command inside the node, in all of its namespaces.

        CRIU cannot dump files that were opened outside: a process that is to be saved opens
        its own stdio in there, as `pitstop-node launch` does.
        """
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-C"]
        return subprocess.Popen([*enter, "--", *argv], **self._with_environment(options))

    def run(self, argv: Sequence[str], timeout: float = _TIMEOUT) -> str:
        """Run a command inside the node and return its output.

        Raises:
            LabError: it failed, with what it wrote.
        """
        with self.popen(argv, stdout=-1, stderr=-1, stdin=subprocess.DEVNULL, text=True) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise LabError(self.name, f"{argv[0]} not done within {timeout:g} s") from None
        if process.returncode != 0:
            raise LabError(self.name, f"{argv[0]} ended with {process.returncode}: {err.strip()}")
        return str(out)

    def popen_net(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command only inside the node's network: it survives the node's reboot."""
        enter = ["nsenter", f"--net={self.netns}"]
        return subprocess.Popen([*enter, "--", *argv], **options)

    def _ask(self, verb: str, timeout: float = _TIMEOUT, **details: Any) -> Power:
        return ask(Path(self.spec.directory), verb, timeout, **details)

    def _with_environment(self, options: dict[str, Any]) -> dict[str, Any]:
        given = options.pop("env", None)
        node = self.spec.environment
        environment = {**node, **given} if given else {**os.environ, **node}
        environment.setdefault("PITSTOP_STATE_DIR", str(self.state_dir))
        return {**options, "env": environment}

    def _greeting(self, timeout: float) -> bytes:
        """What sshd says first, through the same way in as any client's."""
        with subprocess.Popen(
            self.proxy_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as dial:
            try:
                descriptor = dial.stdout.fileno() if dial.stdout else -1
                ready, _, _ = select.select([descriptor], [], [], timeout)
                return os.read(descriptor, 255) if ready else b""
            finally:
                dial.kill()
