"""Checkpoints on disk: what state they are in follows from their marks, in any order of deaths."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitstop.images import durable, listing
from pitstop.images.checkpoint import Checkpoint, Mark, State, sync_images
from pitstop.images.digest import digest_directory
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.errors import BadInput, InvalidCheckpoint, Refused
from pitstop.model.manifest import Manifest
from pitstop.model.plain import canonical_json
from pitstop.model.words import Connections
from pitstop.node import hook


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images" / "web")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    durable.make_directory(tmp_path / "keys")
    return Keys(tmp_path / "keys")


def manifest(checkpoint: Checkpoint, **changes: Any) -> Manifest:
    files = digest_directory(checkpoint.images)
    data: dict[str, Any] = {
        "checkpoint": checkpoint.id,
        "workload": "web",
        "node": "n",
        "boot_id": "b",
        "run": "run1",
        "created": "2030-01-01T00:00:00+00:00",
        "generation": 1,
        "shape": "single-gpu",
        "fingerprint": {"host.kernel": {"value": "6"}},
        "probes": {},
        "tolerate": (),
        "root_pid": 1001,
        "pids": (1001,),
        "connections": Connections.CLOSE,
        "options": (),
        "launch_digest": "",
        "logs": (),
        "proof": None,
        "files": files,
        "total_bytes": sum(file.size for file in files),
        "tools": {},
        "frozen_seconds": 0.1,
        "dump_seconds": 0.1,
        **changes,
    }
    return Manifest(**data)


def make(store: Store, keys: Keys, name: str = "ck1", *marks: Mark) -> Checkpoint:
    draft = store.begin(name)
    (draft.images / "pages-1.img").write_bytes(b"memory")
    (draft.images / "empty.img").touch()
    sync_images(draft.images)
    draft.write(manifest(draft), keys)
    checkpoint = store.finish(draft)
    for mark in marks:
        checkpoint.mark(mark, {"time": "now"})
    return checkpoint


MEANING = tuple(mark for mark in Mark if mark not in (Mark.OFFERED, Mark.RECEIVED))
"""Marks that say what may be done with a checkpoint; the others only say what was done."""


class TestState:
    @pytest.mark.parametrize(
        "marks", [c for n in range(6) for c in itertools.combinations(MEANING, n)], ids=str
    )
    def test_of_any_marks(self, store: Store, keys: Keys, marks: tuple[Mark, ...]) -> None:
        checkpoint = make(store, keys, "ck1", *marks)
        expected = State.UNFINISHED
        for mark, state in (
            (Mark.INTENT, State.INTENDED),
            (Mark.SEALED, State.SEALED),
            (Mark.HANDED_OVER, State.HANDED_OVER),
            (Mark.ABORTED, State.ABORTED),
            (Mark.CONSUMED, State.CONSUMED),
        ):
            expected = state if mark in marks else expected
        assert checkpoint.state() is expected
        # Only one that was sealed, and that nothing else speaks against, is ever offered.
        assert (store.newest(State.SEALED) is not None) == (expected is State.SEALED)

    def test_a_draft_is_unfinished_whatever_its_marks(self, store: Store) -> None:
        draft = store.begin("ck1")
        draft.mark(Mark.SEALED, {})
        assert draft.state() is State.UNFINISHED
        assert draft.id == "ck1"

    def test_an_empty_mark_counts(self, store: Store, keys: Keys) -> None:
        """The one that CRIU's script makes has no content."""
        checkpoint = make(store, keys, "ck1", Mark.INTENT)
        assert checkpoint.marked(Mark.ABORTED) is None
        (checkpoint.marks / "aborted").touch()
        assert checkpoint.state() is State.ABORTED
        assert checkpoint.marked(Mark.ABORTED) == {}
        assert checkpoint.marked(Mark.INTENT) == {"time": "now"}

    def test_a_half_written_mark_does_not_count(self, store: Store, keys: Keys) -> None:
        checkpoint = make(store, keys, "ck1", Mark.INTENT)
        (checkpoint.marks / ".sealed.123.tmp").write_text("{")
        assert checkpoint.state() is State.INTENDED


