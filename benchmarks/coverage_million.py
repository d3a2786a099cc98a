"""`pitstop coverage` on a dump of a million jobs, against the awk script that a site would write.

    .venv-core/bin/python -m benchmarks.coverage_million [--rows N] [--rounds N] [--json]

Both read the same file in turn, in one run, each as a process of its own, interpreter start
included. The script adds up jobs and node-hours; ours does that and the rest: GPU-hours, users,
months, widths, the jobs that cost most, and what is not understood. Their shares must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import median, show, spread

HEADER = "JobID|User|State|Start|Elapsed|NNodes|AllocTRES|JobName"
AWK = r"""
BEGIN { FS = "|" }
NR == 1 || $1 ~ /\./ || $4 == "None" { next }
{
    days = 0; clock = $5
    if (split($5, day, "-") == 2) { days = day[1]; clock = day[2] }
    split(clock, part, ":")
    hours = (days * 86400 + part[1] * 3600 + part[2] * 60 + part[3]) / 3600 * $6
    jobs++; total += hours
    if ($6 == 1) { narrow++; fits += hours }
}
END { printf "%.9f %.9f\n", narrow / jobs, fits / total }
"""


def write(path: Path, rows: int) -> None:
    """Write a dump: jobs with two steps each, some cancelled before they began."""
    chance = random.Random(7)  # noqa: S311 - the same file every time
    with path.open("w", encoding="utf-8") as file:
        file.write(HEADER + "\n")
        written = job = 0
        while written < rows:
            job += 1
            nodes = 1 if chance.random() < 0.98 else chance.choice((2, 4, 8, 64))
            seconds = int(chance.expovariate(1 / 20_000)) * (20 if nodes > 1 else 1)
            start = "None" if chance.random() < 0.02 else f"2026-{1 + job % 12:02}-01T00:00:00"
            days, rest = divmod(seconds, 86400)
            clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
            elapsed = f"{days}-{clock}" if days else clock
            tres = f"cpu=8,gres/gpu:h100={nodes * 8},gres/gpu={nodes * 8},mem=64G,node={nodes}"
            for step in ("", ".batch", ".0"):
                user = "" if step else f"u{job % 500}"
                fields = (f"{job}{step}", user, "COMPLETED", start, elapsed, str(nodes), tres)
                file.write("|".join((*fields, f"job {job}")) + "\n")
                written += 1


def timed(argv: list[str]) -> tuple[float, float, str]:
    """Run a command; return seconds, MiB at most resident, and its output."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(argv, stdout=output, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        if process.returncode != 0:
            raise RuntimeError(f"{argv[0]} ended with {process.returncode}")
        output.seek(0)
        return seconds, usage.ru_maxrss / 1024, output.read().decode()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ours: list[float] = []
    theirs: list[float] = []
    memory = 0.0
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "dump.psv"
        write(file, arguments.rows)
        size = file.stat().st_size / 2**20
        command = [sys.executable, "-m", "pitstop.cli.main", "coverage", str(file), "--json"]
        for _ in range(arguments.rounds):
            seconds, resident, output = timed(command)
            ours.append(seconds)
            memory = max(memory, resident)
            found = {s["measure"]: s["share"] for s in json.loads(output)["shares"]}
            seconds, _, output = timed(["awk", AWK, str(file)])
            theirs.append(seconds)
            jobs, hours = map(float, output.split())
            if abs(found["jobs"] - jobs) > 1e-6 or abs(found["node_hours"] - hours) > 1e-6:
                raise RuntimeError(f"they disagree: {found}, {jobs}, {hours}")
    row = {
        "lines": f"{arguments.rows:,}",
        "file (MiB)": f"{size:.0f}",
        "awk (s)": spread(theirs),
        "ours (s)": spread(ours),
        "ours : awk": f"{median(ours) / median(theirs):.2f}",
        "ours, resident (MiB)": f"{memory:.0f}",
    }
    raw: dict[str, Any] = {"rows": arguments.rows, "ours": ours, "awk": theirs, "mib": memory}
    show("What share of a queue fits on one node", [row], raw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
