"""What HAProxy's runtime API says, read without guessing. Pure.

Source: HAProxy management guide 2.6, section 9.1 (CSV), 9.3 (`show servers state`, `show stat`,
`set server`); the same in 2.2 to 3.2.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from pitstop.fleet.routers.router import NotUnderstood
from pitstop.model.errors import BadInput

_REPLICA = re.compile(r"([A-Za-z0-9_.:-]+)/([A-Za-z0-9_.:-]+)\Z", re.ASCII)

_CLOSED = {
    0x01: "MAINT, forced",
    0x02: "MAINT, of a tracked server",
    0x04: "MAINT, by its configuration",
    0x08: "DRAIN, forced",
    0x10: "DRAIN, of a tracked server",
    0x20: "MAINT, its name is not resolved",
}
_HARMLESS = 0x40  # its name was set by the socket

_OPERATION = {"0": "stopped", "1": "starting", "2": "running", "3": "stopping"}


@dataclass(frozen=True, slots=True)
class Server:
    """A server of a backend.

    Attributes:
        admin: bits of its administrative state.
        weight: 0 takes it out of load balancing like a drain.
        operation: what its health check makes of it.
    """

    admin: int
    weight: int
    operation: str

    @property
    def open(self) -> bool:
        """Whether it is given new requests, but for its health check."""
        return not self.admin & ~_HARMLESS and self.weight > 0

    @property
    def sealed(self) -> bool:
        """Whether it is kept from clients that are bound to it, too."""
        return bool(self.admin & (0x01 | 0x02 | 0x04 | 0x20))

    def __str__(self) -> str:
        said = [word for bit, word in _CLOSED.items() if self.admin & bit]
        unknown = self.admin & ~_HARMLESS & ~sum(_CLOSED)
        if unknown:
            said.append(f"administrative state {unknown:#x}, which is not known")
        if self.weight == 0:
            said.append("weight 0")
        return "; ".join([*(said or ["READY"]), self.operation])


def parse_replica(replica: str) -> tuple[str, str]:
    """Split `BACKEND/SERVER`.

    Raises:
        BadInput: it is not of that form. HAProxy's commands would take a `;` for another command.
    """
    found = _REPLICA.match(replica)
    if found is None:
        raise BadInput(replica, "is not BACKEND/SERVER of HAProxy")
    return found.group(1), found.group(2)


def parse_state(text: str, backend: str, server: str) -> Server:
    """Read one server from `show servers state BACKEND`.

    Raises:
        BadInput: there is no such backend or server.
        NotUnderstood: it is not that answer.
    """
    asked = f"show servers state {backend}"
    if "Can't find backend" in text:
        raise BadInput(f"{backend}/{server}", "HAProxy has no such backend")
    lines = text.split("\n")
    if lines[0].strip() != "1" or len(lines) < 2 or not lines[1].startswith("# "):
        raise NotUnderstood(asked, f"it answers {text.strip()[:200]!r}")
    names = lines[1][2:].split()
    for line in filter(None, (line.strip() for line in lines[2:])):
        values = line.split()
        if len(values) != len(names):
            raise NotUnderstood(asked, f"a line has not {len(names)} fields: {line[:200]!r}")
        row = dict(zip(names, values, strict=True))
        if (row.get("be_name"), row.get("srv_name")) != (backend, server):
            continue
        operation = row.get("srv_op_state", "")
        if operation not in _OPERATION:
            raise NotUnderstood(asked, f"srv_op_state is {operation!r}")
        return Server(
            _number(row.get("srv_admin_state"), asked, "srv_admin_state"),
            _number(row.get("srv_uweight"), asked, "srv_uweight"),
            _OPERATION[operation],
        )
    raise BadInput(f"{backend}/{server}", "HAProxy has no such server")


def parse_in_flight(text: str, backend: str, server: str) -> int:
    """Read the sessions that one server has and that wait for it from `show stat`.

    Raises:
        NotUnderstood: they are not there.
    """
    asked = "show stat"
    lines = text.split("\n")
    if not lines[0].startswith("# pxname,svname,"):
        raise NotUnderstood(asked, f"it answers {text.strip()[:200]!r}")
    for row in csv.DictReader([lines[0][2:], *filter(None, lines[1:])]):
        if (row["pxname"], row["svname"]) == (backend, server):
            return sum(_number(row.get(name), asked, name) for name in ("scur", "qcur"))
    raise NotUnderstood(asked, f"it has no line for {backend}/{server}")


def _number(value: str | None, asked: str, field: str) -> int:
    if value is None or not re.fullmatch(r"[0-9]{1,18}", value):
        raise NotUnderstood(asked, f"{field} is {value!r}, no number")
    return int(value)
