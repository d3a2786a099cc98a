"""A lab: some nodes and the switch between them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pitstop.lab import network
from pitstop.lab.errors import LabError
from pitstop.lab.keys import make_key, sshd_config
from pitstop.lab.layout import LabRecord, NodeSpec, check_names, check_nodes, started
from pitstop.lab.node import LabNode

TOOLS = ("ip", "nsenter", "ssh-keygen", "sshd")


class Lab:
    """Nodes made of namespaces. Use it as a context manager, or `start` and `close` it.

    The nodes go on when the process that started them is killed: `Lab.attach` finds them
    again, and `python -m pitstop.lab cleanup` removes what nobody came back for.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        boot_delays: Mapping[str, float] | None = None,
        *,
        environments: Mapping[str, Mapping[str, str]] | None = None,
        mounts: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Prepare; nothing is made before `start`.

        Args:
            root: a directory for the lab, made if it is not there.
            names: the hostnames of the nodes.
            boot_delays: seconds a node takes from power to boot, except for its first one.
            environments: by node, more variables of its sessions and of what `LabNode` starts.
            mounts: by node, its paths with what they show of the machine (see `NodeSpec`).

        Raises:
            LabError: a name, a variable or a mount is unfit.
        """
        root = root.resolve()
        check_names(root, tuple(names))
        self.root = root
        self.record = LabRecord(
            uuid.uuid4().hex[:8], str(root), tuple(names), os.getpid(), started(os.getpid())
        )
        delays, variables, shown = boot_delays or {}, environments or {}, mounts or {}
        self._specs = [
            NodeSpec(
                self.record.lab,
                name,
                index,
                str(root / "nodes" / name),
                delays.get(name, 0.0),
                dict(variables.get(name, {})),
                dict(shown.get(name, {})),
            )
            for index, name in enumerate(names)
        ]
        check_nodes(self._specs)
        self._nodes: dict[str, LabNode] = {}
        self._supervisors: list[subprocess.Popen[bytes]] = []

    @classmethod
    def attach(cls, root: Path) -> Lab:
        """Open a running lab again, from its directory.

        Whoever attaches to a lab whose creator is gone becomes responsible for it.

        Raises:
            LabError: there is none.
        """
        record = LabRecord.load(root.resolve() / "lab.json")
        lab = cls(root, record.nodes)
        if record.creator_is_gone():
            record = LabRecord(
                record.lab, record.root, record.nodes, os.getpid(), started(os.getpid())
            )
            record.save()
        lab.record = record
        lab._specs = [NodeSpec.load(lab.root / "nodes" / name) for name in record.nodes]
        lab._open_nodes()
        return lab

    @property
    def nodes(self) -> tuple[LabNode, ...]:
        """All nodes, in the order of their names' list."""
        return tuple(self._nodes.values())

    def node(self, name: str) -> LabNode:
        """One node.

        Raises:
            LabError: no node has that name, or the lab is not started.
        """
        if name not in self._nodes:
            raise LabError(name, f"no such node; there are: {', '.join(self._nodes) or 'none'}")
        return self._nodes[name]

    def start(self) -> Self:
        """Make the network and boot all nodes; returns when all of them take SSH.

        Raises:
            LabError: it could not be done; nothing is left behind.
        """
        check_machine()
        if (self.root / "lab.json").exists():
            raise LabError(str(self.root), "a lab is here already")
        atexit.register(self._close_at_exit)
        try:
            self._lay_out()
            network.create(self.record, self._specs)
            self._boot_all()
        except BaseException:
            self.close()
            raise
        self._open_nodes()
        return self

    def close(self) -> None:
        """End every process of the lab and remove its namespaces. Its directory stays."""
        atexit.unregister(self._close_at_exit)
        network.destroy(self.record)
        for supervisor in self._supervisors:
            supervisor.wait()
        self._supervisors.clear()
        self._nodes.clear()
        self.record.forget()

    def __enter__(self) -> Self:
        return self if self._nodes else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_nodes(self) -> None:
        self._nodes = {spec.name: LabNode(spec) for spec in self._specs}

    def _close_at_exit(self) -> None:
        if os.getpid() == self.record.creator:  # not in a fork of it
            self.close()

    def _lay_out(self) -> None:
        """Write everything the nodes read."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.record.save()
        hosts = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in self._specs)]
        (self.root / "hosts").write_text("".join(f"{line}\n" for line in hosts))
        _make_key_once(self.root / "client_key", f"pitstop lab {self.record.lab}")
        for node in self._specs:
            node.path("state").mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_key_once(node.path("host_key"), node.name)
            node.path("sshd_config").write_text(sshd_config(node))
            node.save()

    def _boot_all(self) -> None:
        waits: list[tuple[NodeSpec, int]] = []
        for node in self._specs:
            ready, child_ready = os.pipe()
            waits.append((node, ready))
            with node.path("supervisor.log").open("ab") as log:
                self._supervisors.append(_supervisor(node, child_ready, log.fileno()))
            os.close(child_ready)
        answers = {node.name: _read_all(ready) for node, ready in waits}
        failures = {name: answer for name, answer in answers.items() if answer != b"1"}
        for name, answer in failures.items():
            log_text = (self.root / "nodes" / name / "supervisor.log").read_text(errors="replace")
            raise LabError(name, answer.decode(errors="replace") or log_text[-2000:])


def _supervisor(node: NodeSpec, ready: int, log: int) -> subprocess.Popen[bytes]:
    """Start the power supply of a node, in a session that no terminal can interrupt."""
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "pitstop.lab.supervisor", node.directory, str(ready)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(ready,),
        start_new_session=True,
        cwd="/",
    )


def _read_all(descriptor: int) -> bytes:
    """Read until the other end is closed, which a supervisor does when it ends, too."""
    with open(descriptor, "rb") as stream:
        return stream.read()


def _make_key_once(path: Path, comment: str) -> None:
    """A lab started again in the same directory keeps its keys, as machines do."""
    if not path.exists():
        make_key(path, comment)


def check_machine() -> None:
    """Refuse a machine that cannot hold a lab.

    Raises:
        LabError: what it lacks.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_search()) is None]
    if os.geteuid() != 0:
        raise LabError("the lab", "needs root, for namespaces and mounts")
    if missing:
        raise LabError("the lab", f"missing: {', '.join(missing)}", "run scripts/install-system")


def _search() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
