"""A computation on several machines that saves itself when it gets SIGUSR1.

`srun python ranks.py DIRECTORY`. Each rank counts, and reads its number from its part when it
starts. On the signal each writes its part; the first then waits for all of them and writes
`complete` by renaming, which is the application's own checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

PAUSE = 0.05


def main() -> None:
    """Count until somebody ends it."""
    directory = Path(sys.argv[1])
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: asked.append(number))
    part = directory / f"part-{rank}"
    number = int(part.read_text()) if part.exists() else 0
    (directory / f"start-{rank}-{restart}").write_text(f"{number}\n")
    while True:
        number += 1
        if asked:
            asked.clear()
            save(directory, rank, ranks, number, restart)
        time.sleep(PAUSE)


def save(directory: Path, rank: int, ranks: int, number: int, restart: str) -> None:
    """Write this rank's part; the first says when all have."""
    write(directory / f"part-{rank}", f"{number}\n")
    write(directory / f"saved-{rank}-{restart}", f"{number}\n")
    if rank:
        return
    while not all((directory / f"saved-{other}-{restart}").exists() for other in range(ranks)):
        time.sleep(PAUSE)
    write(directory / "complete", f"{ranks} parts\n")


def write(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    main()
