"""CRIU: where it is, and every option it is called with, each with its reason."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pitstop.images.checkpoint import Checkpoint
from pitstop.model.errors import PermanentError
from pitstop.model.words import Connections

PREFIX = Path("/opt/pitstop/criu/bin/criu")
MINIMUM = (4, 2)
"""Older ones cannot dump a TCP socket on current kernels, and their `check` does not tell."""

_LOG = "criu.log"


def program() -> str:
    """Return the path of CRIU: PITSTOP_CRIU, the private prefix, or PATH.

    Raises:
        PermanentError: there is none.
    """
    named = os.environ.get("PITSTOP_CRIU")
    for candidate in (named, str(PREFIX) if PREFIX.exists() else None, shutil.which("criu")):
        if candidate:
            return candidate
    raise PermanentError("criu", "not installed on this node", "run scripts/install-criu")


def version() -> str:
    """Return CRIU's version, such as `4.2.1`.

    Raises:
        PermanentError: it is missing or does not run.
    """
    try:
        output = subprocess.run(
            [program(), "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PermanentError("criu", f"does not run: {error}") from error
    found = re.search(r"^Version:\s*(\S+)", output, re.MULTILINE)
    if not found:
        raise PermanentError("criu", f"its version cannot be read from {output[:80]!r}")
    return found.group(1)


def shared_options(connections: Connections) -> list[str]:
    """Options that dump and restore must have in common (criu#457: they differ, it fails)."""
    options = [
        # The workload's place in the cgroup tree belongs to whoever starts it: on the next
        # start that may be another Slurm step or unit. CRIU must neither save nor move it.
        "--manage-cgroups=ignore",
        # Locks the tree holds among its own files (pid files, databases) come back with it;
        # without this CRIU refuses any tree that holds one.
        "--file-locks",
    ]
    if connections is Connections.KEEP:
        # Sockets are saved with their queues and blocked until they are rebuilt.
        options.append("--tcp-established")
    elif connections is Connections.CLOSE:
        # Connections are left out of the image; the restored process sees them as closed.
        options.append("--tcp-close")
    return options


def dump_command(
    checkpoint: Checkpoint,
    pid: int,
    options: Sequence[str],
    hook: Path | None,
    namespace_of: int | None,
) -> list[str]:
    """Return the command of a dump.

    Args:
        checkpoint: where to.
        pid: root of the tree, in the PID namespace CRIU runs in.
        options: from `shared_options`.
        hook: the action script that holds CRIU until the images are verified; None for a
            bare dump, to measure against.
        namespace_of: enter the PID and mount namespaces of this process first. CRIU then
            sees the workload in its own namespaces and neither saves nor rebuilds them,
            with all the mounts of a node, which a restore elsewhere could not provide.
    """
    enter = (
        ["nsenter", "--target", str(namespace_of), "--pid", "--mount", "--"]
        if namespace_of is not None
        else []
    )
    return [
        *enter,
        program(),
        "dump",
        "--tree",
        str(pid),
        *_places(checkpoint),
        *(["--action-script", str(hook)] if hook is not None else []),
        # Files that are deleted but open, or only reachable through a name that is gone
        # (Python's semaphores in /dev/shm: criu#2980), are saved with the image …
        "--link-remap",
        # … up to this size; beyond, the dump is refused rather than silently huge.
        "--ghost-limit",
        "256M",
        *options,
    ]


def restore_command(
    checkpoint: Checkpoint, options: Sequence[str], hook: Path, pid_file: Path
) -> list[str]:
    """Return the command of a restore, to be run by pid 1 of the workload's new namespaces."""
    return [
        program(),
        "restore",
        *_places(checkpoint),
        "--action-script",
        str(hook),
        # CRIU ends once the tree runs …
        "--restore-detached",
        # … and the tree's root becomes a child of the caller, which so learns its exit status.
        "--restore-sibling",
        "--pidfile",
        str(pid_file),
        *options,
    ]


def save_cpu(checkpoint: Checkpoint) -> None:
    """Write the CPU's features into the image directory, as CRIU will compare them.

    Raises:
        PermanentError: CRIU cannot tell them.
    """
    _cpuinfo("dump", checkpoint)


def check_cpu(checkpoint: Checkpoint) -> str:
    """Return why this CPU cannot run the image, or an empty text."""
    try:
        _cpuinfo("check", checkpoint)
    except PermanentError as error:
        return error.cause
    return ""


def _cpuinfo(verb: str, checkpoint: Checkpoint) -> None:
    result = subprocess.run(
        [program(), "cpuinfo", verb, *_places(checkpoint)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    if result.returncode != 0:
        raise PermanentError("criu cpuinfo", "; ".join(errors(checkpoint)) or "failed")


def errors(checkpoint: Checkpoint) -> list[str]:
    """Return the error lines of CRIU's log but for those known to mean nothing, or its end.

    On a full disk the log itself is cut, often before it could say why: that is said first.
    """
    try:
        text = (checkpoint.work / _LOG).read_text(errors="replace")
    except FileNotFoundError:
        return ["CRIU wrote no log"]
    found = re.findall(r"Error \([^)]*\): (.*)", text)
    named = [line.strip() for line in found if not _HARMLESS.search(line)][:20]
    last = [f"CRIU names no error; its log ends: {line}" for line in text.splitlines()[-1:]]
    room = os.statvfs(checkpoint.work)
    full = room.f_blocks > 0 and room.f_bfree * room.f_frsize < _LOG_ROOM
    return [*([os.strerror(errno.ENOSPC)] if full else []), *(named or last)]


_LOG_ROOM = 64 << 10
"""Bytes; with less than this left, lines of a log may be missing."""

# Logged on every run where root lacks CAP_SYS_RESOURCE, without any effect.
_HARMLESS = re.compile(r"rlimit: Can't setup RLIMIT_NOFILE")


def _places(checkpoint: Checkpoint) -> list[str]:
    return [
        "--images-dir",
        str(checkpoint.images),
        # Logs and statistics are written until CRIU's very end, after the image directory
        # has been digested and signed, so they go elsewhere.
        "--work-dir",
        str(checkpoint.work),
        "--log-file",
        _LOG,
        # CRIU's own plugin for CUDA would lock and checkpoint at another time, process by
        # process, and leaves GPUs checkpointed after an abort. So none is found: there are no
        # plugins in this directory.
        "--libdir",
        str(checkpoint.marks),
        # What a failure needs to be understood later; it costs no measurable time.
        "-v4",
    ]
