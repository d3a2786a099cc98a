"""Which processes have a GPU open, as the kernel shows it, and what that means for saving them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

from pitstop.decide.support import obstacles
from pitstop.model.inventory import Inventory
from pitstop.node.blockers import Blocker
from pitstop.node.processes import Identity

_DEVICE = re.compile(r"/dev/nvidia[^/]*(/[^/]*)?$")
"""A device of the driver: nvidia0, nvidiactl, nvidia-uvm, nvidia-caps/nvidia-cap1. The path may
begin elsewhere: with the root of a container, as it is seen from outside."""


def gpu_users(tree: Sequence[Identity]) -> list[Identity]:
    """Return the processes of a tree that have a device of the driver open or mapped."""
    return [process for process in tree if _uses_gpu(process.pid)]


def gpu_blockers(inventory: Inventory) -> list[Blocker]:
    """Return what of this node keeps a workload from being saved that has a GPU open."""
    return [
        Blocker(found.what, found.where, found.why, found.fix)
        for found in obstacles(inventory, os.uname().machine)
    ]


def _uses_gpu(pid: int) -> bool:
    for kind in ("fd", "map_files"):
        directory = f"/proc/{pid}/{kind}"
        try:
            entries = os.listdir(directory)
        except (FileNotFoundError, ProcessLookupError):
            return False  # it ended; the caller notices by its identity
        if any(_is_gpu(f"{directory}/{entry}") for entry in entries):
            return True
    return False


def _is_gpu(link: str) -> bool:
    try:
        return bool(_DEVICE.search(os.readlink(link))) and stat.S_ISCHR(os.stat(link).st_mode)
    except OSError:
        return False  # closed while we looked
