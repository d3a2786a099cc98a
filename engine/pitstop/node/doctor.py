"""The doctor: what can be saved on this machine, what cannot, and the exact fix for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from pitstop.node.checks import (
    clock_sync,
    gpus,
    kernel_features,
    privileges,
    software,
    storage,
    trust,
)
from pitstop.node.checks.check import Check, CheckState, first_line
from pitstop.node.paths import StateDir, boot_id
from pitstop.node.trial import not_tried, try_it

FOR_CPU = frozenset(
    {
        "criu",
        "trial",
        "kernel-checkpoint-restore",
        "kernel-namespaces",
        "privileges",
        "nsenter",
        "room",
        "file-system",
        "state-dir",
        "signing-key",
    }
)
"""Checks that saving any workload needs."""

FOR_GPU = frozenset({"gpu-driver", "cuda-checkpoint", "gpu-state"})
"""Checks that saving GPU state needs besides."""


def examine(state: StateDir, trial: bool) -> dict[str, Any]:
    """Look at this machine.

    Args:
        state: the engine's directory; it is not made if it is not there.
        trial: save and restore a throw-away process, for a few seconds.

    Returns:
        `able` (nothing failed that a workload without a GPU needs), `node`, `boot_id`,
        `can`, and `checks`, each as `Check.to_json`.
    """
    checks = [
        *_look("criu", "CRIU", lambda: [software.criu_version()]),
        *_look("trial", "trial dump and restore", lambda: [_trial(state, trial)]),
        *_look("kernel", "kernel features", kernel_features.features),
        *_look("privileges", "privileges", lambda: [privileges.privileges()]),
        *_look("gpu-driver", "GPUs", gpus.gpus),
        *_look("storage", "storage", lambda: storage.storage(state.root)),
        *_look("clock", "clock", lambda: [clock_sync.clock_sync()]),
        *_look("tools", "tools", software.tools),
        *_look("trust", "signing key and quarantine", lambda: trust.trust(state)),
    ]
    able = is_able(checks)
    return {
        "able": able,
        "node": os.uname().nodename,
        "boot_id": boot_id(),
        "can": {"cpu_workloads": able, "gpu_workloads": able and saves_gpu_state(checks)},
        "checks": [check.to_json() for check in checks],
    }


def is_able(checks: Iterable[Check]) -> bool:
    """Whether nothing failed that a CPU workload needs."""
    return not any(c.state is CheckState.FAILED and c.id in FOR_CPU for c in checks)


def saves_gpu_state(checks: Iterable[Check]) -> bool:
    """Whether all that GPU state needs is known to be good."""
    good = {check.id for check in checks if check.state is CheckState.OK}
    return good >= FOR_GPU


def _trial(state: StateDir, wanted: bool) -> Check:
    return try_it(state) if wanted else not_tried()


def _look(identifier: str, what: str, look: Callable[[], list[Check]]) -> list[Check]:
    """Run one look; what cannot be read is unknown, and the others go on."""
    try:
        return look()
    except (OSError, ValueError, KeyError, IndexError) as error:
        return [
            Check(
                identifier,
                CheckState.UNKNOWN,
                what,
                first_line(error),
                "it could not be read here",
                "run the doctor as root, outside of a container",
            )
        ]
