from __future__ import annotations

pytest_plugins = ["tests.rigs.engine", "tests.rigs.lab", "tests.rigs.site"]
