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
    """At what a line was said.

    `dump` and `restore` are CRIU's; `serving` is the workload's own output after a restore.
    """

    DUMP = "dump"
    RESTORE = "restore"
    CUDA_LOCK = "cuda-lock"
    CUDA_CHECKPOINT = "cuda-checkpoint"
    CUDA_RESTORE = "cuda-restore"
    CUDA_UNLOCK = "cuda-unlock"
    SERVING = "serving"
    NVML = "nvml"
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
        unfit: the machine is at fault, so its node is not fit for service until it is mended.
    """

    name: str
    where: tuple[Where, ...]
    pattern: str
    cause: str
    action: Action
    way: str
    references: tuple[str, ...]
    unfit: bool = False

    def says(self, line: str) -> bool:
        """Tell whether a line is of this failure."""
        return re.search(self.pattern, line) is not None

    @property
    def hint(self) -> str:
        """Cause and way out, with the first reference, for an error."""
        return f"{self.cause}: {self.way} [{self.references[0]}]"


_DUMP, _RESTORE, _KERNEL = (Where.DUMP,), (Where.RESTORE,), (Where.KERNEL,)
_BOTH = (Where.DUMP, Where.RESTORE)
_LOCK, _SAVE = (Where.CUDA_LOCK,), (Where.CUDA_LOCK, Where.CUDA_CHECKPOINT)
_LOAD = (Where.CUDA_RESTORE,)
_CUDA = (*_SAVE, Where.CUDA_RESTORE, Where.CUDA_UNLOCK)

CATALOGUE: tuple[Known, ...] = (
    Known(
        "io-uring",
        _DUMP,
        r"anon_inode:\[io_uring\]|send_fds failed \(-22\)",
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
        r"(handle_device_vma plugin failed|Can't handle non-regular mapping on \d+'s map)",
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
        r"(Mount \d+ \S*proc/driver/nvidia\S* .*(unreachable sharing|proper root mount)"
        r"|Sharing group \(\d+, \d+\) has unreachable sharing)",
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
        (*_BOTH, *_CUDA, Where.NVML, Where.KERNEL),
        r"(?i)(driver/library|NVML/RM) version mismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        r"|API mismatch: the client has the version",
        "the installed driver is not the one that the kernel runs",
        Action.FIX,
        "reboot, or load the new module; until then nothing is saved or restored there",
        ("nvidia-smi(1)",),
        unfit=True,
    ),
    Known(
        "fell-off-the-bus",
        _KERNEL,
        r"(?i)(fallen off the bus|Xid \(PCI:[0-9a-f:.]+\): 79\b)",
        "a GPU is lost",
        Action.OTHER,
        "reboot the node, and see that the GPU is back; else it needs hands",
        ("NVIDIA: Xid Errors, 79",),
        unfit=True,
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
    Known(
        "connection-not-accepted",
        _DUMP,
        r"inet: In-flight connection \(",
        "a client is connected that the workload has not accepted yet",
        Action.RETRY,
        "again, once it is accepted; drain the workload first",
        ("criu: sk-inet.c, --skip-in-flight",),
    ),
    Known(
        "netlink-not-read",
        _DUMP,
        r"netlink: The socket has data to read",
        "messages of the kernel are waiting in a netlink socket",
        Action.RETRY,
        "again, once the program has read them",
        ("criu: sk-netlink.c",),
    ),
    Known(
        "memory-of-its-parent",
        _DUMP,
        r"Can't make VM id for \d+",
        "a process is in its parent's memory, as between vfork and exec",
        Action.RETRY,
        "again; if it stays so, start it cold",
        ("criu: kcmp-ids.c",),
    ),
    Known(
        "socket-leads-outside",
        _DUMP,
        r"unix: (External socket is used|Can't dump (half of stream|name-less external))",
        "the other end of a UNIX socket is held by a process outside",
        Action.OTHER,
        "let the connection end first, or configure the program without it",
        ("criu: sk-unix.c, --ext-unix-sk",),
    ),
    Known(
        "socket-led-outside",
        _RESTORE,
        r"unix: FATAL: Peer \d+ unresolved",
        "the image holds a UNIX socket whose other end was outside of the workload",
        Action.COLD_START,
        "let the connection end before the next checkpoint",
        ("criu: sk-unix.c",),
    ),
    Known(
        "file-of-an-unknown-kind",
        _DUMP,
        r"Can't dump file \d+ of that type \[\d+\] \((?!chr (195|506):)",
        "an open file is of a kind that CRIU cannot save",
        Action.OTHER,
        "see the list of blockers; start the program without it, or cold",
        ("criu: files.c, dump_one_file",),
    ),
    Known(
        "socket-of-an-unknown-kind",
        _DUMP,
        r"Unknown socket collected \(family \d+\)|Unsupported proto (?!262\b)\d+ for socket",
        "a socket is of a family or protocol that CRIU cannot save",
        Action.OTHER,
        "start the program without it, or cold",
        ("criu: sockets.c, dump_socket",),
    ),
    Known(
        "traced",
        _DUMP,
        r"Unseizable non-zombie \d+ found",
        "something else traces a process of it",
        Action.OTHER,
        "end the debugger or profiler",
        ("ptrace(2)",),
    ),
    Known(
        "nested-namespace",
        _BOTH,
        r"Can't dump nested \w+ namespace|Can't restore sub-task in NS",
        "a process of it is in namespaces of its own",
        Action.OTHER,
        "start it without a sandbox or container inside; else cold",
        ("criu: namespaces.c",),
    ),
    Known(
        "deleted-file-too-large",
        _DUMP,
        r"Can't dump ghost file \S+ of \d+ size, increase limit",
        "a large file is in use that was deleted",
        Action.OTHER,
        "keep its name as long as it is in use; else start it cold",
        ("criu#2683",),
    ),
    Known(
        "file-on-no-mount",
        _DUMP,
        r"Can't lookup mount=-?\d+ for fd=",
        "an open file lies on a mount that its namespace does not show, or is a message queue",
        Action.OTHER,
        "close it before; else start it cold",
        ("criu: mount.c",),
    ),
    Known(
        "cuda-busy",
        _LOCK,
        r"CUDA_ERROR_NOT_READY\b",
        "the GPU work did not come to a stop within the lock's time",
        Action.RETRY,
        "a longer time for the lock, once the process is seen to be running again",
        ("cuda-checkpoint#26",),
    ),
    Known(
        "cuda-cannot-save",
        _SAVE,
        r"CUDA_ERROR_NOT_SUPPORTED\b",
        "the process uses what CUDA cannot checkpoint: managed memory, memory shared between "
        "processes, MIG, or a driver that is too old",
        Action.OTHER,
        "NCCL_P2P_DISABLE=1 where it is NCCL's; else start it cold",
        ("cuda-checkpoint#56", "cuda-checkpoint#34"),
    ),
    Known(
        "cuda-no-host-memory",
        (Where.CUDA_CHECKPOINT,),
        r"CUDA_ERROR_OUT_OF_MEMORY\b",
        "the host has no room for the memory of the GPUs, or the process is on a MIG slice",
        Action.OTHER,
        "more memory for the machine or the job; else start it cold",
        ("cuda-checkpoint#42",),
    ),
    Known(
        "cuda-no-gpu-memory",
        _LOAD,
        r"CUDA_ERROR_OUT_OF_MEMORY\b",
        "the GPU was not empty; the process cannot be used any more",
        Action.COLD_START,
        "find what is on the GPU, and end it before the next restore",
        ("cuda-checkpoint#44",),
    ),
    Known(
        "cuda-stuck",
        (*_LOAD, Where.CUDA_UNLOCK),
        r"CUDA_ERROR_(OPERATING_SYSTEM|ILLEGAL_STATE)\b|pid \d+ is checkpointed, not running",
        "an earlier restore failed, and the process stays as it is for ever",
        Action.COLD_START,
        "end it",
        ("cuda-checkpoint#44",),
    ),
    Known(
        "cuda-process-lost",
        _SAVE,
        r"CUDA_ERROR_OPERATING_SYSTEM\b",
        "the process died of it, or may not be traced",
        Action.OTHER,
        "see whether it runs; a newer driver if it was killed by the lock",
        ("cuda-checkpoint#58",),
    ),
    Known(
        "cuda-out-of-turn",
        _SAVE,
        r"CUDA_ERROR_ILLEGAL_STATE\b|pid \d+ is (running|locked), not (locked|checkpointed)",
        "the process is not in the state that this call needs: somebody else has locked it",
        Action.FIX,
        "unlock it, and look whether it runs",
        ("CUDA Driver API: cuCheckpointProcessLock",),
    ),
    Known(
        "fabric-not-ready",
        _CUDA,
        r"CUDA_ERROR_SYSTEM_NOT_READY\b",
        "the fabric manager does not run, or is of another version than the driver",
        Action.FIX,
        "install and start the fabric manager of the driver's version",
        ("gpu-operator#544",),
        unfit=True,
    ),
    Known(
        "gpu-lost",
        (Where.NVML,),
        r"(?i)GPU is lost",
        "a GPU does not answer any more",
        Action.OTHER,
        "reboot the node, and see that the GPU is back; else it needs hands",
        ("nvitop#139",),
        unfit=True,
    ),
    Known(
        "gpu-hardware",
        _KERNEL,
        r"Xid \(PCI:[0-9a-fA-F:.]+\): (48|6[124]|74|92|95|119|12[023]|14[03459])\b",
        "the kernel reports an error of a GPU itself: memory, NVLink or its processor",
        Action.OTHER,
        "reset the GPU or reboot; if it comes again, it needs hands",
        ("NVIDIA: Xid Errors",),
        unfit=True,
    ),
    Known(
        "gpu-needs-reset",
        _KERNEL,
        r"Xid \(PCI:[0-9a-fA-F:.]+\): (63|94|154)\b",
        "an error in the memory of a GPU was contained or mapped away",
        Action.FIX,
        "reset the GPU while nothing runs on it",
        ("NVIDIA: Xid Errors, 63, 94 and 154",),
        unfit=True,
    ),
    Known(
        "application-fault",
        _KERNEL,
        r"Xid \(PCI:[0-9a-fA-F:.]+\): (13|31|43|45|68|69)\b",
        "a program did wrong on a GPU, or was ended there; the GPU itself is well",
        Action.RETRY,
        "nothing has to be done to the node",
        ("NVIDIA: Xid Errors, 13, 31, 43 and 45",),
    ),
    Known(
        "foreign-session",
        _DUMP,
        r"(is not a session leader\. Consider using --shell-job|session leader of \d+\(\d+\) is "
        r"outside|Found dangling tty)",
        "its session or terminal belongs to somebody outside of the workload",
        Action.OTHER,
        "start it through the launcher",
        ("criu.org: What cannot be checkpointed", "criu: Documentation/criu.txt, --shell-job"),
    ),
    Known(
        "no-memory",
        _BOTH,
        r"Cannot allocate memory",
        "this machine or the job's cgroup has no memory left",
        Action.FIX,
        "more memory (memory.max of the cgroup), or fewer neighbours",
        ("cuda-checkpoint: README", "cgroups(7)"),
    ),
    Known(
        "cuda-lock-unanswered",
        _LOCK,
        r"CUDA lock of pid \d+: no answer within",
        "the driver did not answer, as when ranks wait for each other in a collective",
        Action.RETRY,
        "drain it first, so that no collective is under way",
        ("cuda-checkpoint#30",),
    ),
    Known(
        "cuda-newcomer",
        _LOCK,
        r"came to CUDA while the others were being locked",
        "a process began to use CUDA while the others were being locked: a part is never saved",
        Action.RETRY,
        "once the workload has started up",
        ("cuda-checkpoint#47",),
    ),
    Known(
        "cuda-not-initialised",
        _SAVE,
        r"CUDA_ERROR_NOT_INITIALIZED",
        "the process is only about to begin with CUDA",
        Action.RETRY,
        "once the workload has started up",
        ("CUDA Driver API: CUresult, 3",),
    ),
    Known(
        "cuda-no-process",
        _SAVE,
        r"CUDA_ERROR_INVALID_VALUE",
        "the driver knows no CUDA process of that number: it ended, or it is counted otherwise in "
        "its container",
        Action.OTHER,
        "see that it runs, and start pitstop-node launch inside of the container",
        ("CUDA Driver API: cuCheckpointProcessLock", "cuda-checkpoint#22"),
    ),
    Known(
        "cuda-checkpoint-unanswered",
        (Where.CUDA_CHECKPOINT,),
        r"CUDA checkpoint of pid \d+: no answer within",
        "the memory of the GPU was not in the host's in time",
        Action.FIX,
        "a longer time for it, in proportion to the memory in use",
        ("cuda-checkpoint#29",),
    ),
    Known(
        "cuda-restore-invalid",
        _LOAD,
        r"CUDA_ERROR_INVALID_VALUE",
        "the process was saved without the others of its group, or the GPUs do not fit those "
        "it had",
        Action.COLD_START,
        "save all CUDA processes at one boundary; every GPU of the node in the map",
        ("cuda-checkpoint#47", "cuda.core: checkpoint.Process.restore"),
    ),
    Known(
        "cuda-restore-unsupported",
        _LOAD,
        r"CUDA_ERROR_NOT_SUPPORTED",
        "the state cannot go to this GPU: it has to be of the same model",
        Action.COLD_START,
        "a node with the same GPU model and driver",
        ("cuda-checkpoint#18",),
    ),
    Known(
        "cuda-restore-unanswered",
        (*_LOAD, Where.CUDA_UNLOCK),
        r"CUDA (restore|unlock) of pid \d+: no answer within",
        "the memory did not come back to the GPU in time",
        Action.COLD_START,
        "a longer time for it at the next checkpoint (its limits come from there)",
        ("cuda-checkpoint#29",),
    ),
    Known(
        "cuda-state-failed",
        _CUDA,
        r"(state failed\)|pid \d+ is failed, not)",
        "the driver has given the process up: its GPU memory is lost",
        Action.COLD_START,
        "start it anew; another driver version before the next try",
        ("cuda.core: checkpoint.Process.state", "cuda-checkpoint: README"),
    ),
    Known(
        "cuda-caller-died",
        _CUDA,
        r"the driver ended the process that called it",
        "the driver crashed in the call",
        Action.OTHER,
        "another driver version",
        ("cuda-checkpoint#58",),
    ),
    Known(
        "cuda-not-permitted",
        _CUDA,
        r"CUDA_ERROR_NOT_PERMITTED",
        "whoever calls may not work on that process",
        Action.FIX,
        "root, or CAP_SYS_PTRACE for pitstop-node",
        ("cuda-checkpoint#6",),
    ),
    Known(
        "no-gpu",
        _CUDA,
        r"CUDA_ERROR_NO_DEVICE",
        "the driver sees no GPU",
        Action.OTHER,
        "see pitstop doctor; the kernel log says whether one is lost",
        ("CUDA Driver API: CUresult, 100",),
    ),
    Known(
        "gpu-memory-broken",
        _CUDA,
        r"CUDA_ERROR_ECC_UNCORRECTABLE",
        "memory of the GPU is broken",
        Action.OTHER,
        "reset the GPU; if it comes again it has to be replaced",
        ("CUDA Driver API: CUresult, 214",),
        unfit=True,
    ),
    Known(
        "cuda-context-broken",
        _CUDA,
        r"CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_FAILED|ASSERT|ILLEGAL_INSTRUCTION)\b",
        "a fault of the program itself has left its CUDA context unusable",
        Action.COLD_START,
        "it has to be started anew, whatever is done to the node",
        ("CUDA Driver API: CUresult, 700 and 719",),
    ),
    Known(
        "cuda-unknown",
        _CUDA,
        r"CUDA_ERROR_UNKNOWN",
        "the driver does not say what is wrong",
        Action.OTHER,
        "the kernel log (NVRM, Xid) may say more",
        ("CUDA Driver API: CUresult, 999",),
    ),
    Known(
        "host-memory-registration",
        (Where.SERVING,),
        r"(cudaHostUnregister\b.*(fail|error)|cudaErrorHostMemoryNotRegistered)",
        "memory that was registered with CUDA is not registered any more after a restore",
        Action.OTHER,
        "application-level checkpoints for this engine; else start it cold",
        ("nvsnap: PDF-BENCH-RESULTS.md",),
    ),
    Known(
        "stale-gpu-identity",
        (Where.SERVING,),
        r"nvmlDeviceGetHandleByPciBusId\w*\(?.*\)? failed",
        "NCCL or NVML remember the place of the GPU on another node",
        Action.OTHER,
        "restore where it was saved, or start it cold elsewhere",
        ("cuda-checkpoint#48", "nccl#2348"),
    ),
    Known(
        "driver-not-loaded",
        (Where.NVML,),
        r"(?i)driver not loaded|couldn't communicate with the NVIDIA driver",
        "the kernel runs no driver",
        Action.FIX,
        "modprobe nvidia; after a new kernel the module has to be built for it",
        ("NVML: nvmlReturn_t, 9",),
        unfit=True,
    ),
    Known(
        "gpu-access-lost",
        (Where.NVML,),
        r"Failed to initialize NVML: (Unknown Error|Insufficient Permissions)",
        "the container may not open the devices any more, as after a systemd daemon-reload",
        Action.FIX,
        "give it the devices again: start it anew; name them in its cgroup's rules",
        ("nvidia-container-toolkit#48",),
    ),
    Known(
        "reset-refused",
        (Where.NVML,),
        r"(?i)in use by another client",
        "something holds the GPU open, so it cannot be reset",
        Action.FIX,
        "stop nvidia-persistenced, DCGM and exporters first",
        ("NVSentinel#1690", "gpu-operator#118"),
    ),
    Known(
        "gpu-probe-failed",
        _KERNEL,
        r"(NVRM: The NVIDIA probe routine failed|NVRM: .*RmInitAdapter failed)",
        "the driver could not take a GPU into service",
        Action.OTHER,
        "reboot the node, and see that the GPU is back; else it needs hands",
        ("NVSentinel#155",),
        unfit=True,
    ),
    Known(
        "driver-crashed-program",
        _KERNEL,
        r"segfault at .* in libcuda\.so",
        "the driver's library has crashed a program; a lock was seen to do so",
        Action.OTHER,
        "another driver version; start the program anew",
        ("cuda-checkpoint#58",),
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
    return judge(lines, where).hint


@dataclass(frozen=True, slots=True)
class Judged:
    """What the catalogue says of a failure.

    Attributes:
        failure: names of its entries, most telling first, joined by commas; empty: unknown.
        hint: what to do about it; empty when it is unknown.
        retryable: whether the same again may help; None when the error's class decides.
    """

    failure: str
    hint: str
    retryable: bool | None

    @property
    def mark(self) -> str:
        """The names in brackets, for a cause; empty when it is unknown."""
        return f" [{self.failure}]" if self.failure else ""


def judge(lines: Iterable[str], where: Where) -> Judged:
    """Classify a failure. Only if every entry says that trying again helps, it does."""
    found = classify(lines, where)
    return Judged(
        failure=",".join(known.name for known in found),
        hint="; ".join(known.hint for known in found[:2]),
        retryable=all(known.action is Action.RETRY for known in found) if found else None,
    )
