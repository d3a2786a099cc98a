"""Print `passed failed skipped`, summed over the JUnit files named as arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree


def totals(files: Iterable[Path]) -> tuple[int, int, int]:
    """Sum the counts of all test suites in the files."""
    passed = failed = skipped = 0
    for file in files:
        for suite in ElementTree.parse(file).iter("testsuite"):  # noqa: S314 (our own files)
            bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            left_out = int(suite.get("skipped", 0))
            passed += int(suite.get("tests", 0)) - bad - left_out
            failed += bad
            skipped += left_out
    return passed, failed, skipped


if __name__ == "__main__":
    sys.stdout.write("{} {} {}\n".format(*totals(Path(name) for name in sys.argv[1:])))
