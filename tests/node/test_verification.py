"""An image that is not what was signed is never given to CRIU: it is code that runs as root."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from pitstop.images.checkpoint import Checkpoint, State
from pitstop.images.signing import Keys
from pitstop.model.errors import InvalidCheckpoint
from pitstop.model.manifest import Manifest
from tests.rigs.engine import WORKLOAD, Engine, running_engine

Damage = Callable[[Checkpoint, Path], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a node with a sealed checkpoint of a server that was counted to two."""
    root = tmp_path_factory.mktemp("original")
    with running_engine(root) as engine:
        engine.serve()
        engine.count_to(2)
        engine.save()
        engine.rpc("release", workload=WORKLOAD, run="run1")
        for log in engine.checkpoint("ck1").work.iterdir():
            log.unlink()
    return root


@pytest.fixture
def saved(original: Path, engine: Engine) -> Checkpoint:
    """That checkpoint in a state directory of the test's own."""
    shutil.copytree(original, engine.root, dirs_exist_ok=True)
    return engine.checkpoint("ck1")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit_manifest(checkpoint: Checkpoint, _keys: Path) -> None:
    path = checkpoint.path / "manifest.json"
    data = json.loads(path.read_text())
    data["options"] = ["--shell-job"]
    path.write_text(json.dumps(data))


def sign_with(checkpoint: Checkpoint, keys: Keys) -> None:
    checkpoint.write(checkpoint.manifest(), keys)


def sign_with_another_key(checkpoint: Checkpoint, keys: Path) -> None:
    other = keys.parent / "other-keys"
    other.mkdir()
    sign_with(checkpoint, Keys(other))


def edit_signature(checkpoint: Checkpoint, _keys: Path) -> None:
    path = checkpoint.path / "signature.json"
    envelope = json.loads(path.read_text())
    found = envelope["signatures"][0]["sig"]
    envelope["signatures"][0]["sig"] = ("A" if found[0] != "A" else "B") + found[1:]
    path.write_text(json.dumps(envelope))


def swap_image(checkpoint: Checkpoint, _keys: Path) -> None:
    path = checkpoint.images / "inventory.img"
    shutil.move(path, checkpoint.path / "elsewhere")
    path.symlink_to(checkpoint.path / "elsewhere")


def signed_of_another_name(checkpoint: Checkpoint, keys: Path) -> None:
    manifest = checkpoint.manifest().model_copy(update={"checkpoint": "other"})
    checkpoint.write(manifest, Keys(keys))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "truncated": (
        lambda c, _k: os.truncate(c.images / "pages-1.img", 4096),
        "pages-1.img was changed",
    ),
    "missing": (lambda c, _k: (c.images / "mm-1001.img").unlink(), "mm-1001.img is missing"),
    "extra": (
        lambda c, _k: (c.images / "extra.img").touch(),
        "extra.img is not in the manifest",
    ),
    "symlink": (swap_image, "inventory.img: only plain files"),
    "directory": (lambda c, _k: (c.images / "deep").mkdir(), "deep: only plain files"),
    "socket": (lambda c, _k: os.mkfifo(c.images / "pipe"), "pipe: only plain files"),
    "no images": (lambda c, _k: shutil.rmtree(c.images), "images"),
    "manifest edited": (edit_manifest, "not the manifest that was signed"),
    "manifest missing": (lambda c, _k: (c.path / "manifest.json").unlink(), "manifest.json"),
    "signature edited": (edit_signature, "not signed by a key this node trusts"),
    "signature empty": (
        lambda c, _k: os.truncate(c.path / "signature.json", 0),
        "signature file is damaged",
    ),
    "signature missing": (lambda c, _k: (c.path / "signature.json").unlink(), "signature.json"),
    "another key": (sign_with_another_key, "not signed by a key this node trusts"),
    "key lost": (lambda _c, k: (k / "signing.pem").unlink(), "no key to verify it with"),
    "key open": (lambda _c, k: (k / "signing.pem").chmod(0o640), "readable by others"),
    "renamed": (signed_of_another_name, "the manifest is of other"),
}


def images_untouched(checkpoint: Checkpoint) -> None:
    """CRIU has not run: it would have left its log."""
    assert list(checkpoint.work.iterdir()) == []
    assert checkpoint.state() is State.SEALED


@pytest.mark.parametrize("damage", DAMAGES)
def test_refused_before_criu_runs(engine: Engine, saved: Checkpoint, damage: str) -> None:
    do, cause = DAMAGES[damage]
    do(saved, engine.state.keys())
    launched = engine.restore()
    assert launched.wait() == 1
    assert launched.report["failed"]["code"] == "invalid_checkpoint"
    assert cause in launched.said, launched.said
    images_untouched(saved)
    assert engine.copies() == 0
    [listed] = engine.rpc("images.verify", workload=WORKLOAD, checkpoint="ck1")["images"]
    assert cause in listed["fault"]


