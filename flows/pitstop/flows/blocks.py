"""Blocks: a site, and the key its nodes are reached with."""

from __future__ import annotations

import io
from pathlib import Path

import paramiko
from prefect.blocks.abstract import CredentialsBlock
from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from pitstop.model.errors import BadInput
from pitstop.model.site import Site
from pitstop.model.yamltext import load_model
from pitstop.steps.identities import key_text, with_identity

_DOCUMENTATION = "https://docs.prefect.io/v3/concepts/blocks"


class SshCredentials(CredentialsBlock):
    """The private key that nodes are reached with.

    Example:
        Load stored credentials:
        ```python
        from pitstop.flows import SshCredentials

        credentials = SshCredentials.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "pitstop SSH Credentials"
    _block_type_slug = "pitstop-ssh-credentials"
    _documentation_url = _DOCUMENTATION  # type: ignore[assignment]

    private_key: SecretStr = Field(
        description="An unencrypted private key in OpenSSH or PEM form, as text."
    )

    def get_client(self) -> paramiko.PKey:
        """Return the key as paramiko knows it, having checked that it is one.

        Raises:
            BadInput: it is not a usable private key.
        """
        text = key_text(self.private_key.get_secret_value())
        for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
            try:
                return kind.from_private_key(io.StringIO(text))
            except (paramiko.SSHException, ValueError, TypeError, IndexError):
                continue  # a key of another kind
        raise BadInput("private_key", "not an unencrypted private key in OpenSSH or PEM form")


class PitstopSite(Block):
    """A site: its nodes, workloads and policy, with the key to reach the nodes.

    Example:
        Load a stored site:
        ```python
        from pitstop.flows import PitstopSite

        site = PitstopSite.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "pitstop Site"
    _block_type_slug = "pitstop-site"
    _documentation_url = _DOCUMENTATION  # type: ignore[assignment]

    site_yaml: str = Field(description="The text of the site's site.yaml.")
    home: str = Field(
        default="",
        description=(
            "Directory of journal and reports, shared by all workers of this site. "
            "Empty is PITSTOP_HOME, else the user's state directory."
        ),
    )
    credentials: SshCredentials | None = Field(
        default=None, description="The key to reach the nodes; else what site.yaml says."
    )

    def get_site(self, keys: Path) -> Site:
        """Return the checked site, with the credentials' key file put in for every SSH node.

        Args:
            keys: directory the key file is written to.

        Raises:
            BadInput: site.yaml or the key is wrong.
        """
        site = load_model(Site, self.site_yaml, "site.yaml (block)")
        if self.credentials is None:
            return site
        self.credentials.get_client()
        return with_identity(site, self.credentials.private_key.get_secret_value(), keys)


def stored_site(name: str) -> PitstopSite:
    """Load a stored site. Not for coroutines: `await PitstopSite.aload(name)` is.

    Raises:
        BadInput: there is none of that name.
    """
    try:
        found = PitstopSite.load(name)
    except ValueError as error:
        raise BadInput(f"block:{name}", str(error), "prefect block ls") from None
    assert isinstance(found, PitstopSite)  # noqa: S101  # a coroutine it is in coroutines alone
    return found
