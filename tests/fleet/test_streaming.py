"""What one command writes, another reads, as it comes: real commands on this machine."""

from __future__ import annotations

import sys

import pytest

from pitstop.fleet.local import LocalTransport
from pitstop.fleet.streaming import Carried, carry
from pitstop.fleet.transport import Stream
from pitstop.model.errors import DeadlineExceeded, NodeUnreachable

SIZE = 5_000_000
WRITES = f"import sys; sys.stdout.buffer.write(bytes({SIZE})); print('told', file=sys.stderr)"
COUNTS = "import sys; print(len(sys.stdin.buffer.read()))"
HANGS = "import sys; sys.stdout.close(); sys.stdin.read()"


def python(code: str) -> Stream:
    return LocalTransport().stream([sys.executable, "-c", code])


def carried(source: str, target: str, seconds: float = 60) -> Carried:
    return carry(python(source), python(target), seconds, "web")


def test_every_byte_passes_and_both_say_how_they_ended() -> None:
    found = carried(WRITES, COUNTS)
    assert found.passed == SIZE
    assert found.source is not None
    assert (found.source.exit_status, found.source.stderr) == (0, b"told\n")
    assert (found.target.exit_status, found.target.stdout) == (0, f"{SIZE}\n".encode())


def test_reader_that_ends_early_is_heard_and_the_writer_is_not_waited_for() -> None:
    found = carried(
        WRITES + "; sys.stdout.flush(); input()", "print('no room'); raise SystemExit(1)"
    )
    assert found.source is None
    assert (found.target.exit_status, found.target.stdout) == (1, b"no room\n")
    assert found.passed < SIZE


def test_writer_that_is_killed_is_told_by_its_status() -> None:
    dies = "import os, sys; os.write(1, b'half'); os.kill(os.getpid(), 9)"
    found = carried(dies, COUNTS)
    assert found.source is not None
    assert (found.source.exit_status, found.passed) == (-9, 4)
    assert found.target.stdout == b"4\n"


def test_what_does_not_come_through_in_time_is_ended_on_both_sides() -> None:
    with pytest.raises(DeadlineExceeded, match="web: not through after"):
        carried("import time; time.sleep(600)", HANGS, 0.3)


def test_command_that_is_not_there() -> None:
    with pytest.raises(NodeUnreachable):
        LocalTransport().stream(["/not/there"])
