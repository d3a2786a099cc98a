"""Restart the node this runs in, or switch it off.

`python -m pitstop.lab.reboot [--poweroff] [--delay SECONDS]`

With a delay the command returns at once and the node goes down later, so that whoever asked
over SSH gets an answer.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pitstop.lab.syscalls import RB_AUTOBOOT, RB_POWER_OFF, reboot

# A node's pid 1 writes the inode of its pid namespace here, below its own /run.
MARK = Path("/run/pitstop-lab-pidns")


def pid_namespace() -> str:
    """Name the pid namespace this process is in."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


def inside_node() -> bool:
    """Whether reboot(2) would end a node of a lab, and nothing else."""
    try:
        return MARK.read_text() == pid_namespace()
    except FileNotFoundError:
        return False


def _leave_caller() -> bool:
    """Go on in a process that holds nothing of the caller's; False in the caller itself."""
    if os.fork() != 0:
        return False
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="pitstop.lab.reboot", description=__doc__)
    parser.add_argument("--poweroff", action="store_true", help="switch off instead")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    if not inside_node():
        sys.stderr.write("not inside a node of a lab: this would restart the machine\n")
        return 2
    if options.delay > 0:
        if not _leave_caller():
            return 0
        time.sleep(options.delay)
    os.sync()
    reboot(RB_POWER_OFF if options.poweroff else RB_AUTOBOOT)
    return 1  # not reached: the kernel has ended this process


if __name__ == "__main__":
    raise SystemExit(main())
