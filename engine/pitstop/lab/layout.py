"""Where a lab keeps things, and the records by which another process finds it again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pitstop.lab.errors import LabError

NETNS_DIR = Path("/run/netns")
REGISTRY = Path("/run/pitstop-labs")
SUBNET = "198.18.0"
SSH_PORT = 22
MOST_NODES = 200

# The root becomes part of the configuration of sshd and of the node engine's state
# directory: it must be free of anything that those would read as more than a path.
_SAFE_PATH = re.compile(r"/[A-Za-z0-9._/-]+\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_VALUE = re.compile(r"[A-Za-z0-9._/:,=+@ -]*\Z")
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What one node is made from.

    Attributes:
        environment: more variables for every session, and for what `LabNode` starts.
        mounts: paths of the node, each with the path of the machine that it shows. A device
            below /dev is copied; the node then has a /dev of its own, as a container has.
    """

    lab: str
    name: str
    index: int
    directory: str
    boot_delay: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Its address, known only inside the lab."""
        return f"{SUBNET}.{10 + self.index}"

    @property
    def netns(self) -> str:
        """The name of its network namespace."""
        return f"pitstop-{self.lab}-{self.name}"

    def path(self, name: str) -> Path:
        """A file of this node."""
        return Path(self.directory) / name

    @property
    def root(self) -> Path:
        """The lab's directory."""
        return Path(self.directory).parent.parent

    def save(self) -> None:
        """Write it where its supervisor and pid 1 read it."""
        write_json(self.path("node.json"), asdict(self))

    @staticmethod
    def load(directory: Path) -> NodeSpec:
        """Read it back."""
        return NodeSpec(**json.loads((directory / "node.json").read_text()))


@dataclass(frozen=True, slots=True)
class LabRecord:
    """One lab: which directory, which nodes, and who made it."""

    lab: str
    root: str
    nodes: tuple[str, ...]
    creator: int
    creator_started: str

    @property
    def switch(self) -> str:
        """The network namespace of the switch; no node can have that name."""
        return f"pitstop-{self.lab}.switch"

    def netns_names(self) -> tuple[str, ...]:
        """All network namespaces of the lab."""
        return (self.switch, *(f"pitstop-{self.lab}-{name}" for name in self.nodes))

    def creator_is_gone(self) -> bool:
        """Whether the process that made the lab has ended."""
        return started(self.creator) != self.creator_started

    def save(self) -> None:
        """Write it into the lab's directory, and where `cleanup` looks."""
        REGISTRY.mkdir(mode=0o700, exist_ok=True)
        write_json(REGISTRY / f"{self.lab}.json", asdict(self))
        write_json(Path(self.root) / "lab.json", asdict(self))

    def forget(self) -> None:
        """Remove both files."""
        (Path(self.root) / "lab.json").unlink(missing_ok=True)
        (REGISTRY / f"{self.lab}.json").unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> LabRecord:
        """Read it back.

        Raises:
            LabError: there is no lab.
        """
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            raise LabError(str(path), "there is no lab here") from None
        return LabRecord(**{**data, "nodes": tuple(data["nodes"])})


def started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def check_names(root: Path, names: tuple[str, ...]) -> None:
    """Refuse what cannot become a path, a hostname or an address.

    Raises:
        LabError: something is unfit, with the reason.
    """
    if not _SAFE_PATH.match(str(root)):
        raise LabError(str(root), "a lab's directory may hold letters, digits, '.', '_', '-'")
    for name in names:
        if not _NODE_NAME.match(name):
            raise LabError(repr(name), "not a hostname")
    if not 0 < len(names) <= MOST_NODES or len(set(names)) != len(names):
        raise LabError(", ".join(names), f"1 to {MOST_NODES} different names are needed")


def check_nodes(nodes: Iterable[NodeSpec]) -> None:
    """Refuse what sshd's configuration cannot hold, or what cannot be mounted.

    Raises:
        LabError: something is unfit, with the reason.
    """
    for node in nodes:
        for name, value in node.environment.items():
            if not _VARIABLE.match(name) or not _VALUE.match(value):
                raise LabError(node.name, f"not fit for its environment: {name}={value!r}")
        for target, source in node.mounts.items():
            if not (_SAFE_PATH.match(target) and Path(source).exists()):
                raise LabError(node.name, f"{target} cannot show {source}: there is no such path")


def write_json(path: Path, data: object) -> None:
    """Replace a file as a whole: a reader sees the old or the new one."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(data))
    new.replace(path)
