"""How a machine is reached by SSH."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pitstop.model.base import Argument, Model
from pitstop.model.workload import Seconds


class Ssh(Model):
    """How a machine is reached by SSH.

    Attributes:
        host_keys: public host keys, `type base64`. Where given, only these are accepted.
        known_hosts: a known_hosts file to check against otherwise; default the user's own.
        identity_file: private key. Without it the agent and default keys are asked.
        proxy_command: argument list that connects its stdin and stdout to the node's SSH
            port; `%h` and `%p` alone in an argument become address and port.
        keepalive: seconds between keepalive messages; three unanswered end the connection.
    """

    address: Annotated[str, Field(min_length=1, max_length=255)]
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    user: Annotated[str, Field(min_length=1, max_length=64)] = "root"
    host_keys: tuple[Annotated[str, Field(pattern=r"^[a-z0-9@.-]+ [A-Za-z0-9+/=]+")], ...] = ()
    known_hosts: str | None = None
    identity_file: str | None = None
    proxy_command: tuple[Argument, ...] = ()
    connect_timeout: Seconds = 15
    keepalive: Annotated[float, Field(gt=0, le=3600)] = 5
