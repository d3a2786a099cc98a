"""GPUs through the real binding of NVML, below which an emulated driver lies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pitstop.decide.gate import compare
from pitstop.decide.gpu_map import map_gpus
from pitstop.model.fingerprint import NONE, Fact, Fingerprint
from pitstop.model.inventory import (
    EMPTY,
    GPU_FACTS,
    NOT_OFFERED,
    NOT_SUPPORTED,
    Answer,
    Gpu,
    Inventory,
)
from pitstop.node import capture as node_capture
from pitstop.node import gpus, processes
from pitstop.node.calls import answer
from pitstop.node.capture import capture
from pitstop.node.gpu_users import gpu_users
from pitstop.node.gpus import gpu_facts, module_version, read_inventory
from pitstop.node.processes import Identity, identity
from tests.rigs.engine import until
from tests.rigs.gpus import EmulatedGpus, NvmlError, build

H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"
LOST, UNKNOWN_ERROR, NOT_THERE = NvmlError(15), NvmlError(999), NvmlError(3)

Make = Callable[..., EmulatedGpus]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Give this process and what it starts a machine with GPUs."""

    def machine(count: int = 2, **options: Any) -> EmulatedGpus:
        found = EmulatedGpus(tmp_path / f"gpus-{len(list(tmp_path.iterdir()))}", count, **options)
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        return found

    return machine


def by_uuid(machine: EmulatedGpus, number: int) -> Gpu:
    found = read_inventory().gpu(machine.uuids[number])
    assert found is not None
    return found


def test_everything_of_a_good_node(make: Make) -> None:
    machine = make(2, driver="580.105.08", topology="NV4/NODE")
    machine.set_field(1, "persistence", 0)
    machine.set_field(1, "compute_mode", 3)
    machine.set_field(1, "ecc", 0)
    found = read_inventory()
    assert (found.answer, found.words) == (Answer.OK, "")
    assert found.driver == found.library == Fact("580.105.08")
    assert found.cuda == Fact("13.0")
    assert found.loaded == Fact(NONE)
    assert found.mps_control == Fact("off")
    first, second = (found.gpu(uuid) for uuid in machine.uuids)
    assert first == Gpu(
        index=0,
        uuid=Fact(machine.uuids[0]),
        name=Fact(H100),
        serial=Fact("1650423000000"),
        pci=Fact("0000:1b:00.0"),
        vbios=Fact("96.00.99.00.01"),
        compute_capability=Fact("9.0"),
        memory=Fact(str(80 << 30)),
        memory_used=Fact("0"),
        ecc=Fact("on"),
        mig=Fact("off"),
        mps=Fact("off"),
        compute_mode=Fact("default"),
        persistence=Fact("on"),
        recovery=Fact(NOT_OFFERED),
        processes_read=Fact("0"),
    )
    assert second is not None
    assert (second.ecc, second.persistence) == (Fact("off"), Fact("off"))
    assert second.compute_mode == Fact("exclusive-process")
    (link,) = found.links
    assert {link.one, link.other} == set(machine.uuids)
    assert (link.nvlinks, link.p2p, link.ancestor) == (Fact("4"), Fact("ok"), Fact("NODE"))
    assert Inventory.from_json(json.loads(json.dumps(found.to_json()))) == found


def ask(call: str, state: Path, **arguments: Any) -> dict[str, Any]:
    """Ask the engine as a controller does."""
    said = answer({"call": call, "state_dir": str(state), "arguments": arguments})
    assert "error" not in said, said
    return dict(said["result"])


FIELDS = {
    **{name: name for name in ("uuid", "name", "serial", "pci", "vbios", "memory", "ecc", "mig")},
    "capability": "compute_capability",
    "compute_mode": "compute_mode",
    "persistence": "persistence",
}
"""What the emulated driver calls them, and the inventory."""