class TestStore:
    def test_oldest_first(self, store: Store, keys: Keys) -> None:
        for number, name in enumerate(("b", "a", "c")):
            checkpoint = make(store, keys, name, Mark.SEALED)
            os.utime(checkpoint.path, (number, number))
        assert [checkpoint.id for checkpoint in store.all()] == ["b", "a", "c"]
        newest = store.newest(State.SEALED)
        assert newest is not None
        assert newest.id == "c"
        newest.mark(Mark.CONSUMED, {})
        newest = store.newest(State.SEALED)
        assert newest is not None
        assert newest.id == "a"
        assert Store(store.directory / "nothing").all() == []

    def test_only_for_root(self, store: Store) -> None:
        draft = store.begin("ck1")
        for path in (store.directory.parent, store.directory, draft.path, draft.images):
            assert path.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("mark", [Mark.INTENT, Mark.SEALED, Mark.CONSUMED])
    def test_never_writes_over_one_of_use(self, store: Store, keys: Keys, mark: Mark) -> None:
        make(store, keys, "ck1", mark)
        with pytest.raises(Refused, match=r"ck1: a checkpoint of that name is there"):
            store.begin("ck1")
        assert (store.get("ck1").images / "pages-1.img").exists()

    @pytest.mark.parametrize("mark", [Mark.ABORTED, None])
    def test_clears_away_what_came_to_nothing(
        self, store: Store, keys: Keys, mark: Mark | None
    ) -> None:
        make(store, keys, "ck1", *([mark] if mark else []))
        (store.begin("ck1").images / "half").touch()
        draft = store.begin("ck1")
        assert list(draft.images.iterdir()) == []
        assert [checkpoint.path for checkpoint in store.all()] == [draft.path]

    @pytest.mark.parametrize("name", ["", ".", "..", ".ck1", "a/b", "../x", "a b", "x" * 64, "é"])
    def test_names(self, store: Store, keys: Keys, name: str) -> None:
        make(store, keys, "ck1", Mark.SEALED)
        with pytest.raises(BadInput):
            store.begin(name)
        with pytest.raises(InvalidCheckpoint):
            store.get(name)

    def test_discard_leaves_nothing(self, store: Store, keys: Keys) -> None:
        store.discard(make(store, keys))
        assert list(store.directory.iterdir()) == []


