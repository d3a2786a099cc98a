"""What this process may do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pitstop.node.checks.check import Check, CheckState

CAPABILITIES = {
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_PTRACE": 19,
    "CAP_NET_ADMIN": 12,
    "CAP_CHECKPOINT_RESTORE": 40,
    "CAP_SYS_RESOURCE": 24,
}
_NEEDED = {
    "CAP_SYS_ADMIN": "namespaces and mounts",
    "CAP_SYS_PTRACE": "reading the memory of other processes",
    "CAP_NET_ADMIN": "saving TCP sockets",
}


@dataclass(frozen=True, slots=True)
class Privileges:
    """Effective user and capability sets of a process."""

    uid: int
    effective: int
    bounding: int

    def has(self, name: str) -> bool:
        """Whether a capability is effective."""
        return bool(self.effective >> CAPABILITIES[name] & 1)

    def may_have(self, name: str) -> bool:
        """Whether a capability is in the bounding set."""
        return bool(self.bounding >> CAPABILITIES[name] & 1)


def privileges() -> Check:
    """Look at this process."""
    return judge_privileges(parse_status(Path("/proc/self/status").read_text()))


def parse_status(text: str) -> Privileges:
    """Read user and capability sets from /proc/PID/status.

    Raises:
        KeyError: a line is missing.
    """
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return Privileges(
        uid=int(lines["Uid"].split()[1]),
        effective=int(lines["CapEff"], 16),
        bounding=int(lines["CapBnd"], 16),
    )


def judge_privileges(found: Privileges) -> Check:
    """Say whether they are enough."""
    what = "privileges"
    held = [name for name in CAPABILITIES if found.has(name)]
    words = f"uid {found.uid}, {', '.join(held) or 'none of the capabilities that count'}"
    if found.uid != 0:
        return Check(
            "privileges",
            CheckState.FAILED,
            what,
            words,
            "the engine makes namespaces and restores processes of any user: it needs root",
            "run pitstop-node as root (`user: root` of the node, or sudo in `engine:`)",
        )
    missing = [name for name in _NEEDED if not found.has(name)]
    if missing:
        kept_out = [name for name in missing if not found.may_have(name)]
        return Check(
            "privileges",
            CheckState.FAILED,
            what,
            f"{words}; missing: {', '.join(missing)}",
            "; ".join(f"{name} is for {_NEEDED[name]}" for name in missing),
            _how_to_get(missing, kept_out),
        )
    notes = []
    if not found.has("CAP_CHECKPOINT_RESTORE"):
        notes.append("CAP_CHECKPOINT_RESTORE is missing, but CAP_SYS_ADMIN holds it in")
    if not found.has("CAP_SYS_RESOURCE"):
        notes.append(
            "CAP_SYS_RESOURCE is missing: harmless for workloads of root (CRIU logs `Can't setup "
            "RLIMIT_NOFILE` and goes on), but those of other users cannot be saved"
        )
    return Check("privileges", CheckState.OK, what, words, "; ".join(notes))


def _how_to_get(missing: list[str], kept_out: list[str]) -> str:
    if not kept_out:
        names = " ".join(missing)
        return f"AmbientCapabilities={names} in the systemd unit it is started by"
    names = " ".join(kept_out)
    short = " ".join(f"--cap-add {name.removeprefix('CAP_')}" for name in kept_out)
    return (
        f"they are outside the bounding set: add {names} to CapabilityBoundingSet= of the "
        f"systemd unit, or start the container with {short}"
    )