def test_a_field_that_cannot_be_read_is_unknown_alone_and_in_nvmls_words(make: Make) -> None:
    """Each on a GPU of its own."""
    machine = make(len(FIELDS))
    for number, field in enumerate(FIELDS):
        machine.set_field(number, field, NvmlError(4))
    found = read_inventory()
    for gpu, name in zip(found.gpus, FIELDS.values(), strict=True):
        facts = {fact: getattr(gpu, fact) for fact in GPU_FACTS}
        unknown = {fact for fact, value in facts.items() if not value.known}
        assert unknown == ({name, "memory_used"} if name == "memory" else {name})
        assert {facts[fact].reason for fact in unknown} == {"NVML: Insufficient Permissions"}
        assert not gpu.lost


def test_a_list_of_processes_that_cannot_be_read_is_not_an_empty_one(make: Make) -> None:
    make(1).fault("nvmlDeviceGetComputeRunningProcesses_v3", "error", 4)
    (found,) = read_inventory().gpus
    assert found.processes == ()
    for fact in (found.processes_read, found.mps):
        assert fact == Fact(None, "NVML: Insufficient Permissions")


def test_what_a_card_or_driver_does_not_have_is_a_value(make: Make) -> None:
    machine = make(1)
    machine.set_field(0, "ecc", NOT_THERE)
    machine.set_field(0, "mig", NOT_THERE)
    for function in ("nvmlDeviceGetSerial", "nvmlDeviceGetComputeRunningProcesses_v3"):
        machine.fault(function, "error", 13)
    machine.fault("nvmlDeviceGetVbiosVersion", "error", 26)
    (found,) = read_inventory().gpus
    assert (found.ecc, found.mig) == (Fact(NOT_SUPPORTED), Fact(NOT_SUPPORTED))
    assert (found.serial, found.vbios) == (Fact(NOT_OFFERED), Fact(NOT_OFFERED))
    assert found.processes_read == Fact(NOT_OFFERED)


@pytest.mark.parametrize("field", ["handle", "vbios"])
def test_a_lost_gpu_is_listed_and_the_others_are_read(make: Make, field: str) -> None:
    """At its handle, or in the middle, where nothing more is asked of it."""
    machine = make(3)
    machine.set_field(1, field, LOST)
    found = read_inventory()
    assert found.answer is Answer.OK
    assert [gpu.lost for gpu in found.gpus] == [False, True, False]
    lost = found.gpus[1]
    assert (lost.vbios.known, lost.memory.known) == (False, False)
    assert "GPU is lost" in lost.vbios.reason
    assert [gpu.name for gpu in found.gpus if not gpu.lost] == [Fact(H100)] * 2
    assert len(found.links) == 1
    facts = Fingerprint(gpu_facts(found))
    assert facts.facts["gpu.count"] == Fact("3")
    assert not compare(facts, facts).valid


@pytest.mark.parametrize(
    ("fault", "expected", "words"),
    [
        (("nvmlInit", "error", 999), Answer.ERROR, "Unknown Error"),
        (("nvmlInit", "error", 9), Answer.NO_DRIVER, "Driver Not Loaded"),
        (("nvmlInit", "die"), Answer.CRASH, "SIGSEGV"),
        (("nvmlDeviceGetName", "die"), Answer.CRASH, "SIGSEGV"),
        (("nvmlDeviceGetCount_v2", "error", 4), Answer.ERROR, "Insufficient Permissions"),
    ],
)
def test_an_nvml_that_does_not_answer_is_a_value(
    make: Make, fault: tuple[Any, ...], expected: Answer, words: str
) -> None:
    machine = make(1)
    machine.fault(*fault)
    found = read_inventory()
    assert found.answer is expected
    assert words in found.words
    assert found.gpus == ()
    if expected is not Answer.NO_DRIVER:  # no driver and no card on the bus: there is no GPU
        unknown = Fingerprint(gpu_facts(found))
        assert words in unknown.facts["driver.version"].reason
        assert len(compare(unknown, unknown).invalid) == 3


def test_an_nvml_that_hangs_costs_one_probe(make: Make) -> None:
    make(1).fault("nvmlDeviceGetCount_v2", "hang")
    found = read_inventory(deadline=1)
    assert found.answer is Answer.HANG
    assert "no answer in 1 s" in found.words


