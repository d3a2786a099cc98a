"""Service the emulated driver of the machine this is run on, as a package manager would.

gpus_command.py install VERSION     the libraries; the loaded module stays
gpus_command.py load [VERSION]      the module: the installed one; `none` unloads it
gpus_command.py upgrade VERSION     both
gpus_command.py reset               what a power cut does: GPU memory is gone
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.rigs.gpus import DEFAULT, VARIABLE, EmulatedGpus


def main(words: list[str]) -> None:
    """Do what the words say."""
    machine = EmulatedGpus(Path(os.environ.get(VARIABLE) or DEFAULT))
    match words:
        case ["install", version]:
            machine.install(version)
        case ["load"]:
            machine.load()
        case ["load", version]:
            machine.load(version)
        case ["upgrade", version]:
            machine.upgrade(version)
        case ["reset"]:
            machine.reset()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
