"""A real Slurm: a controller and three nodes of a lab, each node with GPUs that are device files.

Debian 12's packages, 22.05. Every node has its own hostname, so one build serves them all; the
daemons share the lab's directory. A node that loses power takes its slurmd with it.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pitstop.fleet.slurm.scheduler import Slurm
from pitstop.fleet.transport import Completed, Transport
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from tests.rigs.engine import until
from tests.rigs.lab import require_lab

CONTROLLER = "ctl"
NODES = ("n1", "n2", "n3")
GPUS = 4
PROGRAMS = ("slurmctld", "slurmd", "munged", "squeue", "scontrol", "sbatch")

_CONF = """
ClusterName=lab
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%h
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%h.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=20
RebootProgram={root}/reboot
ResumeTimeout=60
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName={nodes} CPUs=8 RealMemory=1000 Gres=gpu:fake:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_GRES = "AutoDetect=off\nNodeName={nodes} Name=gpu Type=fake File={root}/dev/gpu[0-{last}]\n"


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


class SlurmRig:
    """A running cluster.

    Attributes:
        root: settings, logs and state; `slurm.conf` is in it.
    """

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab = lab
        self.root = root
        self._lay_out()
        ctl = lab.node(CONTROLLER)
        self._daemons = [
            self._daemon(
                ctl,
                *("munged", "--foreground", "--force", f"--key-file={root}/munge.key"),
                *(f"--socket={root}/munge.sock", f"--log-file={root}/munged.log"),
                *("--pid-file=/run/munged.pid", f"--seed-file={root}/munge.seed"),
            ),
        ]
        until((root / "munge.sock").exists, "munged listens")
        self._daemons.append(self._daemon(ctl, "slurmctld", "-D"))
        for name in NODES:
            self.start_node(name)
        until(self._all_idle, "three idle nodes", 60)

    @property
    def conf(self) -> Path:
        return self.root / "slurm.conf"

    def scheduler(self) -> Slurm:
        """The cluster as pitstop sees it, from the controller's machine."""
        return Slurm(InNode(self.lab.node(CONTROLLER)), str(self.conf))

    def start_node(self, name: str) -> None:
        """Start a node's slurmd, as its boot would: it says that the node has booted."""
        self._daemons.append(self._daemon(self.lab.node(name), "slurmd", "-D", "-b"))

    def reboot_node(self, name: str) -> None:
        """Wait until Slurm asks for a node's reboot, and do it."""
        asked = self.root / f"reboot.{name}"
        until(asked.exists, f"{name} is to be rebooted", 30)
        asked.unlink()
        self.lab.node(name).power_cut()
        self.lab.node(name).boot()
        self.start_node(name)

    def run(self, *argv: str) -> str:
        """Run a command of Slurm on the controller, as an administrator would."""
        return self.lab.node(CONTROLLER).run(["env", f"SLURM_CONF={self.conf}", *argv], timeout=30)

    def submit(self, *options: str, script: str = "sleep 1000") -> str:
        """Submit a batch script and return the job's id."""
        return self.run(
            *("sbatch", "--parsable", f"--output={self.root}/%j.out", "--chdir=/", *options),
            *("--wrap", script),
        ).strip()

    def wait_job(self, job: str, state: str) -> None:
        def there() -> bool:
            return self.run("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip() == state

        until(there, f"job {job} is {state}", 30)

    def close(self) -> None:
        """Nothing but the lab's processes is left to end: closing the lab ends them."""
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()

    def _lay_out(self) -> None:
        for directory in ("state", "spool", "dev"):
            (self.root / directory).mkdir()
        for name in NODES:
            (self.root / "spool" / name).mkdir()
        nodes = f"n[1-{len(NODES)}]"
        values = {"controller": CONTROLLER, "root": self.root, "nodes": nodes, "gpus": GPUS}
        self.conf.write_text(_CONF.format(**values))
        (self.root / "gres.conf").write_text(_GRES.format(**values, last=GPUS - 1))
        (self.root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        program = self.root / "reboot"
        program.write_text(f'#!/bin/sh\ntouch "{self.root}/reboot.$(hostname)"\n')
        program.chmod(0o755)
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for number in range(GPUS):
            os.mknod(self.root / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))

    def _daemon(self, node: LabNode, *argv: str) -> subprocess.Popen[bytes]:
        with (self.root / f"{argv[0]}.{node.name}.out").open("ab") as output:
            return node.popen(
                ["env", f"SLURM_CONF={self.conf}", *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _all_idle(self) -> bool:
        for daemon in self._daemons:
            assert daemon.poll() is None, f"{daemon.args!r} ended; see {self.root}"
        asked = self.lab.node(CONTROLLER).popen(
            ["env", f"SLURM_CONF={self.conf}", "sinfo", "--noheader", "-N", "--format=%T"],
            stdin=subprocess.DEVNULL,
            stdout=-1,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return bool(asked.communicate(timeout=30)[0].split() == ["idle"] * len(NODES))


def require_slurm() -> None:
    """Skip on a laptop without Slurm; in CI that is a failure."""
    missing = [
        name for name in PROGRAMS if shutil.which(name, path=os.defpath + ":/usr/sbin") is None
    ]
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
