"""The emulated driver keeps to what is documented of the real one, under the real bindings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pitstop.lab.errors import LabError
from pitstop.lab.node import LabNode
from pitstop.lab.syscalls import CLONE_NEWNET, setns
from pitstop.node import criu
from tests.rigs.gpu_calls import CallFailed, GpuCalls
from tests.rigs.gpu_workload import GpuWorkload, request, wait_until_it_serves
from tests.rigs.gpus import DEFAULT, EmulatedGpus, NvmlError, build, pairs
from tests.rigs.lab import MakeLab

ILLEGAL_STATE = "CUDA_ERROR_ILLEGAL_STATE"
NOT_SUPPORTED = "not supported by the installed NVIDIA driver"


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCalls]:
    """One caller for the module: each call names its machine."""
    somewhere = EmulatedGpus(tmp_path_factory.mktemp("gpus"), gpus=1)
    with GpuCalls(somewhere.environment()) as caller:
        yield caller


@pytest.fixture
def gpus(tmp_path: Path) -> EmulatedGpus:
    """A machine with four GPUs."""
    return EmulatedGpus(tmp_path / "gpus", gpus=4)


def save(calls: GpuCalls, gpus: EmulatedGpus, *pids: int) -> None:
    for step in ("lock", "checkpoint"):
        for pid in pids:
            calls.cuda(gpus, pid, step)


def test_a_checkpoint_empties_the_gpus_and_comes_back_byte_for_byte(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    with GpuWorkload(gpus, "--processes", "2", "--gpus", "2") as workload:
        workload.step()
        before = [workload.memory(rank, gpu) for rank in (0, 1) for gpu in (0, 1)]
        pids = workload.pids
        assert [calls.cuda(gpus, pid, "state") for pid in pids] == ["running"] * 2
        save(calls, gpus, *pids)
        assert [calls.cuda(gpus, pid, "state") for pid in pids] == ["checkpointed"] * 2
        assert [gpus.used(gpu) for gpu in range(4)] == [0] * 4
        for pid in pids:
            files = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()]
            assert not [name for name in files if "nvidia" in name or str(gpus.root) in name]
        for step in ("restore", "unlock"):
            for pid in pids:
                calls.cuda(gpus, pid, step)
        assert [workload.memory(rank, gpu) for rank in (0, 1) for gpu in (0, 1)] == before
        assert [gpu["counter"] for rank in workload.step() for gpu in rank["gpus"]] == [2] * 4
    traced = [one for one in gpus.trace() if one.call in ("lock", "checkpoint")]
    assert [one.call for one in traced] == ["lock", "lock", "checkpoint", "checkpoint"]
    assert traced[1].end < traced[2].begin


def test_a_call_out_of_order_is_refused_and_changes_nothing(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    wrong = {
        "running": ("checkpoint", "restore", "unlock"),
        "locked": ("lock", "restore"),
        "checkpointed": ("lock", "checkpoint", "unlock"),
    }
    with GpuWorkload(gpus) as workload:
        (pid,) = workload.pids
        for state, step in zip(wrong, ("lock", "checkpoint", "restore"), strict=True):
            for name in wrong[state]:
                with pytest.raises(CallFailed, match=ILLEGAL_STATE):
                    calls.cuda(gpus, pid, name)
                assert calls.cuda(gpus, pid, "state") == state
            calls.cuda(gpus, pid, step)
        calls.cuda(gpus, pid, "unlock")
        assert workload.state()[0]["gpus"][0]["intact"]


def test_the_program_waits_while_it_is_locked_and_its_cpu_side_goes_on(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    with GpuWorkload(gpus) as workload, ThreadPoolExecutor() as threads:
        (pid,) = workload.pids
        save(calls, gpus, pid)
        step = threads.submit(workload.step)
        assert request(workload.port, "/health") == b"ok\n"
        assert not step.done()
        calls.cuda(gpus, pid, "restore")
        calls.cuda(gpus, pid, "unlock")
        assert step.result()[0]["gpus"][0]["counter"] == 1


def test_work_that_was_submitted_ends_before_a_lock_or_the_deadline_comes(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    with GpuWorkload(gpus, "--kernel-ms", "300") as workload:
        (pid,) = workload.pids
        workload.step()
        with pytest.raises(CallFailed, match="CUDA_ERROR_NOT_READY"):
            calls.cuda(gpus, pid, "lock", 20)
        assert calls.cuda(gpus, pid, "state") == "running"
        assert workload.state()[0]["gpus"][0]["counter"] == 1
        calls.cuda(gpus, pid, "lock", 0)
        assert calls.cuda(gpus, pid, "state") == "locked"


def test_only_a_process_that_called_cuinit_has_a_restore_thread(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    with GpuWorkload(gpus, "--fork-after-init") as workload:
        (pid,) = workload.pids
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        forked = int(children[0])
        thread = calls.cuda(gpus, pid, "restore_thread_id")
        assert Path(f"/proc/{pid}/task/{thread}/comm").read_text().startswith("cuda")
        assert calls.cuda(gpus, forked, "state") == "running"
        for no_cuda in (forked, workload.process.pid, os.getpid()):
            with pytest.raises(CallFailed, match="CUDA_ERROR_NOT_INITIALIZED"):
                calls.cuda(gpus, no_cuda, "restore_thread_id")
        with pytest.raises(CallFailed, match="CUDA_ERROR_NOT_INITIALIZED"):
            calls.cuda(gpus, workload.process.pid, "state")
    with pytest.raises(CallFailed, match="CUDA_ERROR_INVALID_VALUE"):
        calls.cuda(gpus, pid, "state")


@pytest.mark.parametrize(
    ("option", "driver", "refusal"),
    [
        ("--uvm", "610.10", NOT_SUPPORTED),
        ("--ipc", "595.10", NOT_SUPPORTED),
        ("--ipc", "610.10", ""),
        ("mig", "580.10", "CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_what_the_driver_cannot_save_it_refuses(
    calls: GpuCalls, gpus: EmulatedGpus, option: str, driver: str, refusal: str
) -> None:
    gpus.upgrade(driver)
    gpus.set_field(0, "mig", option == "mig")
    with GpuWorkload(gpus, *([option] if option != "mig" else [])) as workload:
        (pid,) = workload.pids
        calls.cuda(gpus, pid, "lock")
        if refusal:
            with pytest.raises(CallFailed, match=refusal):
                calls.cuda(gpus, pid, "checkpoint")
            calls.cuda(gpus, pid, "unlock")
            assert workload.step()[0]["gpus"][0]["intact"]
        else:
            calls.cuda(gpus, pid, "checkpoint")


def test_a_restore_elsewhere_needs_a_map_of_every_gpu(calls: GpuCalls, tmp_path: Path) -> None:
    old = EmulatedGpus(tmp_path / "old", gpus=2)
    new = EmulatedGpus(tmp_path / "new", gpus=2)
    other = EmulatedGpus(tmp_path / "other", gpus=2, model="NVIDIA L4")
    here = tmp_path / "here"
    here.symlink_to(old.root)
    with GpuWorkload(old, at=here, CUDA_VISIBLE_DEVICES="1") as workload:
        workload.step()
        before = workload.memory()
        assert workload.state()[0]["gpus"][0]["uuid"] == old.uuids[1]
        (pid,) = workload.pids
        save(calls, old, pid)
        here.unlink()
        here.symlink_to(other.root)
        refuse(calls, other, pid, pairs(old.uuids, other.uuids))  # another model
        here.unlink()
        here.symlink_to(new.root)
        refuse(calls, new, pid, None)  # the old ones are not here
        refuse(calls, new, pid, pairs(old.uuids[1:], new.uuids[1:]))  # not all, if all it sees
        refuse(calls, new, pid, pairs(old.uuids, [new.uuids[0]] * 2))  # one twice
        refuse(calls, new, pid, pairs(old.uuids, other.uuids))  # not here
        new.upgrade("575.57")
        with pytest.raises(CallFailed, match=NOT_SUPPORTED):
            calls.cuda(new, pid, "restore", pairs(old.uuids, new.uuids))
        new.upgrade("580.105.08")
        new.set_field(1, "persistence", value=False)
        with pytest.raises(CallFailed, match="CUDA_ERROR_NOT_INITIALIZED"):
            calls.cuda(new, pid, "restore", pairs(old.uuids, new.uuids))
        new.set_field(1, "persistence", value=True)
        calls.cuda(new, pid, "restore", pairs(old.uuids, reversed(new.uuids)))
        calls.cuda(new, pid, "unlock")
        assert workload.state()[0]["gpus"][0]["uuid"] == new.uuids[0]
        assert workload.memory() == before


def refuse(calls: GpuCalls, gpus: EmulatedGpus, pid: int, mapping: object) -> None:
    with pytest.raises(CallFailed, match="CUDA_ERROR_INVALID_VALUE"):
        calls.cuda(gpus, pid, "restore", mapping)
    assert calls.cuda(gpus, pid, "state") == "checkpointed"


def test_a_restore_without_room_leaves_the_process_stuck(calls: GpuCalls, tmp_path: Path) -> None:
    gpus = EmulatedGpus(tmp_path / "gpus", gpus=1, memory=40 << 20)
    with GpuWorkload(gpus, "--bytes", str(16 << 20)) as workload:
        (pid,) = workload.pids
        save(calls, gpus, pid)
        with GpuWorkload(gpus, "--bytes", str(8 << 20)), pytest.raises(CallFailed, match="OUT_OF"):
            calls.cuda(gpus, pid, "restore")
        with pytest.raises(CallFailed, match="CUDA_ERROR_OPERATING_SYSTEM"):
            calls.cuda(gpus, pid, "restore")
        with pytest.raises(CallFailed, match=ILLEGAL_STATE):
            calls.cuda(gpus, pid, "unlock")
        assert calls.cuda(gpus, pid, "state") == "checkpointed"


def test_faults_are_made_when_and_where_they_are_ordered(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    with GpuWorkload(gpus, "--processes", "2") as workload:
        one, two = workload.pids
        gpus.fault("lock", "error", 999, pid=two)
        calls.cuda(gpus, one, "lock")
        with pytest.raises(CallFailed, match="CUDA_ERROR_UNKNOWN"):
            calls.cuda(gpus, two, "lock")
        assert calls.cuda(gpus, two, "state") == "running"
        gpus.clear_faults()
        gpus.fault("unlock", "error_after", 304, nth=2)
        calls.cuda(gpus, one, "unlock")
        calls.cuda(gpus, one, "lock")
        with pytest.raises(CallFailed, match="CUDA_ERROR_OPERATING_SYSTEM"):
            calls.cuda(gpus, one, "unlock")
        assert calls.cuda(gpus, one, "state") == "running"
        gpus.fault("checkpoint", "fail", pid=one)
        calls.cuda(gpus, one, "lock")
        with pytest.raises(CallFailed, match="CUDA_ERROR_UNKNOWN"):
            calls.cuda(gpus, one, "checkpoint")
        assert calls.cuda(gpus, one, "state") == "failed"
        gpus.fault("checkpoint", "oom", pid=two)
        calls.cuda(gpus, two, "lock")
        with pytest.raises(CallFailed, match="CUDA_ERROR_OUT_OF_MEMORY"):
            calls.cuda(gpus, two, "checkpoint")
        gpus.fault("get_state", "slow", 30)
        assert calls.cuda(gpus, two, "state") == "locked"
    slow = gpus.trace()[-1]
    assert slow.end - slow.begin >= 30_000_000


def test_a_lock_can_kill_the_process(calls: GpuCalls, gpus: EmulatedGpus) -> None:
    gpus.fault("lock", "die")
    with GpuWorkload(gpus) as workload:
        with pytest.raises(CallFailed, match="CUDA_ERROR_OPERATING_SYSTEM"):
            calls.cuda(gpus, workload.pids[0], "lock")
        assert workload.process.wait(20) == 1, "a job whose rank has died is over"
    assert gpus.used(0) == 0


def test_a_call_can_hang_beside_the_callers_other_threads_or_kill_it(gpus: EmulatedGpus) -> None:
    """The bindings let go of Python's lock during these calls."""
    with GpuWorkload(gpus, "--processes", "2") as workload, GpuCalls(gpus.environment()) as caller:
        one, two = workload.pids
        gpus.fault("lock", "hang", pid=one)
        gpus.fault("lock", "hang_target", pid=two)
        for pid, kind in ((one, "hang"), (two, "hang_target")):
            assert caller.beside(gpus, pid, "lock", kind) == 1000
            assert caller.cuda(gpus, pid, "state") == "running"
        gpus.fault("get_state", "die_caller")
        with pytest.raises(EOFError, match=str(-signal.SIGSEGV)):
            caller.cuda(gpus, one, "state")
    assert [one.result for one in gpus.trace() if one.call == "lock"] == ["hang", "hang_target"]


