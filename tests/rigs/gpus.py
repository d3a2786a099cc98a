"""GPUs for tests: an emulated NVIDIA driver under the real cuda-python and nvidia-ml-py.

`tests/rigs/emulated_driver` holds the libraries' C sources; `machine.h` there describes the
files. One `EmulatedGpus` is what one machine has; its content is read on every call, so a test
changes it while programs run. Whoever is to see it gets `environment()`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "emulated_driver"
VARIABLE = "PITSTOP_EMULATED_GPUS"
DEFAULT = Path("/run/pitstop-emulated-gpus")
"""Where the libraries look without the variable; on a node, a mount shows its GPUs there."""

CALLS = ("init", "get_state", "get_restore_thread_id", "lock", "checkpoint", "restore", "unlock")
KINDS = (
    *("error", "error_after", "hang", "hang_target", "die"),
    *("die_caller", "fail", "oom", "slow"),
)

_LIBRARIES = {
    "libcuda.so.1": (
        "libcuda.map",
        ("api.c", "checkpoint.c", "machine.c", "names.c", "process.c", "restore_thread.c"),
    ),
    "libnvidia-ml.so.1": ("libnvidia-ml.map", ("machine.c", "nvml.c")),
}
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")

# CUDA versions as each driver branch reports them (release notes of the CUDA toolkit).
_CUDA = {550: 12040, 555: 12050, 570: 12080, 575: 12090, 580: 13000, 590: 13010, 595: 13020}
_NEWER = 13040

_MODELS = {
    "NVIDIA H100 80GB HBM3": ("9.0", 80, "96.00.99.00.01", "0x233010DE"),
    "NVIDIA H200": ("9.0", 141, "96.00.BC.00.02", "0x233510DE"),
    "NVIDIA A100-SXM4-80GB": ("8.0", 80, "92.00.45.00.03", "0x20B210DE"),
    "NVIDIA B200": ("10.0", 180, "97.00.82.00.1B", "0x290110DE"),
    "NVIDIA L4": ("8.9", 24, "95.04.29.00.06", "0x27B810DE"),
    "Tesla T4": ("7.5", 16, "90.04.96.00.A0", "0x1EB810DE"),
}


# Fields that CUDA goes by, whatever NVML says.
_BEHIND = {
    "name": "model",
    "memory": "capacity",
    "mig": "sliced",
    "persistence": "keeps",
    "pci": "bus",
}


class BuildError(Exception):
    """The emulated driver could not be compiled."""


def build() -> Path:
    """Compile the libraries and the workload, once for each content of the sources.

    Returns:
        The directory with `libcuda.so.1`, `libnvidia-ml.so.1` and `gpu-workload`.

    Raises:
        BuildError: what the compiler said.
    """
    digest = hashlib.sha256(repr((_FLAGS, _LIBRARIES)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = Path(__file__).parents[2] / "build" / "emulated-driver"
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / digest.hexdigest()[:16]
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest may be here at once
        if not directory.exists():
            with tempfile.TemporaryDirectory(dir=cache) as place:
                made = Path(place) / "made"
                made.mkdir(mode=0o755)
                _compile_all(made)
                made.rename(directory)
    return directory


def _compile_all(directory: Path) -> None:
    for name, (exports, sources) in _LIBRARIES.items():
        options = ["-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script={exports}"]
        _compile([*options, "-o", str(directory / name), *sources])
    _compile(["-o", str(directory / "gpu-workload"), "workload.c"])


def _compile(arguments: Sequence[str]) -> None:
    command = ["gcc", *_FLAGS, *arguments]
    try:
        done = subprocess.run(
            command, cwd=SOURCES, capture_output=True, text=True, timeout=120, check=False
        )
    except FileNotFoundError as error:
        raise BuildError("gcc is not installed; run scripts/install-system gpus") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")


@dataclass(frozen=True, slots=True)
class NvmlError:
    """A field that NVML answers with an error of that number."""

    number: int


@dataclass(frozen=True, slots=True)
class Traced:
    """One checkpoint call as the driver saw it.

    Attributes:
        begin: when it came, in nanoseconds of the monotonic clock.
        end: when it was answered, or when a fault took hold of it.
        pid: as the caller named it.
        call: such as `lock`.
        result: the CUDA error, 0 for success, or the fault that left it unanswered.
    """

    begin: int
    end: int
    pid: int
    call: str
    result: int | str


class EmulatedGpus:
    """The GPUs of one machine, and its driver.

    Attributes:
        root: the directory.
        uuids: `GPU-…`, in CUDA's order. NVML's order is that of `pci`.
    """

    def __init__(
        self,
        root: Path,
        gpus: int = 8,
        model: str | Sequence[str] = "NVIDIA H100 80GB HBM3",
        driver: str = "580.105.08",
        *,
        topology: str = "NV18/SYS",
        persistence: bool = True,
        memory: int | None = None,
        uuids: Sequence[str] | None = None,
    ) -> None:
        """Write a machine, or open the one that is there.

        Args:
            root: its directory, made if it is not there.
            gpus: 0 to 16.
            model: of all, or of each GPU.
            driver: the version that is installed and loaded.
            topology: the word between any two GPUs: `PIX`, `PXB`, `PHB`, `NODE`, `SYS`, or
                `NVn/WORD` with n NVLinks. `set_topology` sets single ones.
            persistence: of all GPUs.
            memory: bytes of each GPU; by default what the model has.
            uuids: of the GPUs, to be the same as elsewhere.
        """
        self.root = root
        if (root / "machine").exists():
            self.uuids = tuple(self._machine()["gpu"])
            return
        models = [model] * gpus if isinstance(model, str) else list(model)
        self.uuids = tuple(uuids or (f"GPU-{uuid.uuid4()}" for _ in models))
        for name in ("gpus", "faults", "dev"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for index, (name, gpu) in enumerate(zip(models, self.uuids, strict=True)):
            (root / "gpus" / gpu / "memory").mkdir(parents=True)
            self._write_fields(gpu, _fields(index, name, persistence, memory))
        self._write_machine({"loaded": driver, "installed": driver})
        self.set_topology({}, otherwise=topology)
        _make_devices(root / "dev", len(models))

    def environment(self, at: Path | None = None) -> dict[str, str]:
        """What a program needs to see these GPUs.

        Args:
            at: where the program finds this directory, if not at `root`: on a node that a
                mount shows it to.
        """
        return {"LD_LIBRARY_PATH": str(build()), VARIABLE: str(at or self.root)}

    @staticmethod
    def command(*words: str) -> list[str]:
        """A command that changes the machine it is run on, for a step of a runbook.

        Args:
            words: such as `upgrade 590.44.01`; see `tests/rigs/gpus_command.py`.
        """
        return [sys.executable, str(Path(__file__).with_name("gpus_command.py")), *words]

    def devices(self) -> dict[str, Path]:
        """The device nodes, by the path each has on a machine with an NVIDIA driver."""
        return {f"/dev/{node.name}": node for node in sorted((self.root / "dev").iterdir())}

    def mounts(self) -> dict[str, str]:
        """What a node of a lab has to show at which path, to have these GPUs and no other."""
        return {
            str(DEFAULT): str(self.root),
            **{at: str(one) for at, one in self.devices().items()},
        }

    def fault(
        self, call: str, kind: str, value: int = 0, pid: int | None = None, nth: int | None = None
    ) -> None:
        """Order a fault; it holds until `clear_faults`.

        Args:
            call: one of `CALLS`, or the name of an NVML function (`nvmlInit` for all of its
                forms, else with its suffix: `nvmlDeviceGetMemoryInfo`,
                `nvmlDeviceGetHandleByIndex_v2`).
            kind: one of `KINDS`. `error` returns `value` and does nothing, `error_after` does
                it first; `hang` never returns, `hang_target` is a process that never answers;
                `die` and `die_caller` are segmentation faults; `fail` leaves the state
                `failed`; `oom` is short GPU memory; `slow` takes `value` milliseconds more.
            value: see there.
            pid: only for this process, numbered as the caller does.
            nth: only the n-th matching call from now on, from 1.
        """
        if kind not in KINDS or not (call in CALLS or call.startswith("nvml")):
            raise ValueError(f"no such fault: {call} {kind}")
        number = len([one for one in (self.root / "faults").iterdir() if not one.suffix])
        text = f"{call} {kind} {value} {pid or 0} {nth or 0}\n"
        _replace(self.root / "faults" / f"{number:04d}", text)

    def clear_faults(self) -> None:
        """Forget all faults. What hangs already goes on hanging."""
        for path in (self.root / "faults").iterdir():
            path.unlink(missing_ok=True)

    def install(self, version: str) -> None:
        """Put other libraries in place, as a package upgrade does; the module stays."""
        self._write_machine({"installed": version})

    def load(self, version: str | None = None) -> None:
        """Load a kernel module: by default the installed one, as a boot does. `none` unloads."""
        self._write_machine({"loaded": version or self._machine()["installed"][0]})

    def upgrade(self, version: str) -> None:
        """Install and load."""
        self._write_machine({"installed": version, "loaded": version})

    def set_field(self, gpu: int | str, field: str, value: object) -> None:
        """Change what NVML says of a GPU.

        Args:
            gpu: its index in `uuids`, or its UUID.
            field: `name`, `serial`, `pci`, `vbios`, `capability`, `memory`, `ecc`, `mig`,
                `persistence`, `compute_mode`, `temperature`, `power`, `ecc_errors`, or
                `handle` for the GPU as a whole.
            value: the new value, or an `NvmlError`.
        """
        name = self.uuids[gpu] if isinstance(gpu, int) else gpu
        fields = self._fields(name)
        fields[field] = _text(value)
        behind = _BEHIND.get(field)
        if behind and not isinstance(value, NvmlError):
            fields[behind] = fields[field]
        self._write_fields(name, fields)

    def set_topology(
        self, words: Mapping[tuple[int, int], str], otherwise: str = "NV18/SYS"
    ) -> None:
        """Say how GPUs are connected, by pairs of their indices in `uuids`."""
        count = range(len(self.uuids))
        both = {**words, **{(b, a): word for (a, b), word in words.items()}}
        rows = [["X" if a == b else both.get((a, b), otherwise) for b in count] for a in count]
        _replace(self.root / "topology", "".join(f"{' '.join(row)}\n" for row in rows))

    def trace(self) -> list[Traced]:
        """All checkpoint calls, in the order of their ends."""
        try:
            lines = (self.root / "trace").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [_traced(line) for line in lines]

    def used(self, gpu: int) -> int:
        """Bytes of memory on a GPU that living processes hold."""
        directory = self.root / "gpus" / self.uuids[gpu]
        with (directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as the driver does to look or to change
            return sum(_held_bytes(one) for one in (directory / "memory").iterdir())

    def reset(self) -> None:
        """Lose all GPU memory, as in a power cut, and load the installed module."""
        for one in self.root.glob("gpus/*/memory/*"):
            one.unlink(missing_ok=True)
        self.load()

    def _machine(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in (self.root / "machine").read_text().splitlines():
            key, _, value = line.partition(" ")
            found.setdefault(key, []).append(value)
        return found

    def _write_machine(self, changes: Mapping[str, str]) -> None:
        """The CUDA version is that of the library."""
        before = self._machine() if (self.root / "machine").exists() else {}
        values: dict[str, str] = {
            key: before[key][0] for key in ("loaded", "installed") if key in before
        }
        values.update(changes)
        values["cuda"] = str(_CUDA.get(int(values["installed"].split(".")[0]), _NEWER))
        values["context"] = str(16 << 20)
        lines = [f"{key} {value}\n" for key, value in values.items()]
        _replace(self.root / "machine", "".join([*lines, *(f"gpu {gpu}\n" for gpu in self.uuids)]))

    def _fields(self, gpu: str) -> dict[str, str]:
        lines = (self.root / "gpus" / gpu / "fields").read_text().splitlines()
        return dict(line.split(" ", 1) for line in lines)

    def _write_fields(self, gpu: str, fields: Mapping[str, str]) -> None:
        lines = (f"{key} {value}\n" for key, value in fields.items())
        _replace(self.root / "gpus" / gpu / "fields", "".join(lines))


def pairs(old: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    """A map of GPUs as `cuda.core.checkpoint` takes it: UUIDs without their `GPU-`."""
    return {a.removeprefix("GPU-"): b.removeprefix("GPU-") for a, b in zip(old, new, strict=True)}


def _fields(index: int, model: str, persistence: bool, memory: int | None) -> dict[str, str]:
    capability, gigabytes, vbios, device = _MODELS[model]
    pci = f"00000000:{0x1B + 0x0E * index:02X}:00.0"
    size = str(memory if memory is not None else gigabytes << 30)
    return {
        "name": model,
        "model": model,
        "serial": f"16504230{index:05d}",
        "pci": pci,
        "bus": pci,
        "pci_device": device,
        "vbios": vbios,
        "capability": capability,
        "memory": size,
        "capacity": size,
        "ecc": "1",
        "mig": "0",
        "sliced": "0",
        "persistence": str(int(persistence)),
        "keeps": str(int(persistence)),
        "compute_mode": "0",
        "temperature": "34",
        "power": "700000",
        "ecc_errors": "0",
    }


def _text(value: object) -> str:
    if isinstance(value, NvmlError):
        return f"!{value.number}"
    return str(int(value)) if isinstance(value, bool) else str(value)


def _held_bytes(allocation: Path) -> int:
    """A living owner has a lock on it, which the kernel ends with the process."""
    with allocation.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.fstat(file.fileno()).st_size
    return 0


def _traced(line: str) -> Traced:
    begin, end, pid, call, result = line.split()
    number = int(result) if re.fullmatch(r"\d+", result) else None
    return Traced(int(begin), int(end), int(pid), call, result if number is None else number)


def _make_devices(directory: Path, gpus: int) -> None:
    """Device nodes that open, and that CRIU cannot dump, as it cannot NVIDIA's.

    They are further names of some harmless device of this machine.
    """
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(gpus))):
        os.mknod(directory / name, stat.S_IFCHR | 0o666, _harmless_device())


def _harmless_device() -> int:
    """The first of them is there where emulated GPUs are shown already."""
    for name in (
        "nvidiactl",
        "fuse",
        "loop-control",
        "autofs",
        "btrfs-control",
        "kvm",
        "userfaultfd",
    ):
        try:
            descriptor = os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            return os.fstat(descriptor).st_rdev
        finally:
            os.close(descriptor)
    raise BuildError("no device can stand for a GPU here: none of fuse, loop-control, … opens")


def _replace(path: Path, text: str) -> None:
    """Readers see the old or the new file."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)
