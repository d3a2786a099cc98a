"""docs/prefect.md, step by step: the document's own commands, on a real node."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.flows import load_flow_from_entrypoint
from prefect.testing.cli import invoke_and_assert

from pitstop.flows.maintain_node import maintain_node
from tests.flows import api
from tests.flows.scenes import RESTORED, assert_in_service, journal
from tests.rigs.branches import assert_branches
from tests.rigs.engine import until
from tests.rigs.maintenance import SQUAT, fifo, python, quiet
from tests.rigs.site import NODE, SiteRig

REPOSITORY = Path(__file__).parents[2]
DOCUMENT = (REPOSITORY / "docs" / "prefect.md").read_text()


BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def commands(beginning: str) -> list[str]:
    """The arguments of the only command in the document that begins so."""
    lines = [line for language, text in BLOCKS if not language for line in text.splitlines()]
    [line] = [line for line in lines if line.startswith(beginning)]
    return shlex.split(line)


def prefect(beginning: str, **instead: str) -> None:
    """Run one of the document's `prefect` commands, from the repository as it says."""
    arguments = [instead.get(word, word) for word in commands(f"prefect {beginning}")[1:]]
    with warnings.catch_warnings():
        # The command leaves its connection to the garbage collector, as its process ends anyway.
        warnings.simplefilter("ignore", ResourceWarning)
        invoke_and_assert(["--no-prompt", *arguments], temp_dir=str(REPOSITORY))
        gc.collect()


def store_site(rig: SiteRig, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the document's Python beside site.yaml and the key; return the key."""
    ssh = rig.site["nodes"][NODE]["ssh"]
    identity = ssh.pop("identity_file")
    secret = Path(identity).read_text()
    (rig.root / "maintenance.key").write_text(secret)
    rig.write()
    [code] = [text for language, text in BLOCKS if language == "python"]
    assert code.count('"/srv/pitstop"') == 1
    monkeypatch.chdir(rig.root)
    exec(code.replace("/srv/pitstop", str(rig.home)), {})  # noqa: S102  # it is our own
    (rig.root / "maintenance.key").unlink()
    ssh["identity_file"] = identity  # for this test's own looks at the node
    rig.write()
    return secret


@pytest.mark.timeout(300)
def test_from_nothing_to_a_report(
    rig: SiteRig, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one difficulty: the port is taken for a while, so the restore is tried again."""
    rig.site["policy"]["retries"]["restore"] = {"count": 2, "delay": 0.5, "factor": 3}
    leave = fifo(rig, "leave")
    secret = store_site(rig, monkeypatch)
    maintenance = quiet(rig, python(SQUAT, leave))
    prefect("work-pool create")
    prefect("deploy ")
    assert flow_of_the_deployment() == maintain_node.name

    name = "maintenance=/srv/pitstop/maintenance.yaml"
    prefect("deployment run", **{name: f"maintenance={maintenance}"})
    [flow_run] = [f for f in api.ask("flow_runs/filter", {}) if f["deployment_id"]]
    run = f"prefect-{flow_run['id']}"
    with when(lambda: failed_once(rig, run), lambda: leave.write_text("go\n")):
        worker(rig, commands("prefect worker start"))

    [flow_run] = [f for f in api.ask("flow_runs/filter", {}) if f["id"] == flow_run["id"]]
    assert (flow_run["state_type"], flow_run["state"]["message"]) == ("COMPLETED", "web: restored")
    assert_in_service(rig, 4)
    assert_branches(rig, run, "restored")
    check_tasks(flow_run["id"])
    check_artifacts(rig, run)
    check_secret(rig, flow_run["id"], run, secret)

    # Started again, it has nothing to do but to say how it ended.
    before = len(journal(rig, run))
    again: Any = maintain_node(site="block:site", run_id=run, return_state=True)
    assert (again.is_completed(), again.message) == (True, "web: restored")
    assert len(journal(rig, run)) == before


def flow_of_the_deployment() -> str:
    """Load what the deployment names, as a worker does."""
    [deployment] = api.ask("deployments/filter", {})
    assert deployment["parameters"] == {"site": "block:site"}
    assert deployment["pull_steps"] == []
    flow: Any = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    return str(flow.name)


def failed_once(rig: SiteRig, run: str) -> bool:
    return any(e.kind == "step.failed" for e in journal(rig, run))


class when:  # reads as a word
    """Do something beside the block as soon as something is true."""

    def __init__(self, true: Callable[[], bool], act: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=self._watch, args=(true, act))

    def _watch(self, true: Callable[[], bool], act: Callable[[], object]) -> None:
        until(true, "what was waited for", 120)
        act()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def worker(rig: SiteRig, command: list[str]) -> None:
    """Let a worker take what waits, in an empty directory: it needs none of the files."""
    directory = rig.root / "worker"
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", *command, "--run-once"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=directory,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def check_tasks(flow_run: str) -> None:
    tasks = api.task_runs(flow_run, RESTORED)
    assert set(tasks) == set(RESTORED)
    assert {t["state_type"] for t in tasks.values()} == {"COMPLETED"}
    counts = {name: t["run_count"] for name, t in tasks.items()}
    assert counts == {name: 2 if name == "restore-web" else 1 for name in RESTORED}
    policy = tasks["restore-web"]["empirical_policy"]
    assert (policy["retries"], policy["retry_delay"]) == (2, [0.5, 1.5])
    assert tasks["gate-web"]["empirical_policy"]["retries"] == 2  # the default of that verb


def check_artifacts(rig: SiteRig, run: str) -> None:
    found = api.artifacts(run)
    assert set(found) == {"plan", "verdicts", "timings", "report"}
    assert all(re.fullmatch(r"[a-z0-9-]+", a["key"]) for a in found.values())
    assert "checkpoint-restore" in found["plan"]["data"]
    assert found["plan"]["description"] == "patch"
    assert json.loads(found["verdicts"]["data"]) == [
        {"workload": "web", "field": "-", "reason": "nothing differs"}
    ]
    [timing] = json.loads(found["timings"]["data"])
    assert timing["outcome"] == "restored"
    assert timing["restore to ready (s)"] > 0
    assert timing["cold start to ready (s)"] > 0
    assert timing["image (bytes)"] > 0
    [link] = re.findall(r"\(file://(.*?)\)", found["report"]["data"])
    assert Path(link) == rig.home / "runs" / run / "report.html"
    assert "restored" in Path(link).read_text()


def check_secret(rig: SiteRig, flow_run: str, run: str, secret: str) -> None:
    """The key is in its file alone, and on the server only encrypted."""
    [key] = (rig.home / "keys").iterdir()
    assert key.read_text() == secret
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    lines = [line for line in secret.splitlines() if line and not line.startswith("--")]
    assert lines
    shown = json.dumps(
        [
            api.ask("flow_runs/filter", {}),
            api.task_runs(flow_run),
            api.artifacts(run),
            api.logs(flow_run, "if this is cut off"),
            api.ask("block_documents/filter", {}),
        ]
    )
    assert "block:site" in shown
    assert str(key) not in shown
    kept = [p for top in (rig.home, Path(os.environ["PREFECT_HOME"])) for p in top.rglob("*")]
    for text in (shown, *(p.read_bytes().decode("latin-1") for p in kept if p.is_file())):
        if text != secret:
            assert not any(line in text for line in lines)
