"""The signing key, and a quarantine that somebody set."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitstop.images.durable import read_json
from pitstop.node.checks.check import Check, CheckState
from pitstop.node.paths import StateDir


def trust(state: StateDir) -> list[Check]:
    """Look at both, without making anything."""
    key = state.root / "keys" / "signing.pem"
    found = key.stat() if key.exists() else None
    return [
        judge_key(key, found.st_mode if found else None, found.st_uid if found else 0),
        judge_quarantine(read_json(state.quarantine), state.quarantine),
    ]


def judge_key(path: Path, mode: int | None, owner: int) -> Check:
    """The engine refuses a key that others can read."""
    what = "signing key"
    if mode is None:
        why = "it is made at the first checkpoint"
        return Check("signing-key", CheckState.ABSENT, what, f"{path} is not there yet", why)
    bits = stat.S_IMODE(mode)
    if bits & 0o077 or owner != 0:
        return Check(
            "signing-key",
            CheckState.FAILED,
            what,
            f"{path} has mode {bits:04o} and owner {owner}",
            "who reads it can sign images, which run as root when restored",
            f"chown root {path} && chmod 0600 {path}; if others had access, make a new one: "
            f"rm {path} (checkpoints signed by it are then refused)",
        )
    return Check("signing-key", CheckState.OK, what, f"{path}, mode {bits:04o}")


def judge_quarantine(found: Mapping[str, Any] | None, path: Path) -> Check:
    """A quarantined node takes no new run."""
    what = "quarantine"
    if found is None:
        return Check("quarantine", CheckState.OK, what, "none")
    run = str(found.get("run", "?"))
    return Check(
        "quarantine",
        CheckState.WARNING,
        what,
        f"set by run {run} at {found.get('time', '?')} ({path})",
        f"no run starts on this node: {found.get('cause', 'no cause is given')}",
        f"mend the node, then: pitstop resume {run}",
    )
