"""`pitstop` as a person's command, in a child of the test's process."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial

from pitstop.cli.main import run
from tests.rigs.forked import Forked


class Command(Forked):
    """A command under way.

    Attributes:
        stderr: its progress and errors, to be read as they come.
    """

    def __init__(self, *arguments: str) -> None:
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        reader, writer = os.pipe()
        super().__init__(partial(_pitstop, arguments), stdout=self._stdout.fileno(), stderr=writer)
        os.close(writer)
        self.stderr = os.fdopen(reader, encoding="utf-8")

    @property
    def output(self) -> str:
        """What it has written to its stdout."""
        self._stdout.seek(0)
        return self._stdout.read().decode()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.stderr.close()
        self._stdout.close()


def _pitstop(arguments: tuple[str, ...]) -> int:
    sys.argv = ["pitstop", *arguments]
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
