"""The failure catalogue: what CRIU, CUDA, NVML and the kernel say, and what to do about it.

Data, with the public place where each was reported. The same words mean different things at a
dump and at a restore, so an entry says where it holds. What is not in it is called unknown, and
is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Where(StrEnum):
    """At what a line was said."""

    DUMP = "dump"
    RESTORE = "restore"
    KERNEL = "kernel"


class Action(StrEnum):
    """What helps.

    `retry`: the same again, later. `fix`: the same again, with something changed that `way`
    names. `other`: not here or not so, but elsewhere or by another strategy. `cold-start`: nothing
    saved can be used.
    """

    RETRY = "retry"
    FIX = "fix"
    OTHER = "other"
    COLD_START = "cold-start"


@dataclass(frozen=True, slots=True)
class Known:
    """A failure that is known.

    Attributes:
        name: for records and statistics; never changes.
        pattern: found in a line of the log.
        cause: in words.
        way: what a person can do.
        references: where it was reported or is documented.
    """

    name: str
    where: tuple[Where, ...]
    pattern: str
    cause: str
    action: Action
    way: str
    references: tuple[str, ...]

    def says(self, line: str) -> bool:
        """Tell whether a line is of this failure."""
        return re.search(self.pattern, line) is not None

    @property
    def hint(self) -> str:
        """Cause and way out, with the first reference, for an error."""
        return f"{self.cause}: {self.way} [{self.references[0]}]"


_DUMP, _RESTORE, _KERNEL = (Where.DUMP,), (Where.RESTORE,), (Where.KERNEL,)
_BOTH = (Where.DUMP, Where.RESTORE)

CATALOGUE: tuple[Known, ...] = (
    Known(
        "io-uring",
        _DUMP,
        r"anon_inode:\[io_uring\]",
        "the workload uses io_uring, which CRIU cannot save",
        Action.OTHER,
        "start it with --deny-io-uring, or UV_USE_IO_URING=0 where it is libuv's",
        ("criu#2131", "criu#2673", "criu#3070"),
    ),
    Known(
        "nvidia-device-open",
        _DUMP,
        r"Can't dump file \d+ of that type \[\d+\] \(chr 195:\d+\)",
        "a process holds an NVIDIA device open that is not CUDA's to save, such as NVML's in a "
        "forked child",
        Action.OTHER,
        "close it before forking, or a driver of branch 570 or newer for NVML",
        ("cuda-checkpoint#7", "cuda-checkpoint#28"),
    ),
    Known(
        "rdma-or-gdrcopy",
        _DUMP,
        r"(/dev/infiniband/uverbs\d+|/dev/gdrdrv|\(chr 506:\d+\))",
        "memory of a network card or of gdrcopy is mapped, which CRIU cannot save",
        Action.OTHER,
        "NCCL_IB_DISABLE=1 and UCX_TLS without ib and gdr at its start; else start it cold",
        ("criu#267", "nvcf#891", "nvcf#465"),
    ),
    Known(
        "cuda-plugin-missing",
        _DUMP,
        r"handle_device_vma plugin failed",
        "GPU memory is mapped, and nobody has taken it off the GPU before the dump",
        Action.FIX,
        "CUDA state has to be checkpointed first; with CRIU's plugin: is it found, and the driver "
        "of branch 555 or newer?",
        ("criu#2953", "criu#2065", "criu#3040"),
    ),
    Known(
        "plugin-of-another-criu",
        _BOTH,
        r"undefined symbol: \w+_plugin",
        "a plugin of CRIU was built for another version of it",
        Action.FIX,
        "install plugin and CRIU of one version",
        ("criu#2953",),
    ),
    Known(
        "sysv-shared-memory",
        _DUMP,
        r"SysVIPC shmem map .* doesn't live in IPC ns",
        "System V shared memory from outside of the workload's namespaces is mapped",
        Action.OTHER,
        "UCX_TLS without sysv at its start; else start it cold",
        ("nvcf#891",),
    ),
    Known(
        "deleted-semaphore",
        _BOTH,
        r"Can't link \S*dev/shm/link_remap\.\d+ -> \S*dev/shm/sem\.",
        "a POSIX semaphore was deleted while it is in use, as Python's multiprocessing does",
        Action.OTHER,
        "its shared memory has to come with it; else start it cold",
        ("criu#2980", "criu#2016", "criu#2674"),
    ),
    Known(
        "nvidia-mounts",
        _DUMP,
        r"Mount \d+ \S*proc/driver/nvidia\S* .*(unreachable sharing|proper root mount)",
        "the NVIDIA container runtime has mounted files that CRIU takes for a foreign tree",
        Action.FIX,
        "--enable-external-masters and --external mnt[] for them",
        ("runc#4522", "criu#3040", "cuda-checkpoint#19"),
    ),
    Known(
        "mount-compatibility",
        _RESTORE,
        r"mnt-v2: Failed to copy sharing",
        "CRIU's newer mount engine cannot rebuild the runtime's bind mounts",
        Action.COLD_START,
        "--mntns-compat-mode, which has to be there at the dump already",
        ("snapshot#144",),
    ),
    Known(
        "cuda-lock-timeout",
        _DUMP,
        r"(Timeout reached\. Try to interrupt|Unable to read output of cuda-checkpoint)",
        "the GPU work did not come to a stop in time",
        Action.RETRY,
        "a longer time for the lock, once the process is seen to be running again",
        ("cuda-checkpoint#26",),
    ),
    Known(
        "cuda-may-hang",
        _DUMP,
        r"Failed to unlock process status\s*, pid \d+ may hang",
        "after a lock that failed the process may still be locked",
        Action.FIX,
        "unlock it, and look whether it runs, before anything else",
        ("cuda-checkpoint#26",),
    ),
    Known(
        "gpu-out-of-memory",
        (Where.DUMP, Where.RESTORE),
        r"(?i)cuda.*out of memory|Could not (checkpoint|restore): \"out of memory\"",
        "there is no room: of the GPU at a restore, of the host at a checkpoint; on a MIG slice it "
        "only says so",
        Action.COLD_START,
        "the process cannot be used any more; from its image, once the GPU is empty",
        ("cuda-checkpoint#44", "cuda-checkpoint#42"),
    ),
    Known(
        "address-gone",
        _RESTORE,
        r"Can't connect inet socket back: Cannot assign requested address",
        "a connection was saved whose own address is not on this machine",
        Action.COLD_START,
        "policy.connections: close, at the next checkpoint",
        ("criu#457", "criu#944", "criu#2286"),
    ),
    Known(
        "connections-of-another-dump",
        _RESTORE,
        r"Connected TCP socket in image",
        "the image holds connections, and the restore was told of none",
        Action.FIX,
        "the same options at dump and restore",
        ("criu#286",),
    ),
    Known(
        "connected",
        _DUMP,
        r"Connected TCP socket, consider using",
        "it has connections, and its policy is to refuse them",
        Action.FIX,
        "policy.connections: close or keep; or drain it first",
        ("criu#286",),
    ),
    Known(
        "port-taken",
        _RESTORE,
        r"Can't bind inet socket .*Address already in use",
        "somebody else listens where the workload did",
        Action.RETRY,
        "find out who: ss -tlnp. A second copy of the workload must be dealt with, not waited for",
        ("criu#2190",),
    ),
    Known(
        "file-changed",
        _RESTORE,
        r"File \S+ has bad size \d+ \(expect \d+\)",
        "a file that the workload has open was written to after the dump",
        Action.COLD_START,
        "let nobody else write to it; its own output is safe under the launcher",
        ("criu#1258", "criu#948"),
    ),
    Known(
        "pid-taken",
        _RESTORE,
        r"Can't fork for \d+: File exists",
        "a PID of the image is in use: after a reboot, or the original still lives",
        Action.OTHER,
        "start it through the launcher, which gives it PIDs of its own",
        ("criu#2190",),
    ),
    Known(
        "mptcp",
        _DUMP,
        r"Unsupported proto 262 for socket",
        "it uses Multipath TCP, as Go 1.24 does for listeners by default",
        Action.OTHER,
        "GODEBUG=multipathtcp=0 at its start",
        ("criu#2655", "criu#2662"),
    ),
    Known(
        "vdso",
        _BOTH,
        r"(vdso: Unexpected rt vDSO area bounds|Can't find vDSO area in image)",
        "this CRIU does not know the kernel's vDSO",
        Action.COLD_START,
        "a newer CRIU, before the next checkpoint",
        ("criu#2532", "criu#2622"),
    ),
    Known(
        "library-gone",
        _BOTH,
        r"(bind mount source stat|Can't open file)\b.*lib\w+nvidia\S*: no such file",
        "a library of the driver is not there: the driver was changed between dump and restore",
        Action.COLD_START,
        "declare the change in the runbook, and the plan says so beforehand",
        ("cuda-checkpoint#21",),
    ),
    Known(
        "cpu-feature",
        _RESTORE,
        r"feature required by image is not supported on host",
        "this CPU lacks what the program was using",
        Action.OTHER,
        "a node with the same CPU; else start it cold",
        ("criu: Documentation/criu.txt, --cpu-cap",),
    ),
    Known(
        "limits-of-another-user",
        _DUMP,
        r"Can't get rlimit \d+: Operation not permitted",
        "root lacks CAP_SYS_RESOURCE, and the process is another user's",
        Action.FIX,
        "give pitstop-node CAP_SYS_RESOURCE",
        ("prlimit(2)",),
    ),
    Known(
        "no-room",
        _BOTH,
        r"No space left on device",
        "the disk is full",
        Action.FIX,
        "make room, or another place for images",
        ("criu#1258",),
    ),
    Known(
        "driver-regression",
        _DUMP,
        r"(?i)cuda.*operation not supported",
        "this driver cannot checkpoint this process, though its branch can",
        Action.OTHER,
        "see the list of drivers that are known to fail; 575.57 and 580 are better",
        ("cuda-checkpoint#34", "cuda-checkpoint#24"),
    ),
    Known(
        "driver-mismatch",
        (Where.DUMP, Where.RESTORE, Where.KERNEL),
        r"(?i)(driver/library|NVML/RM) version mismatch",
        "the installed driver is not the one that the kernel runs",
        Action.FIX,
        "reboot, or load the new module; until then nothing is saved or restored there",
        ("nvidia-smi(1)",),
    ),
    Known(
        "fell-off-the-bus",
        _KERNEL,
        r"(?i)(fallen off the bus|Xid \(PCI:[0-9a-f:.]+\): 79\b)",
        "a GPU is lost",
        Action.OTHER,
        "reboot the node, and see that the GPU is back; else it needs hands",
        ("NVIDIA: Xid Errors, 79",),
    ),
    Known(
        "module-in-use",
        _KERNEL,
        r"Module nvidia\w* is in use",
        "something still uses the driver",
        Action.FIX,
        "end what holds it: lsof /dev/nvidia*, also exporters and nvidia-persistenced",
        ("rmmod(8)",),
    ),
)


def classify(lines: Iterable[str], where: Where) -> tuple[Known, ...]:
    """Return the known failures that lines of a log speak of, in the order of the lines.

    An empty answer means that it is unknown: say so, with the log's end.
    """
    found: dict[str, Known] = {}
    for line in lines:
        for known in CATALOGUE:
            if where in known.where and known.says(line):
                found.setdefault(known.name, known)
    return tuple(found.values())


def hint_of(lines: Iterable[str], where: Where) -> str:
    """Return what to do about a failure, in words; empty when it is unknown."""
    return "; ".join(known.hint for known in classify(lines, where)[:2])
