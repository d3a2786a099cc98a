"""`python -m pitstop.lab cleanup`: remove labs whose creator is gone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pitstop.lab import network
from pitstop.lab.layout import REGISTRY, LabRecord


def cleanup() -> list[LabRecord]:
    """Remove them, and return which they were."""
    removed = []
    for path in sorted(REGISTRY.glob("*.json")):
        record = LabRecord.load(path)
        if record.creator_is_gone():
            network.destroy(record)
            record.forget()
            removed.append(record)
    return removed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="pitstop.lab", description=__doc__)
    parser.add_argument("verb", choices=["cleanup"])
    parser.parse_args(arguments)
    for record in cleanup():
        sys.stdout.write(f"removed lab {record.lab} in {record.root}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
