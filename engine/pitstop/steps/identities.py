"""A private key that a workflow system keeps, put where SSH can use it."""

from __future__ import annotations

from pathlib import Path

from pitstop.images.durable import write_atomic
from pitstop.model.site import Site


def with_identity(site: Site, private_key: str, directory: Path) -> Site:
    """Return the site with a key for all its SSH nodes.

    The key is written to a file that only its owner can read. Plans and journals hold its
    path, never the key.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / f"{site.name}.key"
    content = private_key.strip().encode() + b"\n"
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
