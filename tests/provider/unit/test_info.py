"""The provider as Airflow discovers it: valid, light, listed, and without Prefect."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest

from pitstop.provider.info import get_provider_info

LIGHT = """
import sys
from importlib.metadata import entry_points
before = set(sys.modules)
found = entry_points(group="apache_airflow_provider")
[point] = [p for p in found if p.dist.name == "pitstop"]
info = point.load()()
assert info["package-name"] == "pitstop", info
new = {m.partition(".")[0] for m in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)))
print(sorted(m for m in sys.modules if m.startswith("pitstop.")))
"""


def test_is_valid_by_airflows_own_schema() -> None:
    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    info = get_provider_info()
    jsonschema.validate(info, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**info, "connection-types": "pitstop"}, schema)
    assert importlib.metadata.version(info["package-name"]) in info["versions"]


def test_what_it_names_exists() -> None:
    info = get_provider_info()
    integrations = {i["integration-name"] for i in info["integrations"]}
    for kind in ("hooks", "operators", "triggers"):
        for entry in info[kind]:
            assert entry["integration-name"] in integrations
            for module in entry["python-modules"]:
                importlib.import_module(module)
    [connection] = info["connection-types"]
    assert load(connection["hook-class-name"]).conn_type == connection["connection-type"]
    for path in info["extra-links"]:
        assert load(path).name


def load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_discovery_imports_nothing_but_the_description() -> None:
    """Airflow discovers providers before it is ready, in every one of its processes."""
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['pitstop']",
        "['pitstop.provider', 'pitstop.provider.info']",
    ]


def test_airflow_lists_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = {p["package_name"]: p for p in json.loads(done.stdout)}
    assert found["pitstop"]["version"] == importlib.metadata.version("pitstop")
    assert found["pitstop"]["description"].startswith("GPU node maintenance")


def test_prefect_is_not_installed_here_and_the_core_needs_neither() -> None:
    assert importlib.util.find_spec("airflow") is not None
    assert importlib.util.find_spec("prefect") is None
    code = (
        "import importlib, sys\n"
        "for name in ('model.plan', 'decide.gate', 'node.main', 'images.store', 'fleet.node',\n"
        "             'journal.store', 'report.build', 'steps.runs', 'cli.main', 'templates'):\n"
        "    importlib.import_module('pitstop.' + name)\n"
        "print([m for m in ('airflow', 'prefect') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
