"""A checkpoint as a stream of bytes from one node to another.

    <<pitstop-images NONCE>>                  after whatever a login shell has printed
    {"name": "manifest.json", "size": n}      and n bytes
    {"name": "signature.json", "size": n}     and n bytes
    {"name": NAME, "size": n}                 and n bytes, for each image that is not there yet
    {"end": true}

Manifest and signature come first, so nothing of a memory image is taken before a key that is
trusted here says that it is expected; its name and size are the manifest's, never the stream's.
An image that came whole before stays, and is not sent again. At the end every byte is read back
and compared with the manifest.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pitstop.images.checkpoint import Checkpoint, Mark, State, sync_images
from pitstop.images.durable import sync_file, write_atomic
from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.errors import InvalidCheckpoint, Refused, TransferFailed
from pitstop.model.plain import digest_of

if TYPE_CHECKING:
    from pitstop.model.manifest import Manifest

CHUNK = 1 << 20
LINE_LIMIT = 4096
NOISE_LIMIT = 1 << 20
"""Bytes that a login shell may print before the stream."""

RECORD_LIMIT = 64 << 20
"""Bytes that a manifest or a signature may have: they are held in memory."""

RECORDS = ("manifest.json", "signature.json")


def head(nonce: str) -> bytes:
    """Return the line that a stream begins with."""
    return f"\n<<pitstop-images {nonce}>>\n".encode()


def manifest_digest(checkpoint: Checkpoint) -> str:
    """Return what tells whether two nodes speak of the same checkpoint."""
    try:
        return digest_of((checkpoint.path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCheckpoint(checkpoint.id, f"the manifest cannot be read: {error}") from error


def whole_images(draft: Checkpoint) -> list[str]:
    """Return the images that came whole before, by their size; they are verified at the end."""
    try:
        manifest = draft.manifest()
    except InvalidCheckpoint:
        return []
    return sorted(f.name for f in manifest.files if _size(draft.images / f.name) == f.size)


def send(checkpoint: Checkpoint, nonce: str, have: Collection[str], out: BinaryIO) -> int:
    """Write a checkpoint to a stream and return how many bytes of images that were.

    Raises:
        Refused: it could not be restored, so it is of no use to anybody.
        InvalidCheckpoint: it is damaged.
    """
    if checkpoint.state() is not State.SEALED:
        raise Refused(checkpoint.id, f"it is {checkpoint.state().value}, and not sent")
    manifest = checkpoint.manifest()
    out.write(head(nonce))
    for name in RECORDS:
        content = (checkpoint.path / name).read_bytes()
        out.write(_header(name, len(content)) + content)
    sent = 0
    for image in manifest.files:
        if image.name in have:
            continue
        out.write(_header(image.name, image.size))
        _copy_file(checkpoint, checkpoint.images / image.name, image.size, out)
        sent += image.size
    out.write(b'{"end": true}\n')
    out.flush()
    return sent


def receive(store: Store, keys: Keys, identifier: str, nonce: str, stream: BinaryIO) -> Checkpoint:
    """Read a checkpoint from a stream and return it as a draft of which every byte is verified.

    It is not finished by that: nothing here can restore it yet. What came whole stays for the
    next try when the stream ends early.

    Raises:
        TransferFailed: the stream ended, or is none.
        InvalidCheckpoint: it is not what a key trusted here has signed; nothing of it stays.
        Refused: a checkpoint of that name is there, or there is no room.
    """
    begun = time.monotonic()
    _skip_to_head(stream, nonce, identifier)
    records = {name: _read_record(stream, name, identifier) for name in RECORDS}
    draft = store.take_up(identifier)
    if _differs(draft, records):
        shutil.rmtree(draft.path)
        draft = store.take_up(identifier)
    for name, content in records.items():
        write_atomic(draft.path / name, content)
    try:
        manifest = draft.verify_signature(keys)
        if manifest.workload != store.directory.name:
            raise InvalidCheckpoint(identifier, f"is of workload {manifest.workload}")
        _receive_images(draft, manifest, stream)
        sync_images(draft.images)
        draft.verify(keys)
    except InvalidCheckpoint:
        store.discard(draft)  # memory that nobody here may ever use
        raise
    seconds = round(time.monotonic() - begun, 3)
    draft.mark(Mark.RECEIVED, {"bytes": manifest.total_bytes, "seconds": seconds})
    return draft


def _receive_images(draft: Checkpoint, manifest: Manifest, stream: BinaryIO) -> None:
    expected = {image.name: image.size for image in manifest.files}
    for stray in draft.images.iterdir():
        if stray.name not in expected:
            stray.unlink()
    here = sum(expected[name] for name in whole_images(draft))
    _refuse_without_room(draft, manifest.total_bytes - here)
    for header in _headers(stream, draft.id):
        name, size = header.get("name"), header.get("size")
        if name not in expected or size != expected[name]:
            raise InvalidCheckpoint(draft.id, f"{name!r} of {size!r} bytes is not in the manifest")
        _read_image(draft, str(name), int(size), stream)


def _refuse_without_room(draft: Checkpoint, wanted: int) -> None:
    room = os.statvfs(draft.path)
    free = room.f_bavail * room.f_frsize
    if wanted > free:
        raise Refused(draft.id, f"{wanted} bytes are to come, and there is room for {free}")


def _read_image(draft: Checkpoint, name: str, size: int, stream: BinaryIO) -> None:
    path = draft.images / name
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        for part in _parts(stream, size, draft.id):
            file.write(part)
    sync_file(path)


def _copy_file(checkpoint: Checkpoint, path: Path, size: int, out: BinaryIO) -> None:
    try:
        with path.open("rb") as file:
            for part in _parts(file, size, checkpoint.id):
                out.write(part)
    except FileNotFoundError as error:
        raise InvalidCheckpoint(checkpoint.id, f"image file {path.name} is missing") from error


def _parts(stream: BinaryIO, size: int, subject: str) -> Iterator[bytes]:
    left = size
    while left:
        part = stream.read(min(left, CHUNK))
        if not part:
            raise TransferFailed(subject, f"the stream ended {left} bytes before an image's end")
        left -= len(part)
        yield part


def _headers(stream: BinaryIO, subject: str) -> Iterator[dict[str, Any]]:
    while True:
        header = _read_header(stream, subject)
        if header.get("end") is True:
            return
        yield header


def _read_header(stream: BinaryIO, subject: str) -> dict[str, Any]:
    line = stream.readline(LINE_LIMIT)
    if not line.endswith(b"\n"):
        raise TransferFailed(subject, "the stream ended before its end was said")
    try:
        header = json.loads(line)
    except ValueError as error:
        raise TransferFailed(subject, "something else was written into the stream") from error
    if not isinstance(header, dict):
        raise TransferFailed(subject, "something else was written into the stream")
    return header


def _read_record(stream: BinaryIO, name: str, subject: str) -> bytes:
    header = _read_header(stream, subject)
    size = header.get("size")
    if header.get("name") != name or not isinstance(size, int) or not 0 < size <= RECORD_LIMIT:
        raise InvalidCheckpoint(subject, f"{name} is expected first, not {header.get('name')!r}")
    return b"".join(_parts(stream, size, subject))


def _skip_to_head(stream: BinaryIO, nonce: str, subject: str) -> None:
    wanted, skipped = head(nonce).strip(), 0
    while skipped < NOISE_LIMIT:
        line = stream.readline(NOISE_LIMIT)
        if not line:
            raise TransferFailed(subject, "the other node sent nothing")
        if line.strip() == wanted:
            return
        skipped += len(line)
    raise TransferFailed(subject, "what the other node sends is no checkpoint")


def _differs(draft: Checkpoint, records: dict[str, bytes]) -> bool:
    """Whether what is there of an earlier try belongs to something else."""
    try:
        return (draft.path / "manifest.json").read_bytes() != records["manifest.json"]
    except FileNotFoundError:
        return any(draft.images.iterdir())


def _header(name: str, size: int) -> bytes:
    return json.dumps({"name": name, "size": size}).encode() + b"\n"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
