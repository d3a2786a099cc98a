from __future__ import annotations

pytest_plugins = ["tests.rigs.lab", "tests.rigs.site"]
