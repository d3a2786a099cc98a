"""A checkpoint on its way from one node to another, and its hand-over cut off anywhere."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pitstop.images.checkpoint import Checkpoint, Mark, State
from pitstop.images.durable import make_directory
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.images.transfer import head, receive, send
from pitstop.model.errors import InvalidCheckpoint, PitstopError, Refused, TransferFailed
from pitstop.node import handover
from pitstop.node.paths import StateDir
from pitstop.node.record import Moved, WorkloadState
from tests.unit.test_images import manifest

NONCE, CK, RUN = "n0", "ck1", "run1"
MEMORY = {"pages-1.img": b"memory" * 1000, "core.img": b"registers", "empty.img": b""}


@dataclass
class Side:
    """One node's state, in a directory."""

    state: StateDir
    name: str

    @property
    def store(self) -> Store:
        return Store(self.state.images("web"))

    @property
    def keys(self) -> Keys:
        return Keys(self.state.keys())

    @property
    def files(self) -> WorkloadState:
        return WorkloadState(self.state, "web")

    @property
    def usable(self) -> bool:
        """Whether something here could be restored: sealed, of the newest start, not moved."""
        newest, record = self.store.newest(State.SEALED), self.files.record()
        if newest is None or self.files.moved() is not None:
            return False
        return record.generation in (0, newest.manifest().generation)


@dataclass
class Pair:
    """A node with a sealed checkpoint of start 3, and one that trusts its key."""

    a: Side
    b: Side

    def stream(self, have: tuple[str, ...] = ()) -> bytes:
        out = io.BytesIO()
        send(self.a.store.get(CK), NONCE, have, out)
        return out.getvalue()

    def take(self, data: bytes) -> Checkpoint:
        return receive(self.b.store, self.b.keys, CK, NONCE, io.BytesIO(data))

    def step(self, step: Callable[[StateDir, dict[str, Any]], Any], side: Side, **more: Any) -> Any:
        asked = {"workload": "web", "checkpoint": CK, "run": RUN, "to": "b", **more}
        return step(side.state, asked)

    def hand_over(self) -> None:
        """The whole of it, as a run goes through it from wherever it stands."""
        if self.step(handover.offer, self.a)["state"] == "sealed":
            arrived = self.step(handover.arrival, self.b)
            if arrived["state"] != "received":
                self.take(self.stream(tuple(arrived["have"])))
        given = self.step(handover.give, self.a)
        self.step(handover.accept, self.b, **given)


def node(root: Path, name: str) -> Side:
    side = Side(StateDir.at(str(root / name)), name)
    make_directory(side.state.root)
    return side


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    a, b = node(tmp_path, "a"), node(tmp_path, "b")
    a.files.update(generation=3, run="earlier")
    draft = a.store.begin(CK)
    for name, content in MEMORY.items():
        (draft.images / name).write_bytes(content)
    draft.write(manifest(draft, generation=3), a.keys)
    a.store.finish(draft).mark(Mark.SEALED, {"time": "now"})
    b.keys.trust("a", a.keys.public() or b"")
    return Pair(a, b)


def modes(root: Path) -> set[str]:
    return {
        f"{'d' if p.is_dir() else 'f'}{stat.S_IMODE(p.stat().st_mode):o}" for p in root.rglob("*")
    }