def test_one_bit_in_any_file(engine: Engine, saved: Checkpoint) -> None:
    """Each kind of file; through the same function that a restore asks."""
    keys = Keys(engine.state.keys())
    saved.verify(keys)
    kinds = {
        path.name.split("-")[0]: path for path in saved.images.iterdir() if path.stat().st_size
    }
    assert {"core", "pages", "pagemap.img", "inventory.img", "mm"} & kinds.keys()
    for path in kinds.values():
        flip(path)
        with pytest.raises(InvalidCheckpoint, match=f"{path.name} was changed"):
            saved.verify(keys)
        flip(path)
    saved.verify(keys)
    images_untouched(saved)


@pytest.mark.parametrize("damage", ["truncated", "another key", "manifest missing"])
def test_auto_starts_cold_and_records_why(engine: Engine, saved: Checkpoint, damage: str) -> None:
    do, cause = DAMAGES[damage]
    do(saved, engine.state.keys())
    launched = engine.serve()
    assert launched.report["how"] == "cold"
    assert cause in launched.report["cause"]
    assert cause in engine.record().cause
    assert "no restore, cold start" in launched.said
    assert engine.ask("/")["count"] == 0
    images_untouched(saved)


def test_a_key_that_the_operator_trusts(engine: Engine, saved: Checkpoint) -> None:
    """A checkpoint that another node signed."""
    keys = engine.state.keys()
    private = load_pem_private_key((keys / "signing.pem").read_bytes(), None)
    (keys / "signing.pem").unlink()
    (keys / "trusted").mkdir()
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (keys / "trusted" / "other-node.pem").write_bytes(public)
    assert engine.restore().report["running"]
    assert engine.ask("/count")["count"] == 3


class TestGate:
    """What it is valid against is asked again, right before."""

    @pytest.fixture
    def version(self, engine: Engine) -> Iterator[Path]:
        path = engine.root / "version"
        path.write_text("1.0\n")
        engine.serve()
        engine.save(probes={"engine": {"command": ["cat", str(path)]}})
        engine.rpc("release", workload=WORKLOAD, run="run1")
        yield path

    def test_differs(self, engine: Engine, version: Path) -> None:
        version.write_text("2.0\n")
        launched = engine.restore()
        assert launched.wait() == 3
        assert "engine.version: 1.0 -> 2.0" in launched.said
        status = engine.op("a", "restore", engine.bring_up(checkpoint="ck1"))
        assert status["error"]["code"] == "refused"
        assert engine.checkpoint("ck1").state() is State.SEALED

    def test_unknown_is_not_equal(self, engine: Engine, version: Path) -> None:
        version.unlink()
        launched = engine.restore()
        assert launched.wait() == 3
        assert "engine.version: 1.0 -> unknown" in launched.said

    def test_the_same_again(self, engine: Engine, version: Path) -> None:
        version.write_text("1.0 \n")
        assert engine.restore().report["running"]


def test_a_probe_of_an_edited_manifest_is_never_run(engine: Engine, saved: Checkpoint) -> None:
    """A probe is a command: an unsigned one would be code of whoever wrote the file."""
    mark = engine.root / "ran"
    data = json.loads((saved.path / "manifest.json").read_text())
    data["probes"] = {"engine": {"command": ["touch", str(mark)]}}
    (saved.path / "manifest.json").write_text(json.dumps(data))
    status = engine.op("a", "restore", engine.bring_up(checkpoint="ck1"))
    assert status["error"]["code"] == "invalid_checkpoint", status
    assert engine.restore().wait() == 1
    assert not mark.exists()


def test_signing_key_of_a_race_is_one(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            try:
                keys.sign(b"{}", "x")
            except BaseException:  # noqa: BLE001
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert [path.name for path in tmp_path.iterdir()] == ["signing.pem"]
    assert (tmp_path / "signing.pem").stat().st_mode & 0o777 == 0o600
    assert keys.verify(keys.sign(b"{}", "x"), "x", "s") == b"{}"
    with pytest.raises(InvalidCheckpoint, match="signed as 'x'"):
        keys.verify(keys.sign(b"{}", "x"), "y", "s")


def test_an_open_key_is_known_before_anything_is_frozen(engine: Engine) -> None:
    engine.serve()
    private = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    path = engine.state.keys() / "signing.pem"
    path.write_bytes(private)
    path.chmod(0o644)
    with pytest.raises(InvalidCheckpoint, match="readable by others"):
        engine.save()
    assert engine.files().holder() == ""
    assert engine.store().all() == []
    assert not list(engine.files().directory.glob("failed-*")), "CRIU ran"
    assert engine.copies() == 1


def test_manifest_model_refuses_names_that_lead_elsewhere() -> None:
    for name in ("../x", "a/b", "", "x" * 256, "a\n"):
        with pytest.raises(ValueError, match="name"):
            Manifest.model_validate({"files": [{"name": name, "size": 0, "blake3": "0" * 64}]})
