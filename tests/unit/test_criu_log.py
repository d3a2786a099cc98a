"""What CRIU's log says of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from pitstop.images.checkpoint import Checkpoint
from pitstop.model.words import Connections
from pitstop.node import criu

RLIMIT = "(00.000031) Error (criu/rlimit.c:32): rlimit: Can't setup RLIMIT_NOFILE for self\n"


def errors(tmp_path: Path, text: str | bytes) -> list[str]:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.work.mkdir()
    raw = text if isinstance(text, bytes) else text.encode()
    (checkpoint.work / "criu.log").write_bytes(raw)
    return criu.errors(checkpoint)


def test_lines_of_errors_without_their_places(tmp_path: Path) -> None:
    text = (
        RLIMIT
        + "(00.010000) Warn  (criu/kerndat.c:1103): $XDG_RUNTIME_DIR not set\n"
        + "(00.011684) Error (criu/proc_parse.c:479): Unknown 600 (anon_inode:[io_uring])\n"
        + "(00.012000) 4141: Error (criu/proc_parse.c:707): Can't open 4141's map 7f0000002000\n"
        + "(00.019090) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"
    )
    assert errors(tmp_path, text) == [
        "Unknown 600 (anon_inode:[io_uring])",
        "Can't open 4141's map 7f0000002000",
        "Dumping FAILED.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "inet: Can't bind inet socket (id 27): Address already in use",
        "inet: Connected TCP socket, consider using --tcp-established option.",
        "File data/train.log has bad size 40960 (expect 32768)",
        "cpu: FPU feature required by image is not supported on host (feature: xsave)",
        "mnt: Mount 388 ./proc/driver has unreachable sharing. Try --enable-external-masters.",
        "a message with (brackets): and colons: in it",
    ],
)
def test_any_message_is_kept_whole(tmp_path: Path, line: str) -> None:
    text = f"(00.051000)   4141: Error (criu/sk-inet.c:992): {line}\n{RLIMIT}"
    assert errors(tmp_path, text) == [line]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (RLIMIT + "(00.2) pie: 1001: unmapping\n", "(00.2) pie: 1001: unmapping"),
        ("(00.1) starting\n(00.2) Restoring resources\n", "(00.2) Restoring resources"),
    ],
)
def test_no_error_named_shows_the_last_words(tmp_path: Path, text: str, last: str) -> None:
    assert errors(tmp_path, text) == [f"CRIU names no error; its log ends: {last}"]


def test_nothing_at_all(tmp_path: Path) -> None:
    assert criu.errors(Checkpoint(tmp_path)) == ["CRIU wrote no log"]
    assert errors(tmp_path, "") == []


def test_many_and_bytes(tmp_path: Path) -> None:
    lines = b"".join(b"(00.1) Error (criu/x.c:1): number %d \xff\n" % n for n in range(99))
    found = errors(tmp_path, lines)
    assert found == [f"number {n} \ufffd" for n in range(20)]


def test_dump_and_restore_share_their_options(tmp_path: Path) -> None:
    """criu#457: what differs between them makes the restore fail."""
    checkpoint = Checkpoint(tmp_path / "c")
    for connections in Connections:
        options = criu.shared_options(connections)
        dump = criu.dump_command(checkpoint, 1001, options, Path("/hook"), 77)
        restore = criu.restore_command(checkpoint, options, Path("/hook"), Path("/pid"))
        assert dump[-len(options) :] == restore[-len(options) :] == options
    kept, closed, refused = (
        criu.shared_options(c) for c in (Connections.KEEP, Connections.CLOSE, Connections.REFUSE)
    )
    assert "--tcp-established" in kept
    assert "--tcp-close" in closed
    assert not [option for option in refused if option.startswith("--tcp")]


def test_dump_enters_the_namespace_of_the_workload(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "c")
    inside = criu.dump_command(checkpoint, 1001, [], Path("/hook"), 77)
    assert inside[:6] == ["nsenter", "--target", "77", "--pid", "--mount", "--"]
    outside = criu.dump_command(checkpoint, 1001, [], Path("/hook"), None)
    assert inside[6:] == outside
    assert outside[outside.index("--images-dir") + 1] == str(checkpoint.images)
    assert outside[outside.index("--work-dir") + 1] == str(checkpoint.work)
