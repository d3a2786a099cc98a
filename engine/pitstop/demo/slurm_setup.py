"""The Slurm demo's site: four nodes made of namespaces, three jobs, two maintenances."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from pitstop.demo import counter, ranks
from pitstop.demo.setup import node_data, patch_command
from pitstop.images.signing import Keys
from pitstop.lab.lab import Lab
from pitstop.lab.slurm import SlurmCluster

CONTROLLER = "ctl"
NODES = ("n1", "n2", "n3")
SHARED = ("workloads", "images")


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """A cluster with a site.yaml for it.

    Attributes:
        shared: what all nodes see; the jobs' own files lie there.
    """

    root: Path
    cluster: SlurmCluster
    site: Path
    shared: Path

    def maintenance(self, node: str) -> Path:
        """Write the maintenance of a node: a patch and a restart."""
        drop_in = self.root / f"etc-{node}" / "90-pitstop-demo.conf"
        drop_in.parent.mkdir(exist_ok=True)
        path = self.root / f"patch-{node}.yaml"
        write_yaml(
            path,
            {
                "schema": "pitstop/maintenance/v1",
                "title": f"Security patch and restart of {node}",
                "reason": "pitstop demo",
                "runbook": "patch-and-restart",
                "nodes": [node],
                "variables": {"patch_command": patch_command(drop_in)},
            },
        )
        return path

    def submit_counter(self, *options: str) -> str:
        """Submit a job of one node that keeps its state in memory, under the launcher."""
        program = [sys.executable, counter.__file__, str(self.counter_log)]
        return self.cluster.submit(
            *("--job-name=counter", "--gres=gpu:1", "--time=60", *options),
            script=self.launched("counter-$SLURM_JOB_ID", program),
        )

    def launched(self, workload: str, program: list[str]) -> str:
        """Return a job's script that runs a program under the launcher.

        Each node of the lab has its state directory in another place.
        """
        state = f"{self.cluster.lab.root}/nodes/$(hostname)/state"
        launcher = f"{sys.executable} -m pitstop.node.main --state-dir {state} launch"
        return f"exec {launcher} --workload {workload} -- {' '.join(program)}"

    def submit_ranks(self, name: str, *options: str) -> str:
        """Submit a job of two nodes that can save itself."""
        directory = self.ranks_directory(name)
        directory.mkdir()
        return self.cluster.submit(
            *(f"--job-name={name}", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"),
            *("--gres=gpu:1", "--time=60", *options),
            script=f"srun --kill-on-bad-exit=0 {sys.executable} {ranks.__file__} {directory}",
        )

    @property
    def counter_log(self) -> Path:
        """Where the counter writes its links."""
        return self.shared / "counter.log"

    def ranks_directory(self, name: str) -> Path:
        """Where a job of ranks keeps its parts."""
        return self.shared / name


def write_site(root: Path, cluster: SlurmCluster, **scheduler: Any) -> SlurmSite:
    """Join the nodes' state directories and write site.yaml."""
    shared = root / "shared"
    for name in SHARED:
        (shared / name).mkdir(parents=True, mode=0o700)
    lab = cluster.lab
    for node in cluster.nodes:
        state = lab.node(node).state_dir
        state.mkdir(mode=0o700, exist_ok=True)
        for name in SHARED:
            (state / name).symlink_to(shared / name)
    trust_each_other([lab.node(node).state_dir / "keys" for node in cluster.nodes])
    site = root / "site.yaml"
    write_yaml(site, site_data(lab, cluster, shared, scheduler))
    return SlurmSite(root, cluster, site, shared)


def site_data(
    lab: Lab, cluster: SlurmCluster, shared: Path, scheduler: dict[str, Any]
) -> dict[str, Any]:
    """Return the demo's site as plain data."""
    signal = {"signal": "USR1", "to": "steps", "file": f"{shared}/{{name}}/complete"}
    return {
        "schema": "pitstop/site/v1",
        "name": "slurm-demo",
        "nodes": {name: node_data(lab.node(name)) for name in cluster.nodes},
        "scheduler": {
            "kind": "slurm",
            "ssh": node_data(cluster.controller)["ssh"],
            "conf": str(cluster.conf),
            "shared_state": True,
            "drain_deadline": 60,
            "start_deadline": 60,
            "jobs": [
                {
                    "match_name": "saves-*",
                    "multi_node": "signal",
                    "signal": {**signal, "quiet": 0.2, "deadline": 30},
                }
            ],
            **scheduler,
        },
    }


def trust_each_other(directories: list[Path]) -> None:
    """Put each node's public key among those that the others trust."""
    for directory in directories:
        (directory / "trusted").mkdir(parents=True, mode=0o700, exist_ok=True)
        Keys(directory).check()
    for number, directory in enumerate(directories):
        private = load_pem_private_key((directory / "signing.pem").read_bytes(), None)
        public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for other in directories:
            if other != directory:
                (other / "trusted" / f"node-{number}.pem").write_bytes(public)


def write_yaml(path: Path, data: dict[str, Any]) -> None:
    """Write plain data; JSON is YAML, and quotes every path as it must be."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
