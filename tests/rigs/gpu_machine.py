"""Emulated GPUs for all that a test starts on this machine, at the paths of real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pitstop.lab.init import copy_device, make_dev
from pitstop.lab.syscalls import CLONE_NEWNS, MS_PRIVATE, MS_REC, mount, setns, unshare
from tests.rigs.gpus import EmulatedGpus


@contextmanager
def shown(gpus: EmulatedGpus) -> Iterator[None]:
    """Show their devices below /dev, to this thread and what it starts."""
    directory = Path.cwd()
    back = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(CLONE_NEWNS)
        mount("none", "/", None, MS_REC | MS_PRIVATE)  # first: the machine sees none of it
        make_dev()
        for path, node in gpus.devices().items():
            copy_device(path, node.stat())
        yield
    finally:
        setns(f"/proc/self/fd/{back}", CLONE_NEWNS)
        os.close(back)
        os.chdir(directory)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedGpus]:
    """Four GPUs."""
    found = EmulatedGpus(tmp_path / "gpus", gpus=4)
    for name, value in found.environment().items():
        monkeypatch.setenv(name, value)
    with shown(found):
        yield found