def test_a_driver_and_library_of_different_versions_are_both_named(make: Make) -> None:
    machine = make(1, driver="580.105.08")
    machine.install("580.126.09")
    found = read_inventory()
    assert found.answer is Answer.MISMATCH
    assert "version mismatch" in found.words
    assert found.library == Fact("580.126.09")
    assert "mismatch" in gpu_facts(found)["driver.version"].reason


def test_a_module_that_is_not_the_one_that_answers_makes_the_driver_unknown(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Tue Mar 4\n")
    monkeypatch.setattr(gpus, "_MODULE", version)
    make(1, driver="580.126.09")
    found = read_inventory()
    assert (found.driver, found.loaded) == (Fact("580.126.09"), Fact("580.105.08"))
    reason = gpu_facts(found)["driver.version"].reason
    assert "580.126.09" in reason
    assert "580.105.08" in reason
    assert "mix" in ask("inventory", tmp_path)["why_not"][0]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Tue Mar 4\n", "580.105.08"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58  Release Build\n"
            "GCC version:  gcc version 12.2.0 (Debian)\n",
            "595.58",
        ),
        ("GCC version:  gcc version 12.2.0 (Debian)\n", None),
        ("", None),
    ],
)
def test_the_loaded_module(text: str, version: str | None) -> None:
    assert module_version(text) == version


def test_a_node_without_a_driver_starts_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "capture", None)
    assert read_inventory() == EMPTY


# --- many, and in another order


def test_sixteen_gpus_have_the_same_numbers_and_links_after_a_reboot(make: Make) -> None:
    machine = make(16, topology="NV18/SYS")
    before = read_inventory()
    assert len(before.links) == 120
    assert {link.nvlinks for link in before.links} == {Fact("18")}
    addresses = [by.pci.value for by in before.gpus]
    for number, address in enumerate(reversed(addresses)):
        machine.set_field(number, "pci", f"0000{address}".upper())
    after = read_inventory()
    assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in reversed(before.gpus)]
    assert gpu_facts(after) == gpu_facts(before)
    assert not map_gpus(before.gpus, after.gpus, before.links, after.links).moved


def test_mixed_models_are_kept_apart_and_move_to_their_own(make: Make) -> None:
    make(2, model=[L4, H100], topology="SYS")
    here = read_inventory()
    make(2, model=[H100, L4], topology="SYS")
    there = read_inventory()
    names = [[gpu.name.value for gpu in found.gpus] for found in (here, there)]
    assert names == [[L4, H100], [H100, L4]]
    saved = Fingerprint({**gpu_facts(here), "host.arch": Fact("x86_64")})
    present = Fingerprint({**gpu_facts(there), "host.arch": Fact("x86_64")})
    assert [saved.facts[f"gpu.{n}.name"] for n in (0, 1)] == [Fact(H100), Fact(L4)]
    verdict = compare(saved, present)
    assert verdict.valid
    assert [d.field for d in verdict.differences] == ["gpu.0.uuid", "gpu.1.uuid"]
    found = map_gpus(here.gpus, there.gpus, here.links, there.links)
    assert set(found.pairs) == {
        (here.gpus[0].uuid.value, there.gpus[1].uuid.value),
        (here.gpus[1].uuid.value, there.gpus[0].uuid.value),
    }


def test_a_link_that_is_gone_changes_the_fingerprint_and_is_no_place_to_restore(
    make: Make,
) -> None:
    machine = make(4, topology="NV6/SYS")
    before = read_inventory()
    machine.set_topology({(0, 3): "SYS"}, otherwise="NV6/SYS")
    after = read_inventory()
    facts = Fingerprint(gpu_facts(before)), Fingerprint(gpu_facts(after))
    assert [d.field for d in compare(*facts).invalid] == ["gpu.links"]
    assert (
        "linked in another way"
        in map_gpus(before.gpus, after.gpus, before.links, after.links).refusals[0]
    )
    machine.fault("nvmlDeviceGetNvLinkState", "error", 999)
    assert "Unknown Error" in gpu_facts()["gpu.links"].reason


