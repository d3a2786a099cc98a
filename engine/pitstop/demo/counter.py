"""A computation with all its state in memory: a chain of digests, one line for each link.

`python counter.py FILE`. Each line is `NUMBER DIGEST BORN`: the digest is over the one before,
and BORN is drawn once, when the process starts. So whoever reads the file can tell whether a
process went on or started over, and whether a link is missing or there twice.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time

PAUSE = 0.05


def following(digest: str, number: int) -> str:
    """Return the digest of a link."""
    return hashlib.sha256(f"{digest}{number}".encode()).hexdigest()


def expected(length: int) -> list[list[str]]:
    """Return number and digest of the first links of the chain."""
    links, digest = [], ""
    for number in range(1, length + 1):
        digest = following(digest, number)
        links.append([str(number), digest])
    return links


def main() -> None:
    """Count until somebody ends it."""
    born, digest, number = os.urandom(8).hex(), "", 0
    with open(sys.argv[1], "a", encoding="ascii", buffering=1) as file:
        while True:
            number += 1
            digest = following(digest, number)
            file.write(f"{number} {digest} {born}\n")
            time.sleep(PAUSE)


if __name__ == "__main__":
    main()
