from __future__ import annotations

from hypothesis import settings

pytest_plugins = [
    "tests.rigs.engine",
    "tests.rigs.gpu_machine",
    "tests.rigs.kubernetes",
    "tests.rigs.lab",
    "tests.rigs.site",
    "tests.rigs.slurm",
    "tests.rigs.slurm_site",
    "tests.rigs.gpu_nodes",
    "tests.rigs.two_nodes",
]

# What the whole suite has time for; `--hypothesis-profile thorough` when there is more.
settings.register_profile("suite", max_examples=20, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("suite")
