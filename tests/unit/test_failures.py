"""The failure catalogue: what logs say, at what, and what follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.failures import CATALOGUE, Action, Where, classify, hint_of, judge

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
    ("connection-not-accepted", "dump"): "inet: In-flight connection (l) for 8a91be",
    ("netlink-not-read", "dump"): "netlink: The socket has data to read",
    ("memory-of-its-parent", "dump"): "Can't make VM id for 1002",
    ("socket-leads-outside", "dump"): "unix: External socket is used. Consider using --ext-unix-sk",
    ("socket-led-outside", "restore"): "unix: FATAL: Peer 8164 unresolved for 9003408",
    ("file-of-an-unknown-kind", "dump"): "Can't dump file 3 of that type [20600] (chr 10:232)",
    ("socket-of-an-unknown-kind", "dump"): "sockets: BUG! Unknown socket collected (family 40)",
    ("traced", "dump"): "Unseizable non-zombie 1002 found, state S, err -1/10",
    ("nested-namespace", "dump"): "Can't dump nested uts namespace for 1002",
    (
        "deleted-file-too-large",
        "dump",
    ): "Can't dump ghost file /data/g of 269488128 size, increase limit",
    ("file-on-no-mount", "dump"): "Can't lookup mount=21 for fd=3 path=/q (deleted)",
    ("cuda-busy", "cuda-lock"): "CUDA_ERROR_NOT_READY: 600",
    ("cuda-cannot-save", "cuda-checkpoint"): "CUDA_ERROR_NOT_SUPPORTED: 801",
    ("cuda-no-host-memory", "cuda-checkpoint"): "CUDA_ERROR_OUT_OF_MEMORY: 2",
    ("cuda-no-gpu-memory", "cuda-restore"): "CUDA_ERROR_OUT_OF_MEMORY: 2",
    ("cuda-stuck", "cuda-unlock"): "CUDA_ERROR_ILLEGAL_STATE: 401",
    ("cuda-process-lost", "cuda-lock"): "CUDA_ERROR_OPERATING_SYSTEM: 304",
    ("cuda-out-of-turn", "cuda-lock"): "CUDA_ERROR_ILLEGAL_STATE: 401",
    ("fabric-not-ready", "cuda-lock"): "CUDA_ERROR_SYSTEM_NOT_READY: 802",
    ("gpu-lost", "nvml"): "GPU is lost",
    ("gpu-hardware", "kernel"): "NVRM: Xid (PCI:0000:4f:00): 48, pid=9, Double Bit ECC Error",
    ("gpu-needs-reset", "kernel"): "NVRM: Xid (PCI:0000:4f:00): 94, pid=9, Contained ECC error",
    ("application-fault", "kernel"): "NVRM: Xid (PCI:0000:4f:00): 13, pid=9, Graphics Exception",
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


@pytest.mark.parametrize(
    ("lines", "failure", "retryable"),
    [
        (["something new"], "", None),
        (["Can't make VM id for 7"], "memory-of-its-parent", True),
        (
            ["Can't make VM id for 7", "No space left on device"],
            "memory-of-its-parent,no-room",
            False,
        ),
        (["send_fds failed (-22)"], "io-uring", False),
        (["send_fds failed (-104)"], "", None),
        (["Unsupported proto 132 for socket 9"], "socket-of-an-unknown-kind", False),
    ],
)
def test_trying_again_helps_only_if_all_that_is_known_says_so(
    lines: list[str], failure: str, retryable: bool | None
) -> None:
    judged = judge(lines, Where.DUMP)
    assert (judged.failure, judged.retryable) == (failure, retryable)
    assert judged.mark == (f" [{failure}]" if failure else "")


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
