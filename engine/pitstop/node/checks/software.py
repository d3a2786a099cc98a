"""Programs: CRIU itself, what a dump calls, and what a controller comes in by."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from pitstop.model.errors import PitstopError
from pitstop.node import criu
from pitstop.node.checks.check import Check, CheckState

TOOLS = ("nsenter", "iptables-restore", "ip6tables-restore", "sshd")
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def criu_version() -> Check:
    """Look at CRIU."""
    try:
        return judge_criu(criu.version(), criu.program())
    except PitstopError as error:
        return Check(
            "criu",
            CheckState.FAILED,
            "CRIU",
            error.cause,
            "without it no process can be saved",
            "scripts/install-criu, or PITSTOP_CRIU=/path/to/criu",
        )


def judge_criu(version: str, program: str) -> Check:
    """Compare CRIU's version with the oldest that works."""
    minimum = ".".join(map(str, criu.MINIMUM))
    found = f"{version} at {program}"
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        return Check(
            "criu",
            CheckState.UNKNOWN,
            "CRIU",
            found,
            f"its version cannot be compared with {minimum}",
            "scripts/install-criu",
        )
    if tuple(map(int, match.group().split("."))) < criu.MINIMUM:
        return Check(
            "criu",
            CheckState.FAILED,
            "CRIU",
            found,
            f"older than {minimum}: it cannot dump a TCP socket on current kernels, "
            "and its own `criu check` does not tell",
            "scripts/install-criu",
        )
    return Check("criu", CheckState.OK, "CRIU", found)


def tools() -> list[Check]:
    """Look for the other programs. /usr/sbin counts, as it does for the engine's workloads."""
    return judge_tools(
        {name: shutil.which(name) or shutil.which(name, path=_SBIN) for name in TOOLS}
    )


def _which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SBIN)


def judge_tools(paths: Mapping[str, str | None]) -> list[Check]:
    """Say what a missing program means."""
    return [_nsenter(paths.get("nsenter")), _network_lock(paths), _sshd(paths.get("sshd"))]


def _nsenter(path: str | None) -> Check:
    if path:
        return Check("nsenter", CheckState.OK, "nsenter", path)
    return Check(
        "nsenter",
        CheckState.FAILED,
        "nsenter",
        "not installed",
        "CRIU dumps a launched workload from inside its namespaces",
        "apt-get install util-linux",
    )


def _network_lock(paths: Mapping[str, str | None]) -> Check:
    wanted = ("iptables-restore", "ip6tables-restore")
    missing = [name for name in wanted if not paths.get(name)]
    if not missing:
        return Check(
            "network-lock",
            CheckState.OK,
            "CRIU's network lock",
            ", ".join(str(paths[name]) for name in wanted),
        )
    return Check(
        "network-lock",
        CheckState.WARNING,
        "CRIU's network lock",
        f"not installed: {', '.join(missing)}",
        "with `connections: keep` CRIU holds back packets during a dump by these; "
        "`close` and `refuse` work without",
        "apt-get install iptables",
    )


def _sshd(path: str | None) -> Check:
    if path:
        return Check("sshd", CheckState.OK, "SSH server", path)
    return Check(
        "sshd",
        CheckState.ABSENT,
        "SSH server",
        "not installed",
        "a controller on another machine reaches this node by SSH; "
        "a controller on this machine needs none",
        "apt-get install openssh-server",
    )
