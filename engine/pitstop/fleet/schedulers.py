"""The scheduler that a site declares."""

from __future__ import annotations

from pitstop.fleet.local import LocalTransport
from pitstop.fleet.scheduler import Scheduler
from pitstop.fleet.slurm.scheduler import Slurm
from pitstop.fleet.ssh import SshTransport
from pitstop.model.slurm import SlurmSpec


def open_scheduler(spec: SlurmSpec) -> Scheduler:
    """Return a site's scheduler. Nothing is asked yet."""
    transport = SshTransport("slurm", spec.ssh) if spec.ssh is not None else LocalTransport()
    return Slurm(transport, spec.conf, spec.path)
