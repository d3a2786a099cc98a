"""`python -m pitstop.demo.activate ROOT VERSION`: the demo's upgrade step."""

from __future__ import annotations

import sys
from pathlib import Path

from pitstop.demo.model import activate


def main() -> None:
    """Make a deployed release the current one."""
    root, version = sys.argv[1:]
    print(f"current is {activate(Path(root), version).resolve().name}")


if __name__ == "__main__":
    main()
