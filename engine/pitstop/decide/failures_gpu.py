"""What NVML and the kernel's log say of the GPUs.

An Xid is either the machine's fault or the program's. Only the first makes a node unfit for
service (NVIDIA: Xid Errors; NVSentinel#155).
"""

from __future__ import annotations

from pitstop.decide.known import CUDA as _CUDA
from pitstop.decide.known import Action, Known, Where

_KERNEL, _NVML = (Where.KERNEL,), (Where.NVML,)
_SAID = (Where.NVML, Where.KERNEL)


def _xid(*numbers: int) -> str:
    return rf"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): ({'|'.join(map(str, numbers))})\b"


GPU: tuple[Known, ...] = (
    Known(
        "driver-mismatch",
        (Where.DUMP, Where.RESTORE, *_CUDA, *_SAID),
        r"((?i:driver/library version mismatch)|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        r"|API mismatch: the client has the version)",
        "the installed driver is not the one that the kernel runs",
        Action.FIX,
        "reboot, or load the new module; until then nothing is saved or restored there",
        ("nvidia-smi(1)", "CUDA Driver API: CUresult, 803"),
        unfit=True,
    ),
    Known(
        "driver-not-loaded",
        _NVML,
        r"(?i)driver not loaded|couldn't communicate with the NVIDIA driver",
        "the kernel runs no driver",
        Action.FIX,
        "modprobe nvidia; after a new kernel the module has to be built for it",
        ("NVML: nvmlReturn_t, 9",),
        unfit=True,
    ),
    Known(
        "gpu-access-lost",
        _NVML,
        r"Failed to initialize NVML: (Unknown Error|Insufficient Permissions)",
        "the container may not open the devices any more, as after a systemd daemon-reload",
        Action.FIX,
        "give it the devices again: start it anew; name them in its cgroup's rules",
        ("nvidia-container-toolkit#48",),
    ),
    Known(
        "reset-refused",
        _NVML,
        r"(?i)in use by another client",
        "something holds the GPU open, so it cannot be reset",
        Action.FIX,
        "stop nvidia-persistenced, DCGM and exporters first",
        ("NVSentinel#1690", "gpu-operator#118"),
    ),
    Known(
        "fell-off-the-bus",
        _SAID,
        rf"((?i:fallen off the bus)|{_xid(79)}|(?i:GPU is lost))",
        "a GPU is lost",
        Action.OTHER,
        "reboot the node, and see that the GPU is back; else it needs hands",
        ("NVIDIA: Xid Errors, 79", "gpud#1209"),
        unfit=True,
    ),
    Known(
        "gpu-memory-error",
        _KERNEL,
        _xid(48, 64, 92, 94, 95, 140),
        "memory of a GPU is broken",
        Action.OTHER,
        "reset the GPU; if it comes again it has to be replaced",
        ("NVIDIA: Xid Errors, 48, 64, 92, 94, 95, 140",),
        unfit=True,
    ),
    Known(
        "gpu-memory-remapped",
        _KERNEL,
        _xid(63),
        "a GPU has replaced a broken part of its memory, which counts from its next reset on",
        Action.FIX,
        "reset the GPU while the node is empty",
        ("NVIDIA: Xid Errors, 63",),
        unfit=True,
    ),
    Known(
        "nvlink-error",
        _KERNEL,
        _xid(74, 144, 145, 149),
        "a link between GPUs fails",
        Action.OTHER,
        "reset the GPUs and the switch; if it comes again: hands",
        ("NVIDIA: Xid Errors, 74, 144, 145, 149",),
        unfit=True,
    ),
    Known(
        "gpu-firmware-error",
        _KERNEL,
        _xid(61, 62, 119, 120, 122, 123, 143),
        "a processor within the GPU does not answer or has stopped",
        Action.OTHER,
        "reset the GPU or reboot; another driver version if it comes again",
        ("NVIDIA: Xid Errors, 61, 62, 119, 120, 122, 123, 143",),
        unfit=True,
    ),
    Known(
        "gpu-recovery-needed",
        _KERNEL,
        _xid(154),
        "the driver says that a GPU needs a reset or the node a reboot",
        Action.FIX,
        "do what its line names",
        ("NVIDIA: Xid Errors, 154",),
        unfit=True,
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
        "program-gpu-fault",
        _KERNEL,
        _xid(13, 31, 43, 45, 68, 69),
        "a program has made a mistake on the GPU, or was ended; the GPU is sound",
        Action.OTHER,
        "that program has to be started anew; the node stays in service",
        ("NVIDIA: Xid Errors, 13, 31, 43, 45",),
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
