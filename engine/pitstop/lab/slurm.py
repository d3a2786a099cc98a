"""A real Slurm on a lab's nodes: one controller, and nodes with GPUs that are device files.

Debian's packages. Every node has its own hostname, so one build serves them all; the daemons
share a directory. A node that loses power takes its slurmd with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pitstop.lab.errors import LabError
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode

PROGRAMS = ("slurmctld", "slurmd", "munged", "squeue", "scontrol", "sbatch")
GPUS = 4
FOLLOW = 5.0
"""Seconds of one wait for a node's boot."""

LOOK_AGAIN = 0.25
"""Seconds between looks: Slurm sends no events, and each look is three processes."""

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
{node_lines}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} CPUs=8 RealMemory=1000 Gres=gpu:fake:{gpus} Weight={weight} State=UNKNOWN"
_GRES = "AutoDetect=off\nNodeName={nodes} Name=gpu Type=fake File={root}/dev/gpu[0-{last}]\n"


def missing_programs() -> list[str]:
    """Return which of Slurm's programs are not installed."""
    path = os.defpath + ":/usr/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class SlurmCluster:
    """A running cluster.

    Attributes:
        root: settings, logs and state; `slurm.conf` is in it.
    """

    def __init__(
        self,
        lab: Lab,
        root: Path,
        controller: str,
        nodes: Sequence[str],
        reboots: bool = False,
    ) -> None:
        """Start it, and wait until all nodes are idle.

        Args:
            lab: with the nodes; their names end in consecutive numbers from 1.
            root: an empty directory.
            controller: the node that runs slurmctld.
            nodes: those that run slurmd.
            reboots: its reboot program reboots; else it only says that it was called.
        """
        self.lab = lab
        self.root = root
        self.controller = lab.node(controller)
        self.nodes = tuple(nodes)
        self._closing = False
        self._reboots = reboots
        self._lay_out()
        self._daemons = [
            self._daemon(
                self.controller,
                *("munged", "--foreground", "--force", f"--key-file={root}/munge.key"),
                *(f"--socket={root}/munge.sock", f"--log-file={root}/munged.log"),
                *("--pid-file=/run/munged.pid", f"--seed-file={root}/munge.seed"),
            ),
        ]
        self.until((root / "munge.sock").exists, "munged listens")
        self._daemons.append(self._daemon(self.controller, "slurmctld", "-D"))
        for name in self.nodes:
            self.start_node(name)
        self.until(self._all_idle, "all nodes are idle", 60)

    @property
    def conf(self) -> Path:
        """Its slurm.conf."""
        return self.root / "slurm.conf"

    def start_node(self, name: str) -> None:
        """Start a node's slurmd, as its boot would: it says that the node has booted."""
        self._daemons.append(self._daemon(self.lab.node(name), "slurmd", "-D", "-b"))

    def start_at_boot(self) -> None:
        """From now on start slurmd whenever a node has booted, as a service manager would."""
        for name in self.nodes:
            threading.Thread(target=self._follow, args=(name,), daemon=True).start()

    def _follow(self, name: str) -> None:
        node = self.lab.node(name)
        booted = node.boot_id
        while not self._closing:
            try:
                booted = node.wait_boot(booted, FOLLOW).boot_id
                if not self._closing:
                    self.start_node(name)
            except LabError:
                if not self.lab.nodes:
                    return

    def run(self, *argv: str) -> str:
        """Run a command of Slurm on the controller, as an administrator would."""
        return self.controller.run(["env", f"SLURM_CONF={self.conf}", *argv], timeout=30)

    def submit(self, *options: str, script: str = "sleep 1000") -> str:
        """Submit a batch script and return the job's id."""
        return self.run(
            *("sbatch", "--parsable", f"--output={self.root}/%j.out", "--chdir=/", *options),
            *("--wrap", script),
        ).strip()

    def state(self, job: str) -> str:
        """Return a job's state in squeue's word; empty when squeue knows it no more."""
        return self.run("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()

    def wait_job(self, job: str, state: str, seconds: float = 30) -> None:
        """Wait until a job is in a state."""
        self.until(lambda: self.state(job) == state, f"job {job} is {state}", seconds)

    def until(self, found: Callable[[], bool], what: str, seconds: float = 20) -> None:
        """Wait for something.

        Raises:
            LabError: it did not happen in time.
        """
        end = time.monotonic() + seconds
        while not found():
            if time.monotonic() > end:
                raise LabError("slurm", f"not within {seconds:g} s: {what}; see {self.root}")
            time.sleep(LOOK_AGAIN)

    def close(self) -> None:
        """End the daemons; closing the lab ends what they have started."""
        self._closing = True
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()

    def _lay_out(self) -> None:
        for directory in ("state", "spool", "dev"):
            (self.root / directory).mkdir()
        for name in self.nodes:
            (self.root / "spool" / name).mkdir()
        nodes = f"{self.nodes[0].rstrip('0123456789')}[1-{len(self.nodes)}]"
        values = {
            "controller": self.controller.name,
            "root": self.root,
            "nodes": nodes,
            "gpus": GPUS,
            # Jobs that ask for no node come to the first one that has room.
            "node_lines": "\n".join(
                _NODE.format(name=name, gpus=GPUS, weight=weight)
                for weight, name in enumerate(self.nodes, 1)
            ),
        }
        self.conf.write_text(_CONF.format(**values))
        (self.root / "gres.conf").write_text(_GRES.format(**values, last=GPUS - 1))
        (self.root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        program = self.root / "reboot"
        act = f'touch "{self.root}/reboot.$(hostname)"'
        if self._reboots:
            act = f"exec {shlex.join(self.controller.reboot_command)}"
        program.write_text(f"#!/bin/sh\n{act}\n")
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
            if daemon.poll() is not None:
                raise LabError("slurm", f"{daemon.args!r} ended; see {self.root}")
        asked = self.controller.popen(
            ["env", f"SLURM_CONF={self.conf}", "sinfo", "--noheader", "-N", "--format=%T"],
            stdin=subprocess.DEVNULL,
            stdout=-1,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return bool(asked.communicate(timeout=30)[0].split() == ["idle"] * len(self.nodes))
