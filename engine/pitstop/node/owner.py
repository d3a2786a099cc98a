"""Whose workload it is, where users start theirs through sudo.

CRIU and namespaces need root, and a scheduler's jobs are their users'. So a site lets them run
`pitstop-node launch` through sudo, and nothing else of it. What runs then is theirs, runs as
them and has a name of theirs; options that are root's are refused here, since a rule of sudo
cannot tell one from another.

It is no border against a user who means harm: CRIU restores as root, and opens the files of a
workload by their paths, which its user can change in between.
"""

from __future__ import annotations

import argparse
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from pitstop.model.errors import BadInput
from pitstop.model.plain import is_name

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

    def name_for(self, workload: str) -> str:
        """Return the name of a workload of this user, which is nobody else's.

        Raises:
            BadInput: it is no name.
        """
        name = f"{self.name}.{workload}"
        if not is_name(workload) or not is_name(name):
            raise BadInput(repr(name), "not a name: up to 63 of letters, digits, '.', '_', '-'")
        return name

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
        # Not by ==, to which 0 is False.
        given = not (value is None or value is False or value == "")
        if name not in ALLOWED and given:
            raise BadInput(
                f"--{name.replace('_', '-')}",
                "not for a user's launch through sudo",
                "in a root shell of sudo: env -u SUDO_UID",
            )


def name_of(uid: int) -> str:
    """Return a user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
