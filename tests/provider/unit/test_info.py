"""The provider as Airflow discovers it: valid, light, listed, and without Prefect."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow.sdk.execution_time.context import MacrosAccessor
from airflow.sdk.log import redact  # type: ignore[attr-defined]  # it is what masks logs
from airflow.sdk.plugins_manager import integrate_macros_plugins

from pitstop.provider.hooks import PitstopHook
from pitstop.provider.info import get_provider_info
from tests.provider.unit.conftest import NODE, RUN, Here

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


COMMANDS = """
import contextlib, io, json, sys
from airflow.__main__ import main
for command in json.loads(sys.argv[1]):
    sys.argv = ["airflow", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main()
    print(json.dumps(out.getvalue()))
"""


def airflow_commands(*commands: str, **environment: str) -> list[str]:
    """Return what `airflow` commands say; in one process, which takes seconds to start."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([command.split() for command in commands])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]


def test_airflow_shows_provider_hook_plugin_and_configuration() -> None:
    listed, hooks, plugins, value, form = airflow_commands(
        "providers list --output json",
        "providers hooks --output json",
        "plugins --output json",
        "config get-value pitstop kill_timeout",
        "providers get pitstop --full --output json",
    )
    [found] = [p for p in json.loads(listed) if p["package_name"] == "pitstop"]
    assert found["version"] == importlib.metadata.version("pitstop")
    assert found["description"].startswith("GPU node maintenance")
    [hook] = [h for h in json.loads(hooks) if h["connection_type"] == "pitstop"]
    assert hook["class"] == "pitstop.provider.hooks.PitstopHook"
    [plugin] = [p for p in json.loads(plugins) if p["name"] == "pitstop"]
    assert "run_id" in str(plugin["macros"])
    assert "standing" in str(plugin["macros"])
    assert float(value.strip()) == 20
    assert "pitstop.provider.operators" in form


def test_plugin_is_loaded_once_and_hides_no_other() -> None:
    """Airflow leaves out every plugin of a provider after one whose name it knows already."""
    assert "plugins" not in get_provider_info()
    [plugins] = airflow_commands(
        "plugins --output json", AIRFLOW__CORE__LAZY_DISCOVER_PROVIDERS="False"
    )
    assert [p["name"] for p in json.loads(plugins)].count("pitstop") == 1


def test_macros_work_in_a_template(here: Here) -> None:
    integrate_macros_plugins()
    context: Any = {**here.context, "macros": MacrosAccessor()}
    step = here.step("precheck", NODE)

    def render(text: str) -> str:
        return str(step.render_template(text, context))

    assert render("{{ macros.pitstop.run_id(dag_run) }}") == RUN
    assert "never begun" in render("{{ macros.pitstop.standing(dag_run) }}")
    here.begin()
    told = render("{{ macros.pitstop.standing(dag_run) }}")
    assert f"stands before precheck of {NODE}" in told
    assert f"go on with: pitstop resume {RUN} --home {here.home}" in told


def test_secrets_are_fields_that_airflow_does_not_show() -> None:
    [connection] = get_provider_info()["connection-types"]
    behaviour = connection["ui-field-behaviour"]
    # The key is the password, which Airflow masks everywhere; nothing else is a secret but an
    # address with a token in it.
    assert "key" in behaviour["relabeling"]["password"]
    assert "password" not in behaviour["hidden-fields"]
    formats = {n: f["schema"].get("format") for n, f in connection["conn-fields"].items()}
    assert formats == {"site_file": None, "home": None, "alarm_url": "password"}
    hook = load(connection["hook-class-name"])
    for old in ("get_connection_form_widgets", "get_ui_field_behaviour"):
        assert old not in vars(hook)


def test_key_of_the_connection_is_masked_and_in_its_file_alone(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nQUJDREVGR0g\n-----END OPENSSH PRIVATE KEY-----"
    extra = {"site_file": str(here.site_file), "home": str(here.home)}
    connection = {"conn_type": "pitstop", "password": key, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PITSTOP_DEFAULT", json.dumps(connection))
    site = json.loads(here.site_file.read_text())
    site["nodes"]["there"] = {"ssh": {"address": "192.0.2.1"}}
    here.site_file.write_text(json.dumps(site))
    ssh = PitstopHook().site().nodes["there"].ssh
    assert ssh is not None
    assert ssh.identity_file is not None
    path = Path(ssh.identity_file)
    assert path.parent == here.home / "keys"
    assert "QUJDREVGR0g" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert redact(f"the key is {key}.") == "the key is ***."
    here.begin()
    others = [p for p in here.home.rglob("*") if p.is_file() and p != path]
    assert others
    assert not any(b"QUJDREVGR0g" in p.read_bytes() for p in others)
    ok, said = PitstopHook().test_connection()
    assert (ok, said) == (True, "site here: 2 nodes, 1 workloads")


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
