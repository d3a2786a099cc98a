"""The package as a Prefect collection: light, silent, and without Airflow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

QUIET_IMPORT = """
import sys
import paramiko, prefect.blocks.abstract, prefect.blocks.core
seen = []

def hook(event, arguments):
    wrote = event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o1103
    if wrote or event.startswith(("socket.", "subprocess.", "os.mkdir", "os.fork", "_thread.")):
        seen.append((event, arguments))

sys.addaudithook(hook)
import pitstop.flows
print(seen)
print(pitstop.flows.__all__)
print([m for m in ("pitstop.flows.maintain_node", "sqlalchemy", "airflow") if m in sys.modules])
"""


def test_importing_it_does_nothing_but_to_define_blocks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", QUIET_IMPORT],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == ["[]", "['PitstopSite', 'SshCredentials']", "[]"]
    assert not list(tmp_path.iterdir())


def test_entry_points() -> None:
    [collection] = entry_points(group="prefect.collections", name="pitstop")
    assert collection.value == "pitstop.flows"
    [front_end] = entry_points(group="pitstop.front_ends", name="prefect")
    assert callable(front_end.load())


def test_airflow_is_not_installed_here() -> None:
    """The newest of both cannot share an environment; nothing here needs the other."""
    assert importlib.util.find_spec("prefect") is not None
    assert importlib.util.find_spec("airflow") is None
