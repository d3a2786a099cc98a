"""The failure catalogue: what logs say, at what, and what follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.failures import CATALOGUE, Action, Known, Where, classify, hint_of, judge

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
    (
        "foreign-session",
        "dump",
    ): "The root process 12 is not a session leader. Consider using --shell-job option",
    ("no-memory", "restore"): "Can't mmap section: Cannot allocate memory",
    ("cuda-lock-unanswered", "cuda-lock"): "CUDA lock of pid 123: no answer within 65 s",
    ("cuda-newcomer", "cuda-lock"): "pid 9 came to CUDA while the others were being locked",
    (
        "cuda-not-initialised",
        "cuda-lock",
    ): "CUDA lock of pid 9: CUDA_ERROR_NOT_INITIALIZED: not yet",
    ("cuda-no-process", "cuda-lock"): "CUDA lock of pid 9: CUDA_ERROR_INVALID_VALUE: out of range",
    ("cuda-out-of-turn", "cuda-checkpoint"): "pid 5 is running, not locked",
    (
        "cuda-checkpoint-unanswered",
        "cuda-checkpoint",
    ): "CUDA checkpoint of pid 123: no answer within 600 s",
    (
        "cuda-stuck",
        "cuda-restore",
    ): "CUDA restore of pid 7: CUDA_ERROR_OPERATING_SYSTEM: a call failed",
    (
        "cuda-restore-invalid",
        "cuda-restore",
    ): "CUDA restore of pid 7: CUDA_ERROR_INVALID_VALUE: out of range",
    (
        "cuda-restore-unsupported",
        "cuda-restore",
    ): "CUDA restore of pid 7: CUDA_ERROR_NOT_SUPPORTED: not there",
    ("cuda-restore-unanswered", "cuda-restore"): "CUDA unlock of pid 7: no answer within 30 s",
    (
        "cuda-state-failed",
        "cuda-restore",
    ): "pid 5: the driver gave it up (state failed): its GPU memory is lost",
    (
        "cuda-caller-died",
        "cuda-restore",
    ): "CUDA restore of pid 7: the driver ended the process that called it (signal 11)",
    ("cuda-not-permitted", "cuda-lock"): "CUDA lock of pid 7: CUDA_ERROR_NOT_PERMITTED: no",
    ("no-gpu", "cuda-lock"): "the CUDA driver cannot be used: CUDA_ERROR_NO_DEVICE: none",
    (
        "gpu-memory-broken",
        "cuda-checkpoint",
    ): "CUDA checkpoint of pid 7: CUDA_ERROR_ECC_UNCORRECTABLE: broken",
    (
        "cuda-context-broken",
        "cuda-checkpoint",
    ): "CUDA checkpoint of pid 7: CUDA_ERROR_ILLEGAL_ADDRESS: of a kernel",
    ("cuda-unknown", "cuda-checkpoint"): "CUDA checkpoint of pid 7: CUDA_ERROR_UNKNOWN: unknown",
    (
        "host-memory-registration",
        "serving",
    ): "terminate: cudaHostUnregister failed: cudaErrorHostMemoryNotRegistered",
    (
        "stale-gpu-identity",
        "serving",
    ): "gpu2:7:9 [0] NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found",
    (
        "driver-mismatch",
        "cuda-lock",
    ): "the CUDA driver cannot be used: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: two versions",
    ("driver-mismatch", "nvml"): "Failed to initialize NVML: Driver/library version mismatch",
    ("driver-not-loaded", "nvml"): "Driver Not Loaded",
    ("gpu-access-lost", "nvml"): "Failed to initialize NVML: Unknown Error",
    ("reset-refused", "nvml"): "GPU 00000000:18:00.0 could not be reset: In use by another client",
    ("gpu-probe-failed", "kernel"): "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    (
        "driver-crashed-program",
        "kernel",
    ): "python[77]: segfault at 18 ip 00007f00 sp 00007ffd error 4 in libcuda.so.610.57.04[7f00+1]",
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
def test_an_entry_says_what_to_do(known: Known) -> None:
    assert re.compile(known.pattern)
    assert known.cause and known.way and known.references
    assert known.where


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


@pytest.mark.parametrize(
    ("line", "meanings"),
    [
        (
            "CUDA checkpoint of pid 7: CUDA_ERROR_OUT_OF_MEMORY: no room",
            {"cuda-lock": "", "cuda-checkpoint": "cuda-no-host-memory"}
            | {"cuda-restore": "cuda-no-gpu-memory"},
        ),
        ("CUDA_ERROR_NOT_READY: x", {"cuda-lock": "cuda-busy", "cuda-checkpoint": ""}),
        (
            "CUDA_ERROR_INVALID_VALUE: x",
            {"cuda-lock": "cuda-no-process", "cuda-restore": "cuda-restore-invalid"},
        ),
        (
            "CUDA_ERROR_ILLEGAL_STATE: x",
            {"cuda-lock": "cuda-out-of-turn", "cuda-unlock": "cuda-stuck"},
        ),
        (
            "pid 5 is locked, not checkpointed",
            {"cuda-checkpoint": "cuda-out-of-turn", "cuda-unlock": ""},
        ),
    ],
)
def test_cuda_means_another_thing_at_each_call(line: str, meanings: dict[str, str]) -> None:
    for where, name in meanings.items():
        assert judge([line], Where(where)).failure == name


def test_the_machines_fault_and_the_programs_are_told_apart() -> None:
    lines = """\
