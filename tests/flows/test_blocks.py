"""The two blocks: as Prefect wants blocks to be, and with every kind of key people have."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites.blocks import BlockStandardTestSuite
from pydantic import SecretStr

from pitstop.flows import PitstopSite, SshCredentials
from pitstop.flows.blocks import stored_site
from pitstop.model.errors import BadInput
from tests.flows import api

ED25519 = ed25519.Ed25519PrivateKey.generate()
ECDSA = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)

SITE: dict[str, Any] = {
    "schema": "pitstop/site/v1",
    "name": "lab",
    "nodes": {
        "gpu1": {"ssh": {"address": "gpu1.example.org", "identity_file": "/nowhere"}},
        "here": {},
    },
}


class Suite(BlockStandardTestSuite):
    """What Prefect asks of a block."""

    def test_has_a_valid_image(self, block: type[Block]) -> None:
        # None, on purpose: browsers would load it from somewhere else.
        assert block._logo_url is None


class TestSshCredentials(Suite):
    @pytest.fixture
    def block(self) -> type[Block]:
        return SshCredentials


class TestPitstopSite(Suite):
    @pytest.fixture
    def block(self) -> type[Block]:
        return PitstopSite


def text(
    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    form: PrivateFormat = PrivateFormat.OpenSSH,
    encryption: KeySerializationEncryption | None = None,
) -> str:
    return key.private_bytes(Encoding.PEM, form, encryption or NoEncryption()).decode()


def credentials(private_key: str) -> SshCredentials:
    return SshCredentials(private_key=SecretStr(private_key))


KEYS = {
    "ed25519": (text(ED25519), "ssh-ed25519"),
    "ecdsa": (text(ECDSA), "ecdsa-sha2-nistp256"),
    "ecdsa pem": (text(ECDSA, PrivateFormat.TraditionalOpenSSL), "ecdsa-sha2-nistp256"),
    "rsa": (text(RSA), "ssh-rsa"),
    "rsa pem": (text(RSA, PrivateFormat.TraditionalOpenSSL), "ssh-rsa"),
}
PRIVATE = KEYS["ed25519"][0]

NO_KEYS = {
    "encrypted": text(ED25519, encryption=BestAvailableEncryption(b"secret")),
    "encrypted pem": text(
        RSA, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret")
    ),
    "public": ED25519.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode(),
    "cut": PRIVATE[:200],
    "damaged": text(RSA).replace("A", "B", 20),
    "other label": text(ECDSA).replace("OPENSSH", "RSA"),
    "nothing in it": "-----BEGIN OPENSSH PRIVATE KEY-----\n\n-----END OPENSSH PRIVATE KEY-----",
    "no base64": "-----BEGIN RSA PRIVATE KEY-----\n%%%\n-----END RSA PRIVATE KEY-----",
    "no end": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "a path": "/root/.ssh/id_ed25519",
    "no text": "\0\udcff",
    "empty": "",
}


def site_with(private_key: str) -> PitstopSite:
    return PitstopSite(site_yaml=json.dumps(SITE), credentials=credentials(private_key))


@pytest.mark.parametrize("case", KEYS)
def test_keys_of_every_kind(tmp_path: Path, case: str) -> None:
    """As they are, and as forms and editors leave them; the file is what OpenSSH reads."""
    private_key, kind = KEYS[case]
    client = credentials(private_key).get_client()
    assert client.get_name() == kind
    for form in (
        private_key,
        private_key.strip(),
        f"\n  {private_key}\n\n",
        private_key.replace("\n", "\r\n"),
    ):
        assert credentials(form).get_client() == client
        site_with(form).get_site(tmp_path / "keys")
    [path] = (tmp_path / "keys").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True
    ).stdout.split()
    assert public[:2] == [kind, client.get_base64()]
    assert paramiko.PKey.from_path(path) == client


@pytest.mark.parametrize("case", NO_KEYS)
def test_what_is_no_usable_key_is_refused(tmp_path: Path, case: str) -> None:
    private_key = NO_KEYS[case]
    for use in (
        credentials(private_key).get_client,
        lambda: site_with(private_key).get_site(tmp_path / "keys"),
    ):
        with pytest.raises(BadInput, match="not an unencrypted private key") as caught:
            use()
        assert private_key == "" or private_key not in str(caught.value)
    assert not (tmp_path / "keys").exists()


def test_site_gets_the_key_for_its_ssh_nodes(tmp_path: Path) -> None:
    site = site_with(PRIVATE).get_site(tmp_path / "keys")
    [path] = (tmp_path / "keys").iterdir()
    assert site.nodes["here"].ssh is None
    assert site.nodes["gpu1"].ssh is not None
    assert site.nodes["gpu1"].ssh.identity_file == str(path)
    assert site.nodes["gpu1"].ssh.address == "gpu1.example.org"

    # Another key does not take the place of one that a run was planned with.
    site_with(KEYS["ecdsa"][0]).get_site(tmp_path / "keys")
    assert len(list((tmp_path / "keys").iterdir())) == 2
    assert path.read_text() == PRIVATE

    bare = PitstopSite(site_yaml=json.dumps(SITE)).get_site(tmp_path / "none")
    assert bare.nodes["gpu1"].ssh is not None
    assert bare.nodes["gpu1"].ssh.identity_file == "/nowhere"
    assert not (tmp_path / "none").exists()


def test_wrong_site_is_named_with_its_line(tmp_path: Path) -> None:
    wrong = json.dumps({**SITE, "nodes_": {}}, indent=1)
    with pytest.raises(BadInput) as caught:
        PitstopSite(site_yaml=wrong, credentials=credentials(PRIVATE)).get_site(tmp_path)
    assert caught.value.subject.startswith("site.yaml (block):")
    assert "nodes_" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_entry_point_registers_both() -> None:
    """As Prefect's own commands do it: by the entry point, without naming this package."""
    code = (
        "from prefect.plugins import load_prefect_collections\n"
        "from prefect.blocks.core import Block\n"
        "from prefect.utilities.dispatch import lookup_type\n"
        "assert 'pitstop' in load_prefect_collections()\n"
        "for slug in ('pitstop-site', 'pitstop-ssh-credentials'):\n"
        "    print(lookup_type(Block, slug).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PitstopSite", "SshCredentials"]


def test_stored_and_loaded(server: str) -> None:
    credentials(PRIVATE).save("round-trip-key")
    key = SshCredentials.load("round-trip-key")
    assert isinstance(key, SshCredentials)
    assert key.get_client() == credentials(PRIVATE).get_client()
    site = PitstopSite(site_yaml=json.dumps(SITE), home="/srv/pitstop", credentials=key)
    site.save("round-trip")
    found = stored_site("round-trip")
    assert found == site
    assert found.credentials is not None
    assert found.credentials.private_key.get_secret_value() == PRIVATE

    # Stored again under the same name, it replaces; only on request.
    with pytest.raises(ValueError, match="already in use"):
        site.save("round-trip")
    PitstopSite(site_yaml="{}").save("round-trip", overwrite=True)
    assert stored_site("round-trip").site_yaml == "{}"

    secret_line = PRIVATE.splitlines()[1]
    assert secret_line not in repr(found) + str(found) + found.model_dump_json()
    shown = json.dumps(api.ask("block_documents/filter", {}))
    assert "round-trip-key" in shown
    assert secret_line not in shown
    with pytest.raises(BadInput, match="block:elsewhere"):
        stored_site("elsewhere")
