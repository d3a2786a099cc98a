"""Which host keys a node may show.

Keys in site.yaml are the only ones accepted where they are given; else those of a known_hosts
file. A line of that file that is broken or of an unknown kind is skipped and named, so that
it cannot hide the others; a revoked key is refused whatever else is said of it; certificate
authorities are not supported and never taken for plain keys.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The keys of one host, each as (type, blob).

    Attributes:
        trusted: accepted.
        revoked: refused, also if trusted.
        source: where they come from, for messages.
    """

    trusted: frozenset[tuple[str, bytes]]
    revoked: frozenset[tuple[str, bytes]] = field(default_factory=frozenset)
    source: str = "site.yaml"

    def refusal(self, kind: str, blob: bytes) -> str:
        """Return why a key is refused, or an empty text."""
        shown = fingerprint(blob)
        if (kind, blob) in self.revoked:
            return f"its {kind} key {shown} is revoked in {self.source}"
        if (kind, blob) in self.trusted:
            return ""
        if not self.trusted:
            return f"it shows {kind} {shown}, and {self.source} knows no key of it"
        known = ", ".join(sorted(f"{k} {fingerprint(b)}" for k, b in self.trusted))
        return f"it shows {kind} {shown}; known from {self.source}: {known}"


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def from_lines(lines: Iterable[str]) -> frozenset[tuple[str, bytes]]:
    """Read public keys of the form `type base64`.

    Raises:
        ValueError: one is not.
    """
    keys = set()
    for line in lines:
        parts = line.split()
        keys.add((parts[0], base64.b64decode(parts[1], validate=True)))
    return frozenset(keys)


def from_known_hosts(text: str, host: str, port: int, source: str) -> HostKeys:
    """Read the keys of one host from the text of a known_hosts file (sshd(8))."""
    name = host if port == 22 else f"[{host}]:{port}"
    trusted: set[tuple[str, bytes]] = set()
    revoked: set[tuple[str, bytes]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) < 3:
            log.warning("%s:%d: skipped: not a key line", source, number)
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
            matches = _matches(fields[0], name)
        except ValueError as error:
            log.warning("%s:%d: skipped: %s", source, number, error)
            continue
        if not blob or not blob[4:].startswith(fields[1].encode()):
            log.warning("%s:%d: skipped: not a key of type %s", source, number, fields[1])
            continue
        if not matches:
            continue
        if marker == "@revoked":
            revoked.add((fields[1], blob))
        elif marker:
            log.warning("%s:%d: skipped: %s is not supported", source, number, marker)
        else:
            trusted.add((fields[1], blob))
    return HostKeys(frozenset(trusted), frozenset(revoked), source)


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        salt, digest = patterns[3:].split("|", 1)
        expected = base64.b64decode(digest, validate=True)
        key = base64.b64decode(salt, validate=True)
        return hmac.compare_digest(expected, hmac.new(key, name.encode(), "sha1").digest())
    found = False
    for pattern in patterns.split(","):
        if pattern.startswith("!"):
            if _glob(pattern[1:], name):
                return False
        else:
            found = found or _glob(pattern, name)
    return found


def _glob(pattern: str, name: str) -> bool:
    """Match `*` and `?` alone: brackets stand for themselves here, unlike in fnmatch."""
    import re

    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern.lower())
    return re.fullmatch("".join(parts), name.lower()) is not None
