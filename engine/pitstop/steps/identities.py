"""A private key that a workflow system keeps, put where SSH can use it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pitstop.images.durable import write_atomic
from pitstop.model.site import Site


def key_text(private_key: str) -> str:
    """Return a key as it was before a web form or an editor touched its ends of line."""
    return private_key.replace("\r\n", "\n").strip() + "\n"


def with_identity(site: Site, private_key: str, directory: Path) -> Site:
    """Return the site with a key for all its SSH nodes.

    The key is written to a file that only its owner can read. Plans and journals hold its
    path, never the key. Another key gets another file, so that a run goes on with the one
    that it was planned with.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = key_text(private_key).encode()
    path = directory / f"{site.name}-{hashlib.sha256(content).hexdigest()[:16]}.key"
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content, mode=0o600)
    nodes = {
        name: node
        if node.ssh is None
        else node.model_copy(
            update={"ssh": node.ssh.model_copy(update={"identity_file": str(path)})}
        )
        for name, node in site.nodes.items()
    }
    return site.model_copy(update={"nodes": nodes})
