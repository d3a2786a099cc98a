"""Where the engine keeps things on a node."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pitstop.images.durable import make_directory
from pitstop.model.errors import BadInput

DEFAULT = "/var/lib/pitstop"

# CRIU starts its action script through a shell, so the path of that script, which lies
# below the state directory, must be free of anything a shell would read.
_SAFE = re.compile(r"/[A-Za-z0-9._/-]+\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")


@dataclass(frozen=True, slots=True)
class StateDir:
    """The engine's directory on one node."""

    root: Path

    @staticmethod
    def at(text: str | None = None) -> StateDir:
        """Open the directory given, or named by PITSTOP_STATE_DIR, or the default.

        Raises:
            BadInput: the path has characters that are not safe here.
        """
        path = text or os.environ.get("PITSTOP_STATE_DIR") or DEFAULT
        if not _SAFE.match(path):
            raise BadInput(
                path, "a state directory is an absolute path of letters, digits, '.', '_', '-'"
            )
        return StateDir(Path(path))

    def workload(self, name: str) -> Path:
        """The directory of one workload, made if it is not there."""
        return self._made(self.root / "workloads" / checked(name))

    def images(self, workload: str) -> Path:
        """The directory of a workload's checkpoints."""
        return self._made(self.root / "images" / checked(workload))

    def operations(self) -> Path:
        """The directory of operations."""
        return self._made(self.root / "ops")

    def keys(self) -> Path:
        """The directory of signing keys."""
        return self._made(self.root / "keys")

    @property
    def quarantine(self) -> Path:
        """The file that marks this node as not fit for work."""
        return self.root / "quarantine.json"

    def _made(self, path: Path) -> Path:
        make_directory(path)
        return path


def checked(name: str) -> str:
    """Return a name that is safe as one path component.

    Raises:
        BadInput: it is not.
    """
    if not _NAME.match(name):
        raise BadInput(repr(name), "not a name of letters, digits, '.', '_', '-'")
    return name


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
