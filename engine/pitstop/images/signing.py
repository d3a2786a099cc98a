"""Signatures over manifests: DSSE envelopes with an Ed25519 key of the node.

A memory image is code that will run as root, so nothing of it is used before a signature by
a trusted key is verified. A node trusts its own key and the public keys that an operator
put into `keys/trusted/`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pitstop.images.durable import make_directory, sync_directory, write_atomic
from pitstop.model.errors import BadInput, InvalidCheckpoint


class Keys:
    """The keys below one directory: `signing.pem` (0600, made on first use), `trusted/*.pem`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.private = directory / "signing.pem"

    def check(self) -> None:
        """See that there is a key to sign with.

        Raises:
            InvalidCheckpoint: it is not kept safe.
        """
        self._signer()

    def public(self, make: bool = False) -> bytes | None:
        """Return the node's own public key as PEM; None while it has none.

        Args:
            make: make the key if there is none.

        Raises:
            InvalidCheckpoint: it is not kept safe.
        """
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        if not make and not self.private.exists():
            return None
        key = self._private_key().public_key()
        return bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def trusts(self, public: bytes) -> bool:
        """Tell whether what is signed with a key would be believed here."""
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
        from securesystemslib.signer import SSlibKey

        wanted = SSlibKey.from_crypto(load_pem_public_key(public)).keyid
        return wanted in {key.keyid for key in self._trusted()}

    def trust(self, name: str, public: bytes) -> None:
        """Believe from now on what is signed with a key.

        Args:
            name: of the node that it belongs to; a file name.
            public: the key as PEM.

        Raises:
            BadInput: it is no public key.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            load_pem_public_key(public)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BadInput(name, f"not a public key in PEM: {error}") from error
        make_directory(self.directory / "trusted")
        write_atomic(self.directory / "trusted" / f"{name}.pem", public)

    def sign(self, payload: bytes, payload_type: str) -> bytes:
        """Return a DSSE envelope over the payload, as JSON bytes."""
        from securesystemslib.dsse import Envelope

        envelope = Envelope(payload, payload_type, {})
        envelope.sign(self._signer())
        return json.dumps(envelope.to_dict()).encode()

    def verify(self, envelope_json: bytes, payload_type: str, subject: str) -> bytes:
        """Return the payload of an envelope signed by a trusted key.

        Raises:
            InvalidCheckpoint: not an envelope, of another type, or not signed by such a key.
        """
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import VerificationError

        try:
            envelope = Envelope.from_dict(json.loads(envelope_json))
            keys = self._trusted()
            if envelope.payload_type != payload_type:
                raise InvalidCheckpoint(subject, f"signed as {envelope.payload_type!r}")
            if not keys:
                raise InvalidCheckpoint(subject, "this node has no key to verify it with")
            envelope.verify(keys, 1)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidCheckpoint(subject, f"the signature file is damaged: {error}") from error
        except VerificationError as error:
            raise InvalidCheckpoint(
                subject,
                "the manifest is not signed by a key this node trusts",
                "it was edited, or its signer's public key is missing in keys/trusted/",
            ) from error
        return bytes(envelope.payload)

    def _signer(self) -> Any:
        from securesystemslib.signer import CryptoSigner

        return CryptoSigner(self._private_key())

    def _private_key(self) -> Any:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if not self.private.exists():
            self._make()
        mode = self.private.stat().st_mode & 0o077
        if mode:
            raise InvalidCheckpoint(str(self.private), "the signing key is readable by others")
        return load_pem_private_key(self.private.read_bytes(), None)

    def _make(self) -> None:
        """Make the key; of several processes that try at once exactly one key stays."""
        from securesystemslib.signer import CryptoSigner

        fresh = self.directory / f".signing.{os.getpid()}.pem"
        write_atomic(fresh, CryptoSigner.generate_ed25519().private_bytes)
        try:
            os.link(fresh, self.private)
            sync_directory(self.directory)
        except FileExistsError:
            return
        finally:
            fresh.unlink()

    def _trusted(self) -> list[Any]:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
        from securesystemslib.signer import SSlibKey

        keys = [self._signer().public_key] if self.private.exists() else []
        for path in sorted((self.directory / "trusted").glob("*.pem")):
            keys.append(SSlibKey.from_crypto(load_pem_public_key(path.read_bytes())))
        return keys
