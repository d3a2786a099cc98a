"""The scheduler that a site declares."""

from __future__ import annotations

from pitstop.fleet.local import LocalTransport
from pitstop.fleet.scheduler import JobScheduler, Scheduler
from pitstop.fleet.slurm.scheduler import Slurm
from pitstop.fleet.ssh import SshTransport
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.slurm import SlurmSpec


def open_slurm(spec: SlurmSpec) -> JobScheduler:
    """Return a site's Slurm. Nothing is asked yet."""
    transport = SshTransport("slurm", spec.ssh) if spec.ssh is not None else LocalTransport()
    return Slurm(transport, spec.conf, spec.path)


def open_scheduler(spec: SlurmSpec | KubernetesSpec) -> Scheduler:
    """Return a site's scheduler. No node is asked for yet.

    Raises:
        PitstopError: what it needs is not installed, or its settings cannot be read.
    """
    if isinstance(spec, SlurmSpec):
        return open_slurm(spec)
    # Not at the top: what a site does not use is not loaded.
    from pitstop.fleet.kubernetes.api import Api
    from pitstop.fleet.kubernetes.connection import connect
    from pitstop.fleet.kubernetes.scheduler import Kubernetes

    return Kubernetes(Api(connect(spec)))