class TestStream:
    def test_every_byte_comes_and_nothing_is_finished_by_that(self, pair: Pair) -> None:
        draft = pair.take(b"motd: be careful\n" + pair.stream())
        assert {p.name: p.read_bytes() for p in draft.images.iterdir()} == MEMORY
        assert modes(draft.path) == {"d700", "f600"}
        assert draft.state() is State.UNFINISHED
        assert pair.b.store.newest(State.SEALED) is None

    def test_cut_off_at_any_place_it_goes_on_with_what_came_whole(self, pair: Pair) -> None:
        whole = pair.stream()
        for length in range(len(head(NONCE)), len(whole) - 1, 501):
            with pytest.raises(TransferFailed):
                pair.take(whole[:length])
            assert pair.step(handover.arrival, pair.b)["state"] in ("absent", "unfinished")
        have = pair.step(handover.arrival, pair.b)["have"]
        assert set(have) == set(MEMORY), "only the end's word was missing"
        rest = pair.stream(tuple(have))
        assert b"memory" not in rest
        pair.take(rest)
        assert pair.step(handover.arrival, pair.b)["state"] == "received"

    @pytest.mark.parametrize(
        "hostile",
        [
            {"name": "../../outside", "size": 1},
            {"name": "/etc/passwd", "size": 1},
            {"name": "unknown.img", "size": 1},
            {"name": "core.img", "size": 10},
            {"name": None, "size": 1},
            {"size": 1},
        ],
    )
    def test_names_and_sizes_are_the_manifests(
        self, pair: Pair, tmp_path: Path, hostile: dict[str, Any]
    ) -> None:
        all_but_end = pair.stream(tuple(MEMORY)).removesuffix(b'{"end": true}\n')
        before = {p for p in tmp_path.rglob("*") if p.is_file()}
        with pytest.raises(InvalidCheckpoint):
            pair.take(all_but_end + json.dumps(hostile).encode() + b"\nx")
        assert {p for p in tmp_path.rglob("*") if p.is_file()} == before

    def test_a_link_in_an_images_place_is_not_followed(self, pair: Pair, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.write_text("mine")
        pair.b.store.take_up(CK)
        draft = pair.take(pair.stream())
        (draft.images / "core.img").unlink()
        (draft.images / "core.img").symlink_to(outside)
        pair.take(pair.stream())
        assert outside.read_text() == "mine"
        assert not (draft.images / "core.img").is_symlink()

    def test_memory_that_was_changed_on_the_way_does_not_stay(self, pair: Pair) -> None:
        with pytest.raises(InvalidCheckpoint, match=r"pages-1\.img was changed"):
            pair.take(pair.stream().replace(b"memorymemory", b"memoryMEMORY", 1))
        assert pair.step(handover.arrival, pair.b)["state"] == "absent"

    def test_a_key_that_is_not_trusted(self, pair: Pair) -> None:
        (pair.b.keys.directory / "trusted" / "a.pem").unlink()
        pair.b.keys.check()
        with pytest.raises(InvalidCheckpoint, match="not signed by a key this node trusts"):
            pair.take(pair.stream())
        assert not list(pair.b.store.directory.iterdir())

    def test_another_workloads_checkpoint(self, pair: Pair) -> None:
        with pytest.raises(InvalidCheckpoint, match="of workload web"):
            receive(
                Store(pair.b.state.images("other")),
                pair.b.keys,
                CK,
                NONCE,
                io.BytesIO(pair.stream()),
            )

    @pytest.mark.parametrize("noise", [b"", b"nothing but noise\n", b"\n<<pitstop-images n1>>\n"])
    def test_no_stream_at_all(self, pair: Pair, noise: bytes) -> None:
        with pytest.raises(TransferFailed, match="sent nothing"):
            pair.take(noise)

    @pytest.mark.parametrize("mark", [Mark.CONSUMED, Mark.ABORTED, Mark.HANDED_OVER])
    def test_what_could_not_be_restored_is_not_sent(self, pair: Pair, mark: Mark) -> None:
        pair.a.store.get(CK).mark(mark, {"to": "b"})
        with pytest.raises(Refused):
            pair.stream()


class TestHandOver:
    def test_then_only_the_other_node_can_restore_it(self, pair: Pair) -> None:
        assert (pair.a.usable, pair.b.usable) == (True, False)
        pair.hand_over()
        assert (pair.a.usable, pair.b.usable) == (False, True)
        assert pair.a.store.get(CK).state() is State.HANDED_OVER
        assert str(pair.a.files.moved()).startswith("moved to b by run run1")
        assert pair.b.files.record().generation == 3
        assert pair.b.files.holder() == RUN

    @pytest.mark.parametrize("writes", range(10))
    def test_cut_off_after_any_write_there_is_never_more_than_one_past(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, writes: int
    ) -> None:
        """Asked again, it comes to its end from wherever it was cut off."""
        left = [writes]
        with monkeypatch.context() as patch:
            for owner, name in WRITES:
                patch.setattr(owner, name, _dying(getattr(owner, name), left))
            if writes == len(WHAT_IS_WRITTEN):
                pair.hand_over()
            else:
                with pytest.raises(PowerCut):
                    pair.hand_over()
        given = writes > WHAT_IS_WRITTEN.index("moved.json")
        assert pair.a.usable is not given
        assert pair.b.usable is (writes == len(WHAT_IS_WRITTEN))
        if given:
            assert pair.a.files.moved() is not None
            assert pair.b.store.find(CK) or pair.b.store.draft(CK), "its memory is there"
        pair.hand_over()
        assert (pair.a.usable, pair.b.usable) == (False, True)
        assert pair.b.files.record().generation == 3

    def test_the_past_of_an_earlier_stay_is_over(self, pair: Pair) -> None:
        """It ran on the other node before: counted further there, and with images left."""
        b = pair.b
        old = b.store.begin("old")
        (old.images / "core.img").write_bytes(b"old")
        old.write(manifest(old, generation=3), b.keys)
        b.store.finish(old).mark(Mark.SEALED, {})
        b.store.begin("draft")
        b.files.update(generation=9, owner=0)
        b.files.note_move(Moved("a", "run0", "then"))
        pair.hand_over()
        assert b.files.record().generation == 3
        assert b.files.moved() is None
        assert {c.id: c.state() for c in b.store.all()} == {
            CK: State.SEALED,
            "old": State.ABORTED,
        }

    def test_a_launch_alone_is_later_than_every_start_before(self, pair: Pair) -> None:
        pair.b.files.update(generation=9)
        given = pair.step(handover.give, pair.a, checkpoint=None)
        pair.step(handover.accept, pair.b, checkpoint=None, **given)
        assert pair.b.files.record().generation == 9
        assert not pair.a.usable
        assert pair.a.store.get(CK).state() is State.SEALED

    def test_what_was_restored_there_is_not_set_back(self, pair: Pair) -> None:
        pair.hand_over()
        pair.b.store.get(CK).mark(Mark.CONSUMED, {})
        pair.b.files.update(generation=4)
        pair.hand_over()
        assert pair.b.files.record().generation == 4

    @pytest.mark.parametrize(
        ("step", "side", "more"),
        [
            (handover.offer, "a", {"to": "c"}),
            (handover.give, "a", {"to": "c"}),
            (handover.give, "a", {"run": "run2"}),
            (handover.take_back, "a", {"run": "run2"}),
        ],
    )
    def test_it_is_given_once(self, pair: Pair, step: Any, side: str, more: dict[str, str]) -> None:
        pair.hand_over()
        with pytest.raises(Refused):
            pair.step(step, getattr(pair, side), **more)

    def test_nothing_is_taken_over_that_did_not_come_whole(self, pair: Pair) -> None:
        with pytest.raises(TransferFailed):
            pair.take(pair.stream()[:-1])
        with pytest.raises(InvalidCheckpoint, match="not come whole"):
            pair.step(handover.accept, pair.b, generation=3, owner=0)

    def test_held_for_another_run(self, pair: Pair) -> None:
        pair.take(pair.stream())
        pair.b.files.hold("run9")
        with pytest.raises(PitstopError, match="held by run run9"):
            pair.step(handover.accept, pair.b, generation=3, owner=0)

    def test_on_shared_storage_the_same_is_seen_there(self, pair: Pair) -> None:
        pair.step(handover.offer, pair.a)
        seen = pair.step(handover.arrival, pair.a)
        assert (seen["offered"]["run"], seen["offered"]["to"]) == (RUN, "b")
        assert seen["digest"] == pair.step(handover.offer, pair.a)["digest"]


WRITES = (
    (Checkpoint, "mark"),
    (Store, "finish"),
    (WorkloadState, "write"),
    (WorkloadState, "hold"),
    (WorkloadState, "note_move"),
    (WorkloadState, "forget_move"),
)
WHAT_IS_WRITTEN = (
    *("offered", "received", "moved.json", "handed-over"),
    *("hold", "record", "no moved.json", "sealed", "its name"),
)


class PowerCut(BaseException):
    """Nothing after this happens."""


def _dying(work: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def run(*arguments: Any, **more: Any) -> Any:
        if left[0] <= 0:
            raise PowerCut
        left[0] -= 1
        return work(*arguments, **more)

    return run
