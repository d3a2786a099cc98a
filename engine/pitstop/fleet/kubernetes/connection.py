"""From `KubernetesSpec` to a client of the API. Credentials stay in the client."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import yaml

from pitstop.model.errors import BadInput, PermanentError
from pitstop.model.kubernetes import KubernetesSpec

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True)
class Connection:
    """A client, and what messages need to know of it.

    Attributes:
        server: the address of the API, without anything secret.
    """

    client: ApiClient
    server: str

    def without_secrets(self, text: str) -> str:
        """Return a text that a server sent with our credentials taken out.

        A server or a proxy in between may repeat a request in its complaint about it.
        """
        for value in self.client.configuration.api_key.values():
            for secret in (value, value.partition(" ")[2]):
                if secret:
                    text = text.replace(secret, "***")
        return text


def connect(spec: KubernetesSpec) -> Connection:
    """Read the configuration; nothing is sent yet.

    Raises:
        BadInput: it cannot be used; the error holds nothing of its content but names.
        PermanentError: the client is not installed.
    """
    try:
        from kubernetes import client
    except ImportError as error:
        raise PermanentError(
            "kubernetes", "its client is not installed", "pip install 'pitstop[kubernetes]'"
        ) from error
    configuration = client.Configuration()
    # A proxy of the environment is none of the site's; a kubeconfig may name one.
    configuration.proxy = None
    configuration.no_proxy = None
    _load(spec, configuration)
    # Without it a redirect would be followed with our token, and a 429 be waited for unseen.
    configuration.retries = False
    _check(configuration, spec.kubeconfig or SERVICE_ACCOUNT)
    return Connection(client.ApiClient(configuration), _server(configuration.host))


def _load(spec: KubernetesSpec, configuration: Configuration) -> None:
    from kubernetes import config

    where = spec.kubeconfig or SERVICE_ACCOUNT
    try:
        if spec.kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            # The client takes a file that is not there for one without content.
            Path(spec.kubeconfig).open("rb").close()
            config.load_kube_config(
                config_file=spec.kubeconfig,
                context=spec.context,
                client_configuration=configuration,
                persist_config=False,
            )
    except config.ConfigException as error:
        raise BadInput(where, str(error).splitlines()[0][:300]) from None
    except OSError as error:
        raise BadInput(error.filename or where, error.strerror or type(error).__name__) from None
    except yaml.MarkedYAMLError as error:
        # Its own text quotes the line, and that may be a token.
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadInput(f"{where}{line}", "is no YAML") from None
    except (LookupError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise BadInput(where, f"is no kubeconfig ({type(error).__name__})") from None


def _check(configuration: Configuration, where: str) -> None:
    """Refuse what would send credentials to whoever answers."""
    url = urlsplit(configuration.host)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise BadInput(where, f"its server {_server(configuration.host)!r} is no address")
    if url.scheme == "http" and not _is_loopback(url.hostname):
        raise BadInput(where, f"{_server(configuration.host)} is not encrypted", "use https")
    if not configuration.verify_ssl:
        raise BadInput(
            where,
            "insecure-skip-tls-verify: whoever answers would get the credentials",
            "give certificate-authority",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server(host: str) -> str:
    """Return an address without a user and password that may stand in it."""
    url = urlsplit(host)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