[   90.1] NVRM: The NVIDIA GPU 0000:5d:00.0
          NVRM: (PCI ID: 10de:2330) installed in this system has
          NVRM: fallen off the bus and is not responding to commands.
[  190.0] NVRM: Xid (PCI:0000:9a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off
[  190.1] NVRM: Xid (PCI:0000:18:00): 13, Graphics Exception: Shader Program Header 11 Error
"""
    found = classify(lines.splitlines(), Where.KERNEL)
    assert {known.name: known.unfit for known in found} == {
        "fell-off-the-bus": True,
        "application-fault": False,
    }
    for number in (48, 63, 64, 74, 79, 94, 95, 119, 120):
        [known] = classify([f"NVRM: Xid (PCI:0000:18:00): {number}, pid=1, x"], Where.KERNEL)
        assert known.unfit, number
    for number in (13, 31, 43, 45):
        [known] = classify([f"NVRM: Xid (PCI:0000:18:00): {number}, pid=1, x"], Where.KERNEL)
        assert not known.unfit, number


@pytest.mark.parametrize("where", Where)
@pytest.mark.parametrize(
    "line",
    [
        # Warnings of a restored workload's own: whether it answers as before decides.
        "Restore finished successfully. Tasks resumed.",
        "[rank0]:[W324 03:00:07 ProcessGroupNCCL.cpp:17] Failed to check the should-dump flag on "
        "TCPStore: Broken pipe",
        "[rank0]:[W324 03:00:08 TCPStore.cpp:10] sendBytes failed on SocketImpl(fd=4): Broken pipe",
        "app: Connection reset by peer",
        # CRIU's own, on a way that went well.
        "cuda_plugin: pausing devices on pid 41",
        "cuda_plugin: finished cuda_plugin stage 0 err 0",
        "inet: Restore: family 2 type 1 proto 6 port 8000",
        "Collected anon_inode:[eventfd]",
        "Opening ghost file 0x3 for data/x",
        # The kernel's, of a driver that is well.
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.126.09",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 511",
        "python[7]: segfault at 18 ip 00007f00 sp 00007ffd error 4 in libc.so.6[7f00+1]",
        # Numbers that only begin like others.
        "NVRM: Xid (PCI:0000:18:00): 790, pid=1, x",
        "CUDA lock of pid 7: done",
        "CUDA state of pid 7: running",
    ],
)
def test_what_means_nothing(line: str, where: Where) -> None:
    assert classify([line], where) == ()


def test_the_page_is_the_data() -> None:
    page = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{k.name}` | {', '.join(k.where)} | {k.cause} | {k.action}{' (unfit)' * k.unfit} "
        f"| {k.way} | {', '.join(k.references)} |"
        for k in CATALOGUE
    ]