class TestVerify:
    def test_as_written(self, store: Store, keys: Keys) -> None:
        checkpoint = make(store, keys)
        found = checkpoint.verify(keys)
        assert [file.name for file in found.files] == ["empty.img", "pages-1.img"]
        assert checkpoint.verify(keys) == checkpoint.manifest()
        for name in ("manifest.json", "signature.json"):
            assert (checkpoint.path / name).stat().st_mode & 0o777 == 0o600

    @settings(max_examples=30, deadline=None)
    @given(position=st.integers(0, 10_000), bit=st.integers(0, 7), which=st.booleans())
    def test_any_flipped_bit_of_what_says_what_is_valid(
        self, tmp_path_factory: pytest.TempPathFactory, position: int, bit: int, which: bool
    ) -> None:
        root = tmp_path_factory.mktemp("flip")
        durable.make_directory(root / "keys")
        keys = Keys(root / "keys")
        checkpoint = make(Store(root / "web"), keys)
        path = checkpoint.path / ("manifest.json" if which else "signature.json")
        data = bytearray(path.read_bytes())
        data[position % len(data)] ^= 1 << bit
        path.write_bytes(data)
        try:
            found = checkpoint.verify(keys)
        except InvalidCheckpoint:
            return
        # What is not part of the signature (its key's id, spaces) changes nothing it says.
        assert not which
        assert found == checkpoint.manifest()

    def test_deleted_while_it_is_read(self, store: Store, keys: Keys) -> None:
        checkpoint = make(store, keys)
        store.discard(checkpoint)
        with pytest.raises(InvalidCheckpoint, match="incomplete"):
            checkpoint.verify(keys)

    @pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff", b'{"payload": 1}', b"{"])
    def test_signatures_that_are_none(self, store: Store, keys: Keys, content: bytes) -> None:
        checkpoint = make(store, keys)
        (checkpoint.path / "signature.json").write_bytes(content)
        with pytest.raises(InvalidCheckpoint, match="signature file is damaged"):
            checkpoint.verify(keys)

    def test_a_signed_text_that_is_no_manifest(self, store: Store, keys: Keys) -> None:
        from pitstop.images.checkpoint import PAYLOAD_TYPE

        checkpoint = make(store, keys)
        data = json.loads((checkpoint.path / "manifest.json").read_bytes())
        payload = canonical_json({**data, "surprise": 1})
        (checkpoint.path / "manifest.json").write_bytes(payload)
        (checkpoint.path / "signature.json").write_bytes(keys.sign(payload, PAYLOAD_TYPE))
        with pytest.raises(InvalidCheckpoint, match="cannot be read"):
            checkpoint.verify(keys)


class TestKeys:
    def test_a_trusted_file_that_is_no_key(self, store: Store, keys: Keys) -> None:
        checkpoint = make(store, keys)
        (keys.directory / "trusted").mkdir()
        (keys.directory / "trusted" / "broken.pem").write_text("not a key")
        with pytest.raises(InvalidCheckpoint):
            checkpoint.verify(keys)

    def test_a_private_key_that_is_no_key(self, store: Store, keys: Keys) -> None:
        checkpoint = make(store, keys)
        keys.private.write_text("not a key")
        with pytest.raises(InvalidCheckpoint):
            checkpoint.verify(keys)


class TestListing:
    def test_names_each_and_its_damage(self, tmp_path: Path, store: Store, keys: Keys) -> None:
        root = tmp_path / "images"
        assert listing.list_images(tmp_path / "nothing", None) == []
        make(store, keys, "good", Mark.SEALED)
        broken = make(store, keys, "broken", Mark.SEALED)
        (broken.path / "manifest.json").write_text("{}")
        store.begin("half")
        found = {entry["checkpoint"]: entry for entry in listing.list_images(root, "web")}
        assert found["good"]["state"] == "sealed"
        assert found["good"]["bytes"] == len(b"memory")
        assert "manifest cannot be read" in found["broken"]["damage"]
        assert found["half"]["state"] == "unfinished"
        assert listing.list_images(root, "other") == []
        faults = {
            entry["checkpoint"]: entry["fault"]
            for entry in listing.verify_images(root, keys.directory, None, None)
        }
        assert faults["good"] == ""
        assert "not the manifest that was signed" in faults["broken"]
        assert faults["half"] == "never finished"
        with pytest.raises(InvalidCheckpoint, match="no such checkpoint"):
            listing.verify_images(root, keys.directory, None, "nothing")


class TestDurable:
    def test_whole_or_not_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "file"
        durable.write_atomic(path, b"first")
        assert path.stat().st_mode & 0o777 == 0o600

        def no_room(_descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(os, "fsync", no_room)
            durable.write_atomic(path, b"second")
        assert path.read_bytes() == b"first"
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]

    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """Paths in the order in which they were brought to the disk."""
        found: list[str] = []
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        yield found

    def test_content_before_its_name(self, tmp_path: Path, synced: list[str]) -> None:
        durable.write_json(tmp_path / "x.json", {"a": "ü"})
        assert synced == [f"{tmp_path}/.x.json.{os.getpid()}.tmp", str(tmp_path)]
        assert durable.read_json(tmp_path / "x.json") == {"a": "ü"}

    def test_images_before_the_manifest_before_the_name(
        self, store: Store, keys: Keys, synced: list[str]
    ) -> None:
        keys.sign(b"", "warm-up: makes the key")
        draft = store.begin("ck1")
        (draft.images / "pages-1.img").write_bytes(b"memory")
        synced.clear()
        sync_images(draft.images)
        draft.write(manifest(draft), keys)
        store.finish(draft)
        order = [path.removeprefix(f"{store.directory}") for path in synced]
        assert order[0] == "/.ck1/images/pages-1.img"
        assert order[1] == "/.ck1/images"
        assert "manifest.json" in order[2]
        assert "signature.json" in order[4]
        assert order[-1] == "", "the name of the checkpoint itself"

    @pytest.mark.parametrize("content", ["", "[]", "null", "{", "\ufffe"])
    def test_what_is_no_object_is_damage(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "x").write_text(content)
        with pytest.raises(ValueError, match="x"):
            durable.read_json(tmp_path / "x")
        assert durable.read_json(tmp_path / "y") is None


class TestHook:
    """CRIU's script, without anybody to ask: it says no, and says so for later."""

    @pytest.fixture
    def draft(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkpoint]:
        draft = store.begin("ck1")
        monkeypatch.setenv("CRTOOLS_IMAGE_DIR", str(draft.images))
        before = os.getcwd()
        yield draft
        os.chdir(before)

    @pytest.mark.parametrize("stage", ["pre-dump", "network-lock", "post-resume", ""])
    def test_other_stages(
        self, draft: Checkpoint, monkeypatch: pytest.MonkeyPatch, stage: str
    ) -> None:
        monkeypatch.setenv("CRTOOLS_SCRIPT_ACTION", stage)
        assert hook.main() == 0
        assert list(draft.marks.iterdir()) == []

    def test_after_a_dump(self, draft: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CRTOOLS_SCRIPT_ACTION", "post-dump")
        synced: list[str] = []
        monkeypatch.setattr(
            os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        )
        assert hook.main() == 1
        assert draft.marked(Mark.ABORTED) == {}
        # Name and file are on the disk before the original runs on past the images.
        assert synced == [str(draft.marks / "aborted"), str(draft.marks)]
        assert hook.main() == 1

    def test_after_a_restore(self, draft: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        """The checkpoint was not used: it stays what it was."""
        monkeypatch.setenv("CRTOOLS_SCRIPT_ACTION", "post-restore")
        assert hook.main() == 1
        assert list(draft.marks.iterdir()) == []

    @pytest.mark.parametrize(
        ("answer", "status"),
        [(b"commit\n", 0), (b"abort\n", 1), (b"", 1), (b"commit", 1), (b"commit\nx\n", 1)],
    )
    def test_any_answer(
        self,
        draft: Checkpoint,
        monkeypatch: pytest.MonkeyPatch,
        answer: bytes,
        status: int,
    ) -> None:
        monkeypatch.setenv("CRTOOLS_SCRIPT_ACTION", "post-dump")
        os.chdir(draft.path)
        asked: list[bytes] = []
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("vote.sock")
            server.listen()

            def serve() -> None:
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(64))
                    connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            assert hook.main() == status
            thread.join()
        assert asked == [b"post-dump\n"]
        assert (draft.marked(Mark.ABORTED) is None) == (status == 0)
