"""How the source lies, and that the node's command starts light."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("engine", "flows", "provider", "templates")
HEAVY = (
    "airflow",
    "blake3",
    "cryptography",
    "cuda",
    "jinja2",
    "markdown_it",
    "paramiko",
    "prefect",
    "pydantic",
    "pynvml",
    "rich",
    "securesystemslib",
    "sqlalchemy",
    "typer",
    "yaml",
)


def packages() -> list[Path]:
    """Every directory with Python in it, below the namespace."""
    return sorted(
        {
            path.parent
            for root in ROOTS
            for path in (ROOT / root / "pitstop").rglob("*.py")
            if path.parent != ROOT / root / "pitstop"
        }
    )


def modules() -> list[Path]:
    return sorted(path for package in packages() for path in package.glob("*.py"))


@pytest.mark.parametrize("root", ROOTS)
def test_the_namespace_has_no_init(root: str) -> None:
    """One would hide the other roots (PEP 420)."""
    assert (ROOT / root / "pitstop").is_dir()
    assert not list((ROOT / root / "pitstop").glob("*.py"))
    assert not (ROOT / root / "__init__.py").exists()


def test_there_are_packages_to_look_at() -> None:
    found = {path.name for path in packages()}
    assert {"model", "decide", "node", "images", "fleet", "steps", "cli"} <= found


@pytest.mark.parametrize("package", packages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_package_says_what_it_is(package: Path) -> None:
    init = package / "__init__.py"
    assert init.exists(), f"{package} would silently be a namespace package"
    assert ast.get_docstring(ast.parse(init.read_text()))


@pytest.mark.parametrize("module", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text()))


def test_no_two_roots_hold_the_same_package() -> None:
    names = [path.name for root in ROOTS for path in (ROOT / root / "pitstop").iterdir()]
    names = [name for name in names if not name.startswith(("__", "."))]
    assert sorted(names) == sorted(set(names))


def test_tests_are_not_a_package() -> None:
    """importmode=importlib: test modules may have the same name in different directories."""
    assert not list((ROOT / "tests" / "unit").glob("__init__.py"))


def test_the_installed_package_is_this_one() -> None:
    import pitstop.decide.gate
    import pitstop.model.errors

    assert Path(pitstop.model.errors.__file__).is_relative_to(ROOT / "engine")
    assert Path(pitstop.decide.gate.__file__).is_relative_to(ROOT / "engine")


# --- the node's command


def top_level(names: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def test_the_nodes_command_imports_nothing_heavy() -> None:
    """As Python itself reports every import, for the command as it is started."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pitstop.node.main", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "launch" in process.stdout
    imported = re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", process.stderr, re.MULTILINE)
    assert "argparse" in imported
    assert top_level(imported).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "start",
    [
        "main(['--help'])",
        "main(['op', 'status', 'no-such-operation'])",
    ],
)
def test_nothing_heavy_is_loaded_afterwards(start: str, tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from pitstop.node.main import main\n"
        f"try: {start}\n"
        "except SystemExit: pass\n"
        "print('\\n' + json.dumps(sorted(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        # pytest's own directory may have brackets in its name, which the engine refuses.
        env={"PITSTOP_STATE_DIR": str(tmp_path.parent / "layout")},
    )
    loaded = json.loads(process.stdout.splitlines()[-1])
    assert "pitstop.node.main" in loaded
    assert top_level(loaded).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "module",
    [
        *("launch", "nsinit", "ops", "paths", "processes", "locks", "frame", "calls", "hook"),
        # What loads a manifest's model only if there is a manifest to read.
        *("inspector", "starter", "restorer", "settle", "stopper", "inventory"),
    ],
)
def test_modules_that_a_launch_and_a_call_need_are_light(module: str) -> None:
    code = f"import json, sys, pitstop.node.{module}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert top_level(json.loads(output)).isdisjoint(HEAVY)


def test_crius_hook_needs_the_standard_library_alone() -> None:
    """It runs with -I -S while a workload is frozen."""
    for name in ("hook.py", "trial_server.py"):
        tree = ast.parse((ROOT / "engine/pitstop/node" / name).read_text())
        imported = [
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        ]
        imported += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        assert top_level(imported) <= sys.stdlib_module_names