# --- who uses them


class Workloads:
    """Processes with CUDA, ended at the end with all they started."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def workloads() -> Iterator[Workloads]:
    found = Workloads()
    yield found
    found.end()


def test_who_is_on_a_gpu_and_has_it_open(make: Make, workloads: Workloads, tmp_path: Path) -> None:
    machine = make(2, driver="565.57.01")
    user = workloads.start(str(build() / "gpu-workload"), "--port", "0", "--bytes", "4096")
    idle = workloads.start("sleep", "1000")
    gpu = until(
        lambda: by_uuid(machine, 0) if by_uuid(machine, 0).processes else None, "its memory"
    )
    (process,) = gpu.processes
    tree = [identity(idle.pid), *processes.tree(user.pid)]
    assert process.kind == "compute"
    assert process.pid in [member.pid for member in tree]
    assert process.memory == gpu.memory_used
    assert int(str(process.memory.value)) >= 4096
    assert process.pid in [member.pid for member in gpu_users(tree)]
    assert tree[0] not in gpu_users(tree)
    assert gpu_users([Identity(user.pid + (1 << 22), 0)]) == []  # gone meanwhile

    asked = {}
    for name, workload in (("user", user), ("idle", idle)):
        (tmp_path / name).write_text(str(workload.pid))
        asked[name] = {"pid_file": str(tmp_path / name)}
    found = ask("inspect", tmp_path / "state", workloads=asked)
    assert Inventory.from_json(found["inventory"]).driver == Fact("565.57.01")
    reasons = [blocker["why"] for blocker in found["workloads"]["user"]["blockers"]]
    assert [reason for reason in reasons if "from driver 570" in reason]
    assert found["workloads"]["idle"]["blockers"] == []
    facts = found["workloads"]["idle"]["fingerprint"]
    assert facts["gpu.0.uuid"]["value"] in machine.uuids


def test_the_multi_process_service_is_known_by_its_server(
    make: Make, workloads: Workloads, tmp_path: Path
) -> None:
    machine = make(2)
    server = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(build() / "gpu-workload", server)
    workloads.start(str(server), "--port", "0", "--bytes", "4096")
    workloads.start("bash", "-c", "exec -a /usr/bin/nvidia-cuda-mps-control sleep 1000")
    until(lambda: by_uuid(machine, 0).processes, "its memory")
    found = read_inventory()
    assert found.mps_control == Fact("on")
    assert [found.gpu(uuid).mps.value for uuid in machine.uuids] == ["on", "off"]  # type: ignore[union-attr]
    (reason,) = ask("inventory", tmp_path)["why_not"]
    assert machine.uuids[0] in reason


# --- a probe that nothing ends


def test_a_command_that_does_not_die_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, workloads: Workloads, tmp_path: Path
) -> None:
    """As one that sits in a driver's call: killed, and still no child that could be waited for.

    A process that somebody else traces stays until its tracer has seen its end.
    """
    monkeypatch.setattr("pitstop.node.capture.KILL_GRACE", 0.2)
    monkeypatch.setattr("pitstop.node.capture.left_behind", [])
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    tracer = workloads.start(
        sys.executable,
        "-c",
        "import ctypes, sys, signal\n"
        "print('ready', flush=True)\n"
        "pid = int(open(sys.argv[1]).read())\n"
        "assert ctypes.CDLL(None).ptrace(0x4206, pid, 0, 0) == 0\n"
        "open(sys.argv[1], 'w').write('traced')\n"
        "signal.pause()\n",
        str(ready),
    )
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == b"ready\n"
    script = f"echo $$ > {ready}; cat {ready} > /dev/null; exec sleep 1000"
    assert capture(["sh", "-c", script], 2).status is None
    (left,) = node_capture.left_behind
    tracer.kill()
    assert left.wait(20) == -signal.SIGKILL
