"""A real Slurm for tests: a controller and three nodes of a lab."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pitstop.fleet.slurm.scheduler import Slurm
from pitstop.fleet.transport import Completed, Transport
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from pitstop.lab.slurm import GPUS, SlurmCluster, missing_programs
from tests.rigs.lab import require_lab

CONTROLLER = "ctl"
NODES = ("n1", "n2", "n3")

__all__ = ["CONTROLLER", "GPUS", "NODES", "InNode", "SlurmRig", "require_slurm", "slurm"]


class InNode(Transport):
    """Commands inside a node of the lab, without SSH."""

    def __init__(self, node: LabNode) -> None:
        self._node = node

    def run(self, argv: Sequence[str], stdin: bytes, timeout: float) -> Completed:
        with self._node.popen(list(argv), stdin=-1, stdout=-1, stderr=-1) as process:
            out, err = process.communicate(stdin, timeout=timeout)
        return Completed(process.returncode, out, err)

    def close(self) -> None:
        """Nothing is held."""


class SlurmRig(SlurmCluster):
    """A cluster, and how pitstop sees it."""

    def __init__(self, lab: Lab, root: Path) -> None:
        super().__init__(lab, root, CONTROLLER, NODES)

    def scheduler(self) -> Slurm:
        """The cluster as pitstop sees it, from the controller's machine."""
        return Slurm(InNode(self.controller), str(self.conf))

    def reboot_node(self, name: str) -> None:
        """Wait until Slurm asks for a node's reboot, and do it."""
        asked = self.root / f"reboot.{name}"
        self.until(asked.exists, f"{name} is to be rebooted", 30)
        asked.unlink()
        self.lab.node(name).power_cut()
        self.lab.node(name).boot()
        self.start_node(name)


def require_slurm() -> None:
    """Skip on a laptop without Slurm; in CI that is a failure."""
    missing = missing_programs()
    if missing and os.environ.get("CI") == "true":
        raise RuntimeError(f"missing: {missing}")
    if missing:
        pytest.skip(f"missing: {missing}")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    """A cluster, shared by the tests of a module."""
    require_lab()
    require_slurm()
    root = tmp_path_factory.mktemp("slurm")
    with Lab(tmp_path_factory.mktemp("lab"), [CONTROLLER, *NODES]) as lab:
        rig = SlurmRig(lab, root)
        try:
            yield rig
        finally:
            rig.close()
