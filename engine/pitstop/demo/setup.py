"""The demo's site: a node made of namespaces, an inference server on it, two maintenances."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitstop.demo.model import activate, deploy_release, model_file
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode

NODE = "gpu1"
WORKLOAD = "chat"
PORT = 8080
FIRST, SECOND = "1.0.0", "1.1.0"


@dataclass(frozen=True, slots=True)
class DemoSite:
    """Where the demo's files lie.

    Attributes:
        patch: a maintenance that keeps the fingerprint.
        upgrade: one that declares a change of the engine's version.
    """

    root: Path
    site: Path
    patch: Path
    upgrade: Path


def models_directory() -> Path:
    """Return where the assembled model is kept between demos."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pitstop" / "models"


def write_site(root: Path, lab: Lab) -> DemoSite:
    """Deploy the server's two releases and write site.yaml and both maintenance files."""
    releases = root / "server"
    for version in (FIRST, SECOND):
        deploy_release(releases, version)
    activate(releases, FIRST)
    model = model_file(models_directory())
    files = DemoSite(root, root / "site.yaml", root / "patch.yaml", root / "upgrade.yaml")
    # JSON is YAML, and quotes every path as it must be.
    _write(files.site, site_data(lab.node(NODE), releases, model))
    drop_in = root / "etc" / "90-pitstop-demo.conf"
    drop_in.parent.mkdir()
    _write(files.patch, _maintenance("Security patch and restart", patch_command(drop_in), {}))
    _write(
        files.upgrade,
        _maintenance(
            "Upgrade of the inference server",
            upgrade_command(releases, SECOND),
            {"engine.version": f"pitstop-demo-server {SECOND}"},
        ),
    )
    return files


def site_data(node: LabNode, releases: Path, model: Path) -> dict[str, Any]:
    """Return the demo's site as plain data."""
    server = str(releases / "current" / "server.py")
    url = f"http://127.0.0.1:{PORT}"
    question = json.dumps({"prompt": "The capital of France is", "max_tokens": 8})
    return {
        "schema": "pitstop/site/v1",
        "name": "demo",
        "nodes": {NODE: node_data(node)},
        "workloads": {
            WORKLOAD: {
                "description": "llama.cpp with Gemma 3 270M; keeps conversations in memory",
                "placement": {NODE: 0},
                "launch": {
                    "command": [sys.executable, server, "--model", str(model), "--port", str(PORT)],
                    "cwd": str(releases),
                },
                "ready": {
                    "http": {
                        "url": f"{url}/admin/proof",
                        "method": "POST",
                        "body": question,
                        "timeout": 60,
                    },
                    "deadline": 120,
                    "interval": 0.02,
                },
                "proof": {
                    "http": {
                        "url": f"{url}/admin/proof",
                        "method": "POST",
                        "body": question,
                        "timeout": 60,
                    },
                    "field": "text",
                },
                "drain": {
                    "begin": {
                        "http": {"url": f"{url}/admin/drain", "method": "POST", "body": "{}"}
                    },
                    "end": {
                        "http": {"url": f"{url}/admin/undrain", "method": "POST", "body": "{}"}
                    },
                    "in_flight": {"url": f"{url}/inflight", "json_field": "in_flight"},
                    "deadline": 60,
                },
                "engine": {"command": [sys.executable, server, "--version"]},
                "model": {"file": str(model)},
            }
        },
    }


def node_data(node: LabNode) -> dict[str, Any]:
    """Return how a lab node is reached, as site.yaml says it."""
    return {
        "ssh": {
            "address": node.address,
            "port": node.port,
            "host_keys": [" ".join(node.host_key.split()[:2])],
            "identity_file": str(node.identity_file),
            "proxy_command": list(node.proxy_command),
        },
        "engine": [sys.executable, "-m", "pitstop.node.main"],
        "state_dir": str(node.state_dir),
        "reboot": list(node.reboot_command),
        "reboot_deadline": 60,
    }


def patch_command(drop_in: Path) -> list[str]:
    """Return a command that installs a configuration file, as a patch would."""
    source = drop_in.with_suffix(".new")
    source.write_text("# installed by the maintenance\nkernel.panic = 10\n")
    return ["install", "-m", "0644", str(source), str(drop_in)]


def upgrade_command(releases: Path, version: str) -> list[str]:
    """Return a command that makes another release the current one."""
    return [sys.executable, "-m", "pitstop.demo.activate", str(releases), version]


def _maintenance(title: str, command: list[str], changes: dict[str, str]) -> dict[str, Any]:
    return {
        "schema": "pitstop/maintenance/v1",
        "title": title,
        "reason": "pitstop demo",
        "runbook": "patch-and-restart",
        "nodes": [NODE],
        "variables": {"patch_command": command},
        "changes": changes,
    }


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
