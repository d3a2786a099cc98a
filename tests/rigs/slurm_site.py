"""A site on a real Slurm, with jobs on it, for tests of whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pitstop.demo.counter import expected
from pitstop.demo.slurm_setup import CONTROLLER, NODES, SlurmSite, write_site
from pitstop.fleet.node import RemoteNode
from pitstop.lab.lab import Lab
from pitstop.lab.slurm import SlurmCluster
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult, WorkloadResult
from pitstop.model.words import Verb
from pitstop.steps.branching import Perform
from pitstop.steps.context import RunContext
from pitstop.steps.execute import perform
from pitstop.steps.files import load_site, plan_from_files
from pitstop.steps.runs import create_run, drive, open_run
from tests.rigs.lab import require_lab
from tests.rigs.maintenance import QUIET
from tests.rigs.slurm import require_slurm

NODE = "n1"


class Cut(BaseException):
    """The driver of a run dies here."""


@dataclass
class SlurmRuns:
    """A cluster with a site, and runs on its node n1.

    Attributes:
        home: journal and reports of this test.
        changes: of the scheduler in site.yaml.
    """

    slurm: SlurmSite
    home: Path
    name: str
    changes: dict[str, Any]

    @property
    def cluster(self) -> SlurmCluster:
        return self.slurm.cluster

    @property
    def version(self) -> Path:
        """The engine's version, as a job's policy reads it."""
        return self.home / "version"

    def submit(self, script: str, *options: str) -> str:
        """Submit a job and wait until it runs."""
        job = self.cluster.submit("--gres=gpu:1", "--time=60", *options, script=script)
        self.cluster.wait_job(job, "RUNNING")
        return job

    def counter(self, *options: str) -> str:
        """A counter under the launcher, on n1 as that is the first with room."""
        self.slurm.counter_log.unlink(missing_ok=True)
        job = self.slurm.submit_counter(*options)
        self.cluster.wait_job(job, "RUNNING")
        self.counts(5)
        return job

    def links(self) -> list[list[str]]:
        log = self.slurm.counter_log
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        return [line.split() for line in lines]

    def counts(self, more: int = 5) -> None:
        """Wait until the counter has gone on by so many links."""
        wanted = len(self.links()) + more
        self.cluster.until(lambda: len(self.links()) >= wanted, "it counts", 30)

    def is_one_process(self) -> bool:
        """Whether all that was counted was counted by one process, without a gap."""
        links = self.links()
        whole = [link[:2] for link in links] == expected(len(links))
        return whole and len({link[2] for link in links}) == 1

    def site_file(self) -> Path:
        data = json.loads(self.slurm.site.read_text())
        data["scheduler"] |= self.changes
        data["policy"] = {"retries": {"requeue": {"count": 1, "delay": 0.1}}}
        path = self.home / "site.yaml"
        path.write_text(json.dumps(data))
        return path

    def plan(
        self,
        command: list[str] | None = None,
        node: str = NODE,
        runbook: str = "quiet.md.j2",
    ) -> Plan:
        """Plan a maintenance that only runs a command, unless the runbook does more."""
        (self.home / "quiet.md.j2").write_text(QUIET)
        path = self.home / "quiet.yaml"
        data = {
            "schema": "pitstop/maintenance/v1",
            "title": "quiet",
            "runbook": runbook,
            "nodes": [node],
            "variables": {"patch_command": command or ["true"]},
        }
        path.write_text(json.dumps(data))
        return plan_from_files(self.site_file(), path)

    def begin(self, plan: Plan) -> RunContext:
        create_run(self.home, plan, self.name, "steps")
        return open_run(self.home, self.name)

    def run(self, plan: Plan, hook: Callable[[Verb, str], None] | None = None) -> RunResult:
        """Drive a new run of a plan; the hook is called before each step."""
        with closing(self.begin(plan)) as ctx:
            return drive(ctx, hooked(ctx, hook) if hook else None)

    def run_other(self, plan: Plan) -> RunResult:
        """Drive another run of the same plan."""
        name = f"{self.name}-2"
        create_run(self.home, plan, name, "steps")
        with closing(open_run(self.home, name)) as ctx:
            return drive(ctx)

    def node_line(self, name: str = NODE) -> str:
        """A node's state and reason, as an administrator sees them.

        For a second after its slurmd has started Slurm does not hear of it (`*`).
        """
        shown = self.cluster.run("sinfo", "-h", f"--nodes={name}", "--format=%T|%E").strip()
        return shown.replace("*|", "|")

    def slurm_command(self, *argv: str) -> list[str]:
        """A command of Slurm, as a step of a runbook."""
        return ["env", f"SLURM_CONF={self.cluster.conf}", *argv]

    def images(self, workload: str) -> list[str]:
        """The checkpoints that are left of a workload."""
        node = RemoteNode(NODE, load_site(self.slurm.site).nodes[NODE])
        with closing(node):
            found = node.call("images.list", workload=workload)["images"]
        return [f"{image['checkpoint']}: {image['state']}" for image in found]


def hooked(ctx: RunContext, hook: Callable[[Verb, str], None]) -> Perform:
    step = partial(perform, ctx)

    def act(verb: Verb, subject: str) -> dict[str, Any]:
        hook(verb, subject)
        return step(verb, subject)

    return act


def one(result: RunResult) -> WorkloadResult:
    [found] = result.workloads
    return found


@pytest.fixture(scope="module")
def slurm_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    """A cluster with a site.yaml, shared by the tests of a module."""
    require_lab()
    require_slurm()
    root = tmp_path_factory.mktemp("site")
    with Lab(root / "lab", [CONTROLLER, *NODES]) as lab:
        (root / "slurm").mkdir()
        cluster = SlurmCluster(lab, root / "slurm", CONTROLLER, NODES, reboots=True)
        with closing(cluster):
            cluster.start_at_boot()
            yield write_site(root, cluster)


@pytest.fixture
def runs(
    slurm_site: SlurmSite, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[SlurmRuns]:
    """The cluster with no job on it; afterwards as it was."""
    name = request.node.name.replace("_", "-").replace("[", ".").rstrip("]")[:50]
    found = SlurmRuns(slurm_site, tmp_path, name, {})
    yield found
    cluster = slurm_site.cluster
    cluster.run("scancel", "--quiet", "--state=PENDING")
    cluster.run("scancel", "--quiet", "--state=RUNNING")
    cluster.until(lambda: not cluster.run("squeue", "-h").strip(), "all jobs are gone", 60)
    for node in NODES:
        if found.node_line(node).startswith(("drain", "down")):
            cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    cluster.until(lambda: cluster.run("sinfo", "-h", "--format=%T").split() == ["idle"], "idle", 30)
