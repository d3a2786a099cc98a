"""A router as a person declares it: what stands before workloads and gives them requests.

Secrets are never written here: a `token_file` names a file on the controller, whose first
line is sent as a bearer token.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pitstop.model.base import Model
from pitstop.model.ssh import Ssh
from pitstop.model.workload import Command, HttpUrl, Seconds

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]*$", max_length=4000)]
BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s?#]+$", max_length=2000)]


class Haproxy(Model):
    """HAProxy, by its runtime API. A replica is `BACKEND/SERVER`.

    Attributes:
        socket: a stats socket with `level admin`: an absolute path, or `tcp:ADDRESS:PORT`.
        close_with: what keeps requests away while those in flight end. `drain` still lets
            clients in that are bound to the server by a cookie or a stick table; `maint`
            does not, and stops its health checks. After a drain it is set to maint as well.
        ssh: the machine of the socket, if it is not the controller's. Python 3.7 is needed there.
    """

    kind: Literal["haproxy"]
    socket: Annotated[str, Field(pattern=r"^(/[^\x00]+|tcp:[^\s:]+:[0-9]{1,5})$", max_length=300)]
    close_with: Literal["drain", "maint"] = "drain"
    timeout: Seconds = 10
    ssh: Ssh | None = None


class Nginx(Model):
    """nginx without Plus: `down` at a server of an upstream, and a reload.

    A replica is the address of that server as it is written there. nginx cannot say how many
    requests one server has in flight, so the workload's own `drain.in_flight` is needed.

    Attributes:
        file: the file with the server's line.
        upstream: where the file has several that name the same server.
        program: how nginx is started, with `-c` and `-p` where it needs them; `-t` and
            `-s reload` are added.
        pid_file: of its master process.
        deadline: seconds until all of its workers must have the new configuration.
        ssh: the machine of nginx, if it is not the controller's. Python 3.7 is needed there.
    """

    kind: Literal["nginx"]
    file: AbsolutePath
    upstream: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    program: Command = ("nginx",)
    pid_file: AbsolutePath = "/run/nginx.pid"
    deadline: Seconds = 30
    ssh: Ssh | None = None


class NginxPlus(Model):
    """NGINX Plus, by its API. A replica is the address of a server of the upstream.

    Attributes:
        url: of the API with its version, as `http://lb:8080/api/9`.
    """

    kind: Literal["nginx-plus"]
    url: BaseUrl
    upstream: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=200)]
    token_file: AbsolutePath | None = None
    timeout: Seconds = 10


class SglangGateway(Model):
    """SGLang's model gateway (`sglang-router`, `smg`). A replica is the URL of a worker.

    The gateway drains by a timer. What is in flight is asked of the worker itself, so its
    URL must be reachable from the controller.

    Attributes:
        url: of the gateway.
        token_file: for its control plane.
        worker_token_file: what the gateway sends to the worker, registered with it again; the
            gateway does not tell it.
        deadline: seconds until a worker must be registered again, or gone.
    """

    kind: Literal["sglang-gateway"]
    url: BaseUrl
    token_file: AbsolutePath | None = None
    worker_token_file: AbsolutePath | None = None
    timeout: Seconds = 10
    deadline: Seconds = 120


class VllmStack(Model):
    """The router of vLLM's production stack, with static backends. A replica is a backend's URL.

    Attributes:
        url: of the router.
        config: the file it was given as `--dynamic-config-json`.
        deadline: seconds until it must have read the file again; it looks every 10 by default.
        ssh: the machine of the file, if it is not the controller's. Python 3.7 is needed there.
    """

    kind: Literal["vllm-production-stack"]
    url: BaseUrl
    config: AbsolutePath
    token_file: AbsolutePath | None = None
    timeout: Seconds = 10
    deadline: Seconds = 60
    ssh: Ssh | None = None


class Litellm(Model):
    """LiteLLM's proxy with its database. A replica is the id of a model's deployment.

    It has no number of requests in flight for one deployment, so the workload's own
    `drain.in_flight` is needed.

    Attributes:
        url: of the proxy.
        token_file: an admin's key.
        spreads: seconds until every process of the proxy has read the database again.
    """

    kind: Literal["litellm"]
    url: BaseUrl
    token_file: AbsolutePath
    timeout: Seconds = 10
    spreads: Annotated[float, Field(ge=0, le=3600)] = 30


class Call(Model):
    """One HTTP call to a router. `{replica}` in its URL is replaced, quoted, by the replica."""

    url: HttpUrl
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    body: str | None = None
    status: Annotated[int, Field(ge=100, le=599)] = 200


class Reading(Model):
    """A field that says whether a replica is open.

    Attributes:
        url: read by GET; `{replica}` is replaced, quoted.
        json_field: dotted path to a text, number or truth value.
        open: its value when requests are given to the replica; `true` for a truth value.
        closed: its value when they are not. Any other is not understood.
    """

    url: HttpUrl
    json_field: str
    open: str
    closed: str

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.open == self.closed:
            raise ValueError("open and closed must differ")
        return self


class Count(Model):
    """The number of a replica's requests in flight, as its router knows it.

    Attributes:
        url: read by GET; `{replica}` is replaced, quoted.
        json_field: dotted path into a JSON answer.
        metric: name of a Prometheus metric; all its series with these labels are added up.
        labels: which series; `{replica}` in a value is replaced as it is.
    """

    url: HttpUrl
    json_field: str | None = None
    metric: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.json_field is None) == (self.metric is None):
            raise ValueError("give exactly one of json_field and metric")
        if self.labels and self.metric is None:
            raise ValueError("labels choose series of a metric")
        return self


class HttpRouter(Model):
    """Any other router that has HTTP calls for it.

    Attributes:
        in_flight: without it, the workload's own `drain.in_flight` is needed.
    """

    kind: Literal["http"]
    close: Call
    open: Call
    admission: Reading
    in_flight: Count | None = None
    token_file: AbsolutePath | None = None
    timeout: Seconds = 10


RouterSpec = Annotated[
    Haproxy | Nginx | NginxPlus | SglangGateway | VllmStack | Litellm | HttpRouter,
    Field(discriminator="kind"),
]


def counts(spec: RouterSpec) -> bool:
    """Tell whether a replica's requests in flight can be counted by way of its router."""
    if isinstance(spec, HttpRouter):
        return spec.in_flight is not None
    return not isinstance(spec, Nginx | Litellm)