def test_an_upgrade_without_a_reload_stops_new_processes_only(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    with GpuWorkload(gpus) as workload:
        gpus.install("590.44.01")
        assert workload.step()[0]["gpus"][0]["intact"]
        with pytest.raises(CallFailed, match="NVMLError_LibRmVersionMismatch"):
            calls.nvml(gpus, "nvmlSystemGetDriverVersion")
        new = subprocess.run(
            [build() / "gpu-workload"],
            env={**os.environ, **gpus.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "cuInit: CUDA error 803" in new.stderr
        gpus.load()
        assert calls.nvml(gpus, "nvmlSystemGetDriverVersion") == "590.44.01"
        assert calls.nvml(gpus, "nvmlSystemGetCudaDriverVersion_v2") == 13010


def test_nvml_shows_processes_errors_of_one_field_and_lost_gpus(
    calls: GpuCalls, gpus: EmulatedGpus
) -> None:
    gpus.set_field(0, "serial", NvmlError(3))
    gpus.set_field(0, "pci", "00000000:F0:00.0")  # so CUDA's first is NVML's last
    gpus.set_field(3, "handle", NvmlError(15))
    gpus.set_topology({(0, 1): "NV4/PIX"}, otherwise="SYS")
    assert calls.nvml(gpus, "nvmlDeviceGetUUID", "gpu:3") == gpus.uuids[0]
    assert calls.nvml(gpus, "nvmlDeviceGetPciInfo", "gpu:3")["busId"] == "00000000:F0:00.0"
    assert calls.nvml(gpus, "nvmlDeviceGetName", "gpu:0") == "NVIDIA H100 80GB HBM3"
    with pytest.raises(CallFailed, match="NVMLError_NotSupported"):
        calls.nvml(gpus, "nvmlDeviceGetSerial", "gpu:3")
    with pytest.raises(CallFailed, match="NVMLError_GpuIsLost"):
        calls.nvml(gpus, "nvmlDeviceGetName", "gpu:2")
    ancestor = calls.nvml(gpus, "nvmlDeviceGetTopologyCommonAncestor", "gpu:3", "gpu:0")
    links = [calls.nvml(gpus, "nvmlDeviceGetNvLinkState", "gpu:3", link) for link in (3, 4)]
    assert (ancestor, links) == (10, [1, 0])
    gpus.fault("nvmlDeviceGetMemoryInfo", "error", 13)
    with pytest.raises(CallFailed, match="NVMLError_FunctionNotFound"):
        calls.nvml(gpus, "nvmlDeviceGetMemoryInfo", "gpu:0")
    gpus.clear_faults()
    with GpuWorkload(gpus, "--bytes", "1000000") as workload:
        (running,) = calls.nvml(gpus, "nvmlDeviceGetComputeRunningProcesses", "gpu:3")
        assert running["pid"] == workload.pids[0]
        used = calls.nvml(gpus, "nvmlDeviceGetMemoryInfo", "gpu:3")["used"]
        assert running["usedGpuMemory"] == used == 1000000 + (16 << 20)
    assert calls.nvml(gpus, "nvmlDeviceGetComputeRunningProcesses", "gpu:3") == []
    assert calls.nvml(gpus, "nvmlDeviceGetMemoryInfo", "gpu:3")["used"] == 0


START = """
import os, sys
open("/proc/sys/kernel/ns_last_pid", "w").write("20000")  # numbers that are free elsewhere, too
if os.fork(): os._exit(0)
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for number in (0, 1, 2): os.dup2(null, number)
os.execv(sys.argv[1], sys.argv[1:])
"""
PORT = 7001


def ask(node: LabNode, path: str = "/") -> bytes:
    """A request in the node's network, by a thread that joins it."""

    def wait_and_ask() -> bytes:
        setns(node.netns, CLONE_NEWNET)
        wait_until_it_serves(PORT)
        return request(PORT, path)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(wait_and_ask).result()


def seen_from_outside(node: LabNode, inside: int) -> int:
    """The number that the machine gives to a process of a node."""
    namespace = os.readlink(f"/proc/{node.pid}/ns/pid")
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            numbers = re.search(r"^NSpid:\s*(.*)$", status.read_text(), re.MULTILINE)
            inner = numbers.group(1).split()[-1] if numbers else ""
            if inner == str(inside) and os.readlink(status.with_name("ns") / "pid") == namespace:
                return int(status.parent.name)
    raise AssertionError(f"no process {inside} on {node.name}")


def test_criu_carries_a_checkpointed_tree_to_other_gpus_and_no_other_tree(
    make_lab: MakeLab, calls: GpuCalls, tmp_path: Path
) -> None:
    machines = {name: EmulatedGpus(tmp_path / name, gpus=2) for name in ("gpu1", "gpu2")}
    lab = make_lab(
        *machines,
        environments={name: gpus.environment(DEFAULT) for name, gpus in machines.items()},
        mounts={name: gpus.mounts() for name, gpus in machines.items()},
    )
    source, target = lab.nodes
    old, new = machines.values()
    workload = [str(build() / "gpu-workload"), "--port", str(PORT), "--processes", "2"]
    source.run([sys.executable, "-c", START, *workload])

    ranks = json.loads(ask(source))["ranks"]
    memory = [ask(source, f"/memory/{rank}/0") for rank in (0, 1)]
    outside = [seen_from_outside(source, rank["pid"]) for rank in ranks]
    links = [os.readlink(one) for one in Path(f"/proc/{outside[0]}/fd").iterdir()]
    assert {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"} <= set(links)
    parent = int(Path(f"/proc/{outside[0]}/stat").read_text().rpartition(")")[2].split()[1])
    root = Path(f"/proc/{parent}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()
    images = tmp_path / "images"
    images.mkdir(mode=0o700)
    common = ["--images-dir", str(images), "--manage-cgroups=ignore", "--log-file", "log", "-v4"]
    dump = [criu.program(), "dump", "--tree", root[-1], *common]

    with pytest.raises(LabError):  # its devices are open
        source.run(dump)
    assert "Can't dump file" in (images / "log").read_text(errors="replace")
    assert json.loads(ask(source))["ranks"] == ranks
    save(calls, old, *outside)
    source.run(dump)
    assert [old.used(gpu) for gpu in (0, 1)] == [0, 0]

    target.run([criu.program(), "restore", "--restore-detached", *common])
    moved = [seen_from_outside(target, rank["pid"]) for rank in ranks]
    assert [calls.cuda(new, pid, "state") for pid in moved] == ["checkpointed"] * 2
    for pid in moved:
        assert calls.cuda(new, pid, "restore_thread_id") > pid  # as it is numbered out here
        calls.cuda(new, pid, "restore", pairs(old.uuids, new.uuids))
        calls.cuda(new, pid, "unlock")
    assert [ask(target, f"/memory/{rank}/0") for rank in (0, 1)] == memory
    assert [rank["gpus"][0]["uuid"] for rank in json.loads(ask(target))["ranks"]] == [*new.uuids]
    running = calls.nvml(new, "nvmlDeviceGetComputeRunningProcesses", "gpu:0")
    assert [one["pid"] for one in running] == moved[:1]
