"""The failure catalogue: what logs say, at what, and what follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.failures import CATALOGUE, Action, Where, classify, hint_of

# Lines as the programs print them, with names and numbers of our own.
SAID = {
    ("io-uring", "dump"): "Unknown shit 600 (anon_inode:[io_uring])",
    ("nvidia-device-open", "dump"): "Can't dump file 41 of that type [20666] (chr 195:255)",
    ("rdma-or-gdrcopy", "dump"): "Can't handle non-regular mapping on 7: /dev/infiniband/uverbs3",
    ("cuda-plugin-missing", "dump"): "handle_device_vma plugin failed: No such file or directory",
    ("plugin-of-another-criu", "restore"): "undefined symbol: check_and_remove_inventory_plugin",
    ("sysv-shared-memory", "dump"): "SysVIPC shmem map 7f00-7f10 doesn't live in IPC ns",
    (
        "deleted-semaphore",
        "dump",
    ): "Can't link dev/shm/link_remap.4 -> dev/shm/sem.mp-x: No such file",
    (
        "nvidia-mounts",
        "dump",
    ): "mnt: Mount 8 ./proc/driver/nvidia/gpus/0000:4f:00.0 (master_id: 5) has unreachable sharing",
    ("mount-compatibility", "restore"): "mnt-v2: Failed to copy sharing from 4: Invalid argument",
    ("cuda-lock-timeout", "dump"): "Timeout reached. Try to interrupt: 0",
    ("cuda-may-hang", "dump"): "cuda_plugin: Failed to unlock process status , pid 9 may hang",
    ("gpu-out-of-memory", "restore"): 'Could not restore: "out of memory"',
    (
        "address-gone",
        "restore",
    ): "inet: Can't connect inet socket back: Cannot assign requested address",
    ("connections-of-another-dump", "restore"): "inet: Connected TCP socket in image",
    ("connected", "dump"): "inet: Connected TCP socket, consider using --tcp-established option.",
    ("port-taken", "restore"): "inet: Can't bind inet socket (id 27): Address already in use",
    ("file-changed", "restore"): "File home/u/run.log has bad size 25 (expect 16)",
    ("pid-taken", "restore"): "Can't fork for 77: File exists",
    ("mptcp", "dump"): "Unsupported proto 262 for socket",
    ("vdso", "restore"): "Can't find vDSO area in image",
    (
        "library-gone",
        "restore",
    ): "bind mount source stat: /usr/lib/libEGL_nvidia.so.560: no such file",
    (
        "cpu-feature",
        "restore",
    ): "cpu: FPU feature required by image is not supported on host (feature: xsave)",
    ("limits-of-another-user", "dump"): "Can't get rlimit 0: Operation not permitted",
    ("no-room", "dump"): "Can't write pages: No space left on device",
    ("driver-regression", "dump"): "cuda_plugin: checkpoint: operation not supported",
    ("driver-mismatch", "kernel"): "Failed to initialize NVML: Driver/library version mismatch",
    ("fell-off-the-bus", "kernel"): "NVRM: GPU 0000:9a:00.0: GPU has fallen off the bus.",
    ("module-in-use", "kernel"): "rmmod: ERROR: Module nvidia_drm is in use",
}


@pytest.mark.parametrize(("name", "where"), SAID)
def test_what_is_known(name: str, where: str) -> None:
    line = SAID[name, where]
    [found] = classify(["first line", line, "Dumping FAILED."], Where(where))
    assert found.name == name
    assert found.references[0] in hint_of([line], Where(where))


def test_every_entry_has_a_line_it_was_made_for() -> None:
    assert {known.name for known in CATALOGUE} == {name for name, _ in SAID}
    assert len({known.name for known in CATALOGUE}) == len(CATALOGUE) >= 24


@pytest.mark.parametrize("known", CATALOGUE, ids=lambda known: known.name)
def test_an_entry_says_what_to_do(known: object) -> None:
    assert re.compile(known.pattern)  # type: ignore[attr-defined]
    assert known.cause and known.way and known.references  # type: ignore[attr-defined]
    assert known.where  # type: ignore[attr-defined]


def test_the_same_words_mean_another_thing_elsewhere() -> None:
    line = SAID["port-taken", "restore"]
    assert classify([line], Where.DUMP) == ()
    assert [known.action for known in classify([line], Where.RESTORE)] == [Action.RETRY]


@given(st.lists(st.text(max_size=200), max_size=20), st.sampled_from(list(Where)))
def test_what_is_unknown_is_not_guessed(lines: list[str], where: Where) -> None:
    for known in classify(lines, where):
        assert any(known.says(line) for line in lines)
    assert hint_of(["something new", "Restoring FAILED."], where) == ""


def test_what_serves_well_is_no_failure() -> None:
    """Warnings of a restored workload's own: whether it answers as before decides."""
    lines = ["[rank0]: Failed to check the should-dump flag on TCPStore: Broken pipe"]
    assert classify(lines, Where.RESTORE) == ()


def test_the_page_has_every_entry() -> None:
    page = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    for known in CATALOGUE:
        assert f"`{known.name}`" in page
