"""Commands on the machine that pitstop itself runs on, with the same promises as over SSH."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from pitstop.fleet import local
from pitstop.fleet.local import LocalTransport
from pitstop.model.errors import DeadlineExceeded, NodeUnreachable

ODD = ["", " ", "it's", "$(id)", "a\nb", "*", "节点完成 ✓", "; exit 7", "--", "\x01"]


def test_arguments_input_and_both_outputs_are_passed_as_they_are() -> None:
    code = (
        "import json, sys; sys.stderr.buffer.write(sys.stdin.buffer.read()); "
        "print(json.dumps(sys.argv[1:])); sys.exit(41)"
    )
    done = LocalTransport().run([sys.executable, "-c", code, *ODD], b"\xa6\x00\xff", 30)
    assert (done.exit_status, done.stderr) == (41, b"\xa6\x00\xff")
    assert json.loads(done.stdout) == ODD


def test_much_on_all_three_streams_at_once() -> None:
    data = os.urandom(1 << 20) * 10
    done = LocalTransport().run(["sh", "-c", "tee /dev/stderr"], data, 60)
    assert done.stdout == data
    assert done.stderr == data


def test_of_too_much_the_end_is_kept_where_the_answer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "OUTPUT_LIMIT", 1000)
    code = "import sys; sys.stdout.write('n' * 5000 + 'answer'); sys.stderr.write('e' * 5000 + '!')"
    done = LocalTransport().run([sys.executable, "-c", code], b"", 30)
    assert (len(done.stdout), done.stdout[-7:]) == (1000, b"nanswer")
    assert (len(done.stderr), done.stderr[-2:]) == (1000, b"e!")


def test_input_that_is_not_read_does_no_harm() -> None:
    assert LocalTransport().run(["true"], b"x" * (1 << 20), 30).exit_status == 0


def test_command_that_never_ends_is_given_up_in_time_and_ended(tmp_path: Path) -> None:
    """Also while a child of it holds its output open."""
    pid = tmp_path / "pid"
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"no answer after 0\.5 s"):
        LocalTransport().run(
            ["sh", "-c", 'echo $$ > "$1"; exec sleep 1000', "sh", str(pid)], b"", 0.5
        )
    assert time.monotonic() - begun < 10
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_program_that_is_not_there_was_not_reached() -> None:
    with pytest.raises(NodeUnreachable, match="No such file"):
        LocalTransport().run(["/does/not/exist"], b"", 30)
    with pytest.raises(NodeUnreachable, match="Permission denied"):
        LocalTransport().run(["/etc/passwd"], b"", 30)


def test_command_killed_by_a_signal_says_so() -> None:
    assert LocalTransport().run(["sh", "-c", "kill -9 $$"], b"", 30).exit_status == -9
