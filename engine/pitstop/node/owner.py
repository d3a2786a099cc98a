"""Whose workload it is, where users start theirs through sudo.

CRIU and namespaces need root, and a scheduler's jobs are their users'. So a site lets them run
`pitstop-node launch` through sudo, and nothing else of it. What runs then is theirs and runs as
them; and what would let them have root read, write or restore anything of their choice is
refused here, since a rule of sudo cannot tell one option from another.
"""

from __future__ import annotations

import argparse
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from pitstop.model.errors import BadInput

ALLOWED = frozenset(
    {"handler", "workload", "start", "cwd", "deny_io_uring", "environment_stdin", "command"}
)
"""What a user may say of a launch: which one, from where, and what is run."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A user, as the kernel and the user's programs know one."""

    uid: int
    gid: int
    name: str
    home: str

    def become(self) -> None:
        """Give up root for good. Groups first: afterwards they cannot be changed."""
        os.setgroups(os.getgrouplist(self.name, self.gid))
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

    def environment(self) -> dict[str, str]:
        """What is the user's and was root's a moment ago."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def through_sudo(environment: Mapping[str, str]) -> Owner | None:
    """Return who runs this through sudo; None for root itself.

    sudo sets SUDO_UID, whatever its caller's environment holds (sudo's manual, ENVIRONMENT).

    Raises:
        BadInput: there is no such user.
    """
    text = environment.get("SUDO_UID", "")
    if not text.isdecimal() or int(text) == 0 or os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwuid(int(text))
    except KeyError:
        raise BadInput("SUDO_UID", f"there is no user {text}") from None
    return Owner(found.pw_uid, found.pw_gid, found.pw_name, found.pw_dir)


def refuse_what_is_roots(arguments: argparse.Namespace) -> None:
    """Refuse options that are not for users.

    Raises:
        BadInput: one was given.
    """
    for name, value in vars(arguments).items():
        if name not in ALLOWED and value not in (None, "", False):
            raise BadInput(f"--{name.replace('_', '-')}", "not for a user's launch through sudo")


def name_of(uid: int) -> str:
    """Return a user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
