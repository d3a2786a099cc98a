"""One checkpoint on disk, and what state it is in.

    <id>/images/          what CRIU wrote
    <id>/manifest.json    what is in it
    <id>/signature.json   DSSE envelope over the manifest
    <id>/marks/           one small file for each thing that happened to it, see `Mark`

A checkpoint is made under a name with a leading dot and renamed when it is whole.

Whether it may be restored follows from its marks. `intent` is written before CRIU is told to
end the frozen original, `aborted` by the very script that keeps the original running, so
that "the original was ended at this boundary" can be told apart from "it ran on" whoever
was killed in between:

    consumed                    used up by a restore
    aborted                     the original ran on; worthless
    handed-over                 another node has taken it over: of no use here any more
    sealed                      the original was ended at this boundary
    intent alone                sealed, once the original is proven gone
    none                        never finished; worthless

`offered` says which run is about to move it where, and `received` that every byte of one that
came from another node was verified here; neither changes what may be done with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitstop.images.digest import digest_directory
from pitstop.images.durable import read_json, sync_directory, sync_file, write_atomic, write_json
from pitstop.images.signing import Keys
from pitstop.model.errors import InvalidCheckpoint
from pitstop.model.plain import canonical_json

if TYPE_CHECKING:
    from pitstop.model.manifest import ImageFile, Manifest

PAYLOAD_TYPE = "application/vnd.pitstop.manifest+json"


class Mark(StrEnum):
    """What can have happened to a checkpoint."""

    INTENT = "intent"
    ABORTED = "aborted"
    SEALED = "sealed"
    CONSUMED = "consumed"
    OFFERED = "offered"
    RECEIVED = "received"
    HANDED_OVER = "handed-over"


class State(StrEnum):
    """What follows from the marks."""

    UNFINISHED = "unfinished"
    ABORTED = "aborted"
    INTENDED = "intended"
    SEALED = "sealed"
    CONSUMED = "consumed"
    HANDED_OVER = "handed-over"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's directory."""

    path: Path

    @property
    def id(self) -> str:
        """Its name."""
        return self.path.name.removeprefix(".")

    @property
    def images(self) -> Path:
        """The directory CRIU writes to and reads from."""
        return self.path / "images"

    @property
    def work(self) -> Path:
        """CRIU's own logs and statistics: kept, but not part of the image."""
        return self.path / "work"

    @property
    def marks(self) -> Path:
        """The directory of marks."""
        return self.path / "marks"

    def mark(self, mark: Mark, data: dict[str, Any]) -> None:
        """Set a mark, durably."""
        write_json(self.marks / mark.value, data)

    def marked(self, mark: Mark) -> dict[str, Any] | None:
        """Return a mark's data, or None. A mark that is there but empty counts as set."""
        path = self.marks / mark.value
        if path.exists() and path.stat().st_size == 0:
            return {}
        return read_json(path)

    def state(self) -> State:
        """Say what the marks mean."""
        if self.path.name.startswith("."):
            return State.UNFINISHED
        for mark, state in (
            (Mark.CONSUMED, State.CONSUMED),
            (Mark.ABORTED, State.ABORTED),
            (Mark.HANDED_OVER, State.HANDED_OVER),
            (Mark.SEALED, State.SEALED),
            (Mark.INTENT, State.INTENDED),
        ):
            if (self.marks / mark.value).exists():
                return state
        return State.UNFINISHED

    def write(self, manifest: Manifest, keys: Keys) -> None:
        """Write manifest and signature, with everything on disk on return."""
        payload = canonical_json(manifest.model_dump(mode="json", by_alias=True))
        write_atomic(self.path / "manifest.json", payload)
        write_atomic(self.path / "signature.json", keys.sign(payload, PAYLOAD_TYPE))

    def manifest(self) -> Manifest:
        """Read the manifest without trusting it: for listings.

        Raises:
            InvalidCheckpoint: it is missing or not a manifest.
        """
        from pitstop.model.manifest import Manifest

        try:
            return Manifest.model_validate_json((self.path / "manifest.json").read_bytes())
        except (OSError, ValueError) as error:
            raise InvalidCheckpoint(self.id, f"the manifest cannot be read: {error}") from error

    def verify(self, keys: Keys) -> Manifest:
        """Prove that every byte is what was signed.

        Raises:
            InvalidCheckpoint: signature, manifest or a file is not; the cause names it.
        """
        manifest = self.verify_signature(keys)
        try:
            found = digest_directory(self.images)
        except (OSError, ValueError) as error:
            raise InvalidCheckpoint(self.id, str(error)) from error
        _compare(self.id, manifest.files, found)
        return manifest

    def verify_signature(self, keys: Keys) -> Manifest:
        """Prove that the manifest is what was signed, and is this checkpoint's.

        Raises:
            InvalidCheckpoint: it is not.
        """
        from pitstop.model.manifest import Manifest

        try:
            envelope = (self.path / "signature.json").read_bytes()
            plain = (self.path / "manifest.json").read_bytes()
        except OSError as error:
            raise InvalidCheckpoint(self.id, f"incomplete: {error}") from error
        payload = keys.verify(envelope, PAYLOAD_TYPE, self.id)
        if plain != payload:
            raise InvalidCheckpoint(self.id, "manifest.json is not the manifest that was signed")
        try:
            manifest = Manifest.model_validate_json(payload)
        except ValueError as error:
            raise InvalidCheckpoint(self.id, f"the manifest cannot be read: {error}") from error
        if manifest.checkpoint != self.id:
            raise InvalidCheckpoint(self.id, f"the manifest is of {manifest.checkpoint}")
        return manifest


def sync_images(directory: Path) -> None:
    """Bring all image files to the disk."""
    for entry in directory.iterdir():
        sync_file(entry)
    sync_directory(directory)


def _compare(subject: str, expected: tuple[ImageFile, ...], found: tuple[ImageFile, ...]) -> None:
    wanted, present = {f.name: f for f in expected}, {f.name: f for f in found}
    for name in sorted(wanted.keys() | present.keys()):
        if name not in present:
            raise InvalidCheckpoint(subject, f"image file {name} is missing")
        if name not in wanted:
            raise InvalidCheckpoint(subject, f"image file {name} is not in the manifest")
        if wanted[name] != present[name]:
            raise InvalidCheckpoint(
                subject,
                f"image file {name} was changed: {wanted[name].blake3[:16]}… "
                f"({wanted[name].size} bytes) was signed, "
                f"{present[name].blake3[:16]}… ({present[name].size} bytes) is there",
            )
