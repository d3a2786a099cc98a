"""Checkpoint images: store, manifest, digests, signatures."""
