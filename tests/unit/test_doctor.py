"""The doctor's judgement: values in, one check out. Nothing of this machine is read."""

from __future__ import annotations

import ast
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.model.fingerprint import NONE, Fact
from pitstop.model.inventory import EMPTY, Answer, Gpu, Inventory
from pitstop.node.checks import (
    clock_sync,
    gpus,
    kernel_features,
    privileges,
    software,
    storage,
    trust,
)
from pitstop.node.checks.check import Check, CheckState
from pitstop.node.checks.clock_sync import ClockState
from pitstop.node.checks.gpus import CudaBinding
from pitstop.node.checks.privileges import CAPABILITIES, Privileges
from pitstop.node.doctor import FOR_CPU, FOR_GPU, _look, is_able, saves_gpu_state
from pitstop.node.gpus import pci_cards
from pitstop.node.paths import StateDir
from pitstop.node.trial import Trial, judge_trial, not_tried

OK, WARNING, FAILED = CheckState.OK, CheckState.WARNING, CheckState.FAILED
ABSENT, UNKNOWN = CheckState.ABSENT, CheckState.UNKNOWN
ALL_CAPS = (1 << 41) - 1


def without(*names: str) -> int:
    mask = ALL_CAPS
    for name in names:
        mask &= ~(1 << CAPABILITIES[name])
    return mask


def helps(check: Check) -> None:
    """What is wrong says why and names a way out."""
    if check.state in (WARNING, FAILED):
        assert check.why
        assert check.fix


# --- programs


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("4.2", OK),
        ("4.2.1", OK),
        ("4.10", OK),
        ("5.0", OK),
        ("4.2-rc1", OK),
        ("4.1.1", FAILED),
        ("3.17.1", FAILED),
        ("4", FAILED),
        ("git-abc", UNKNOWN),
    ],
)
def test_criu_is_compared_as_numbers(version: str, state: CheckState) -> None:
    check = software.judge_criu(version, "/usr/sbin/criu")
    assert check.state is state
    assert version in check.found
    if state is not OK:
        assert check.fix == "scripts/install-criu"


def test_no_criu_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PITSTOP_CRIU", str(tmp_path / "none"))
    check = software.criu_version()
    assert check.state is FAILED
    assert "scripts/install-criu" in check.fix


def test_tools_that_are_there() -> None:
    checks = software.judge_tools({name: f"/usr/bin/{name}" for name in software.TOOLS})
    assert [check.state for check in checks] == [OK, OK, OK]


def test_only_nsenter_is_needed_by_every_dump() -> None:
    nsenter, lock, sshd = software.judge_tools({})
    assert (nsenter.state, lock.state, sshd.state) == (FAILED, WARNING, ABSENT)
    assert nsenter.id in FOR_CPU
    assert {lock.id, sshd.id}.isdisjoint(FOR_CPU)


def test_the_network_lock_needs_both_families() -> None:
    check = software.judge_tools({"nsenter": "/n", "iptables-restore": "/i", "sshd": "/s"})[1]
    assert check.state is WARNING
    assert "ip6tables-restore" in check.found
    assert "connections: keep" in check.why


# --- kernel


@pytest.mark.parametrize(
    ("ns_last_pid", "kcmp", "state"),
    [
        (True, 0, OK),
        (True, None, OK),
        (False, 0, FAILED),
        (True, errno.ENOSYS, FAILED),
        (True, errno.EPERM, FAILED),
        (False, errno.ENOSYS, FAILED),
    ],
)
def test_checkpoint_restore_in_the_kernel(
    ns_last_pid: bool, kcmp: int | None, state: CheckState
) -> None:
    check = kernel_features.judge_checkpoint_restore(ns_last_pid, kcmp)
    assert check.state is state
    helps(check)


def test_a_seccomp_refusal_is_not_called_a_missing_feature() -> None:
    check = kernel_features.judge_checkpoint_restore(True, errno.EPERM)
    assert "seccomp" in check.fix
    assert "CONFIG_" not in check.fix


def test_namespaces() -> None:
    assert kernel_features.judge_namespaces(["pid", "mnt", "net"]).state is OK
    check = kernel_features.judge_namespaces(["net", "mnt"])
    assert check.state is FAILED
    assert check.found == "not there: pid"


def test_no_memory_tracking_warns_of_the_missing_pre_dump() -> None:
    check = kernel_features.judge_memory_tracking(False)
    assert check.state is WARNING
    assert "no pre-dump" in check.why
    assert kernel_features.judge_memory_tracking(True).state is OK


@pytest.mark.parametrize(
    ("smaps", "expected"),
    [
        ("VmFlags: rd ex mr mw me sd \n", True),
        ("VmFlags: rd ex mr mw me \n", False),
        ("VmFlags: rd sdx \nName: sd\n", False),
        ("", False),
    ],
)
def test_soft_dirty_is_read_from_the_flags(smaps: str, expected: bool) -> None:
    assert kernel_features.has_soft_dirty(smaps) is expected


@pytest.mark.parametrize(
    ("disabled", "refusal", "state"),
    [
        (0, errno.EINVAL, WARNING),
        (0, errno.EFAULT, WARNING),
        (1, errno.EINVAL, WARNING),
        (2, errno.EPERM, OK),
        (None, errno.EINVAL, WARNING),
        (None, errno.ENOSYS, OK),
        (0, errno.ENOSYS, OK),
    ],
)
def test_io_uring(disabled: int | None, refusal: int, state: CheckState) -> None:
    assert kernel_features.judge_io_uring(disabled, refusal).state is state


def test_io_uring_has_two_ways_out() -> None:
    check = kernel_features.judge_io_uring(0, errno.EINVAL)
    assert "io_uring: deny" in check.fix
    assert "sysctl -w kernel.io_uring_disabled=2" in check.fix


def test_an_old_kernel_is_not_told_to_set_what_it_lacks() -> None:
    check = kernel_features.judge_io_uring(None, errno.EINVAL)
    assert "sysctl" not in check.fix
    assert "io_uring: deny" in check.fix


# --- privileges


def test_root_with_everything() -> None:
    check = privileges.judge_privileges(Privileges(0, ALL_CAPS, ALL_CAPS))
    assert (check.state, check.why) == (OK, "")


def test_missing_sys_resource_is_harmless_for_roots_workloads_only() -> None:
    mask = without("CAP_SYS_RESOURCE")
    check = privileges.judge_privileges(Privileges(0, mask, mask))
    assert check.state is OK
    assert "harmless for workloads of root" in check.why
    assert "those of other users cannot be saved" in check.why


def test_sys_admin_holds_checkpoint_restore_in() -> None:
    mask = without("CAP_CHECKPOINT_RESTORE")
    assert privileges.judge_privileges(Privileges(0, mask, mask)).state is OK


@pytest.mark.parametrize("name", ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN"])
def test_a_needed_capability_is_missing(name: str) -> None:
    mask = without(name)
    outside = privileges.judge_privileges(Privileges(0, mask, mask))
    assert outside.state is FAILED
    assert name in outside.found
    assert f"--cap-add {name.removeprefix('CAP_')}" in outside.fix
    inside = privileges.judge_privileges(Privileges(0, mask, ALL_CAPS))
    assert inside.state is FAILED
    assert f"AmbientCapabilities={name}" in inside.fix


def test_not_root_fails_whatever_it_may_do() -> None:
    check = privileges.judge_privileges(Privileges(1000, ALL_CAPS, ALL_CAPS))
    assert check.state is FAILED
    assert "root" in check.fix


def test_status_file_of_a_machine() -> None:
    text = (
        "Name:\tx: y\nUid:\t1000\t0\t0\t0\nCapInh:\t0\nCapEff:\t000001fffeffffff\n"
        "CapBnd:\t000001ffffffffff\n"
    )
    found = privileges.parse_status(text)
    assert found.uid == 0
    assert not found.has("CAP_SYS_RESOURCE")
    assert found.may_have("CAP_SYS_RESOURCE")
    assert found.has("CAP_CHECKPOINT_RESTORE")


@given(st.integers(0, ALL_CAPS), st.integers(0, ALL_CAPS), st.integers(0, 2))
def test_privileges_are_enough_exactly_when_nothing_needed_is_missing(
    effective: int, bounding: int, uid: int
) -> None:
    found = Privileges(uid, effective, bounding)
    check = privileges.judge_privileges(found)
    needed = all(map(found.has, ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN")))
    assert (check.state is OK) == (uid == 0 and needed)
    helps(check)


# --- GPUs

GPU = Gpu(0, uuid=Fact("GPU-a"), name=Fact("NVIDIA A100"), mig=Fact("off"), mps=Fact("off"))
A100 = Inventory(
    Answer.OK, driver=Fact("580.65.06"), loaded=Fact(NONE), cards=Fact("2"), gpus=(GPU, GPU)
)
GOOD = CudaBinding("1.0.0")
X86 = "x86_64"


def gpu_checks(found: Inventory, binding: CudaBinding = GOOD, machine: str = X86) -> list[Check]:
    checks = [
        gpus.judge_driver(found, machine),
        gpus.judge_cuda(found, binding, machine),
        gpus.judge_gpu_state(found, machine),
    ]
    assert {check.id for check in checks} == FOR_GPU
    for check in checks:
        helps(check)
    return checks


def without_answer(answer: Answer, cards: int, words: str = "Unknown Error") -> Inventory:
    return Inventory(answer, words, loaded=Fact(NONE), cards=Fact(str(cards)))


@pytest.mark.parametrize(
    "found",
    [
        EMPTY,
        without_answer(Answer.NO_LIBRARY, 0),
        without_answer(Answer.NO_DRIVER, 0),
        replace(A100, gpus=(), cards=Fact("0")),
    ],
    ids=["nothing", "no library", "no driver", "a driver without a GPU"],
)
def test_a_machine_without_a_gpu_fails_in_nothing(found: Inventory) -> None:
    states = [check.state for check in gpu_checks(found, CudaBinding(None))]
    assert states == [ABSENT, ABSENT, ABSENT]


def test_a_good_node_saves_gpu_state() -> None:
    driver, cuda, state = gpu_checks(A100)
    assert [driver.state, cuda.state, state.state] == [OK, OK, OK]
    assert driver.found == "driver 580.65.06, 2 GPU: 2 x NVIDIA A100"
    assert "other GPUs too" in state.found


def test_a_driver_that_moves_nothing_saves_and_says_so() -> None:
    checks = gpu_checks(replace(A100, driver=Fact("575.57.08")))
    assert [check.state for check in checks] == [OK, OK, OK]
    assert "other GPUs too" not in checks[2].found
    assert "from driver 580" in checks[2].why


@pytest.mark.parametrize(
    ("found", "fix"),
    [
        (without_answer(Answer.NO_LIBRARY, 1), "install the NVIDIA driver"),
        (without_answer(Answer.NO_DRIVER, 1), "modprobe nvidia"),
        (without_answer(Answer.MISMATCH, 1), "reload the module"),
        (without_answer(Answer.MISMATCH, 0), "reload the module"),
        (without_answer(Answer.ERROR, 1), "dmesg"),
        (without_answer(Answer.CRASH, 0), "reboot the node"),
        (without_answer(Answer.HANG, 8), "reboot the node"),
        (replace(A100, gpus=(), cards=Fact("1")), "dmesg"),
        (replace(A100, loaded=Fact("570.1")), "reload the module"),
        (replace(A100, gpus=(GPU, replace(GPU, lost=True))), "reboot the node"),
    ],
)
def test_a_gpu_without_a_working_driver_is_a_failure(found: Inventory, fix: str) -> None:
    driver, _cuda, state = gpu_checks(found)
    assert (driver.state, state.state) == (FAILED, FAILED)
    assert found.words in driver.found
    assert fix in driver.fix


def test_a_lost_gpu_is_counted_beside_the_others() -> None:
    check = gpus.judge_driver(replace(A100, gpus=(GPU, GPU, replace(GPU, lost=True))), X86)
    assert "3 GPU: 2 x NVIDIA A100, 1 x lost" in check.found


def test_a_missing_binding_is_unknown_not_absent() -> None:
    found = without_answer(Answer.NO_BINDING, 0, "No module named 'pynvml'")
    assert gpus.judge_driver(found, X86).state is UNKNOWN


@pytest.mark.parametrize(
    ("driver", "machine", "state", "words"),
    [
        ("570.124.06", X86, OK, ""),
        ("580.65.06", X86, OK, ""),
        ("570.86.10", X86, FAILED, "cuda-checkpoint#34"),
        ("610.57.04", X86, FAILED, "cuda-checkpoint#58"),
        ("565.57.01", X86, FAILED, "from driver 570"),
        ("99.1", X86, FAILED, "from driver 570"),
        ("580.65.06", "aarch64", FAILED, "from driver 595"),
        ("595.10", "aarch64", OK, ""),
        ("580.65.06", "riscv64", UNKNOWN, "riscv64"),
        ("beta", X86, UNKNOWN, "beta"),
    ],
)
def test_the_checkpoint_api_needs_a_driver_that_works(
    driver: str, machine: str, state: CheckState, words: str
) -> None:
    found, cuda, gpu_state = gpu_checks(replace(A100, driver=Fact(driver)), machine=machine)
    assert (found.state, cuda.state) == (OK, state)
    assert gpu_state.state is (OK if state is OK else FAILED)
    assert words in cuda.why


def test_a_gpu_without_cuda_python_cannot_be_checkpointed() -> None:
    binding = CudaBinding(None, "No module named 'cuda'")
    driver, cuda, _state = gpu_checks(A100, binding)
    assert (driver.state, cuda.state) == (OK, FAILED)
    assert "No module named 'cuda'" in cuda.found
    assert "pitstop[gpu]" in cuda.fix


@pytest.mark.parametrize("changes", [{"mig": Fact("on")}, {"mps": Fact("on")}])
def test_what_is_set_up_otherwise_fails_the_state_alone(changes: dict[str, Fact]) -> None:
    checks = gpu_checks(replace(A100, gpus=(GPU, replace(GPU, **changes))))  # type: ignore[arg-type]
    assert [check.state for check in checks] == [OK, OK, FAILED]
    assert "GPU-a" in checks[2].why


def test_cards_are_counted_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (
        ("gpu", "0x10de", "0x030200"),
        ("vga", "0x10de", "0x030000"),
        ("its-audio", "0x10de", "0x040300"),
        ("other", "0x8086", "0x030000"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    (tmp_path / "gone").mkdir()
    assert pci_cards(tmp_path) == Fact("2")


def test_a_machine_without_the_bus_has_no_card_and_one_without_sysfs_is_not_known(
    tmp_path: Path,
) -> None:
    assert pci_cards(tmp_path / "pci" / "devices") == Fact("0")
    assert not pci_cards(tmp_path / "bus" / "pci" / "devices").known
    hidden = replace(EMPTY, cards=Fact(None, "/sys/bus is not there"))
    assert "/sys/bus is not there" in gpus.judge_driver(hidden, X86).found


# --- storage

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "in_use", "state"),
    [
        (100 * GIB, 10 * GIB, OK),
        (10 * GIB, 10 * GIB, WARNING),
        (9 * GIB, 10 * GIB, WARNING),
        (storage.HARD_MINIMUM - 1, 0, FAILED),
        (0, GIB, FAILED),
    ],
)
def test_room(free: int, in_use: int, state: CheckState) -> None:
    check = storage.judge_room("/var/lib/pitstop", free, in_use)
    assert check.state is state
    helps(check)


@pytest.mark.parametrize(
    ("kind", "read_only", "state"),
    [
        ("ext4", False, OK),
        ("xfs", False, OK),
        ("nfs4", False, OK),
        ("tmpfs", False, WARNING),
        ("ramfs", False, WARNING),
        ("overlay", False, WARNING),
        ("ext4", True, FAILED),
        ("tmpfs", True, FAILED),
    ],
)
def test_file_system(kind: str, read_only: bool, state: CheckState) -> None:
    check = storage.judge_file_system("/x", kind, "/", read_only)
    assert check.state is state
    helps(check)


def test_tmpfs_names_the_reboot() -> None:
    assert "reboot" in storage.judge_file_system("/x", "tmpfs", "/", False).why


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        (None, ABSENT),
        (0o040700, OK),
        (0o040750, WARNING),
        (0o040755, WARNING),
        (0o040770, FAILED),
        (0o041777, FAILED),
    ],
)
def test_state_directory_mode(mode: int | None, state: CheckState) -> None:
    check = storage.judge_mode("/var/lib/pitstop", mode)
    assert check.state is state
    if state in (WARNING, FAILED):
        assert check.fix == "chmod 0700 /var/lib/pitstop"


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
30 22 0:25 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1g
31 22 0:26 / /tmp/a\\040b ro,nosuid - xfs /dev/sdb rw
32 22 0:27 / /tmp rw - ext4 /dev/sdc rw
33 22 0:28 / /var/lib rw master:7 - nfs4 host:/x ro,vers=4.2
"""


@pytest.mark.parametrize(
    ("path", "kind", "point", "read_only"),
    [
        ("/", "ext4", "/", False),
        ("/etc", "ext4", "/", False),
        ("/tmp", "ext4", "/tmp", False),
        ("/tmpfiles", "ext4", "/", False),
        ("/tmp/a b/c", "xfs", "/tmp/a b", True),
        ("/var/lib/pitstop", "nfs4", "/var/lib", True),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str, point: str, read_only: bool) -> None:
    found_kind, found_point, options = storage.mount_of(path, MOUNTS)
    assert (found_kind, found_point, "ro" in options) == (kind, point, read_only)


def test_no_mount_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="no mount holds"):
        storage.mount_of("/x", "")


def test_shared_memory() -> None:
    assert storage.judge_shared_memory(True, True).state is OK
    for mounted, writable in ((False, True), (True, False), (False, False)):
        check = storage.judge_shared_memory(mounted, writable)
        assert check.state is WARNING
        assert check.fix.startswith("mount -t tmpfs")


# --- clock


@pytest.mark.parametrize(
    ("clock", "state"),
    [
        (ClockState(0, 0x2001, 1500), OK),
        (ClockState(5, 0x0040, 16_000_000), WARNING),
        (ClockState(5, 0, 0), WARNING),
        (ClockState(0, clock_sync.STA_UNSYNC, 0), WARNING),
        (ClockState(0, 1, 2_000_000), WARNING),
    ],
)
def test_clock(clock: ClockState, state: CheckState) -> None:
    check = clock_sync.judge_clock(clock)
    assert check.state is state
    assert f"{clock.maxerror / 1000:g} ms" in check.found
    helps(check)


# --- key and quarantine


@pytest.mark.parametrize(
    ("mode", "owner", "state"),
    [
        (None, 0, ABSENT),
        (0o100600, 0, OK),
        (0o100400, 0, OK),
        (0o100640, 0, FAILED),
        (0o100604, 0, FAILED),
        (0o100600, 1000, FAILED),
    ],
)
def test_signing_key(mode: int | None, owner: int, state: CheckState) -> None:
    check = trust.judge_key(Path("/k/signing.pem"), mode, owner)
    assert check.state is state
    helps(check)


def test_quarantine_names_the_run_and_the_cause() -> None:
    found = {"run": "r-17", "cause": "validation failed", "time": "2026-01-01T00:00:00+00:00"}
    check = trust.judge_quarantine(found, Path("/q"))
    assert check.state is WARNING
    assert "r-17" in check.found
    assert "validation failed" in check.why
    assert check.fix.endswith("pitstop resume r-17")
    assert trust.judge_quarantine(None, Path("/q")).state is OK


def test_looking_for_key_and_quarantine_makes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "state"
    assert [check.state for check in trust.trust(StateDir(root))] == [ABSENT, OK]
    assert not root.exists()


# --- the trial's outcome


def test_a_good_trial_says_how_long_it_took() -> None:
    check = judge_trial(Trial(seconds=3.21, parts={"dump": 0.4, "restore": 1.1}))
    assert check.state is OK
    assert "in 3.2 s (dump 0.40 s, restore 1.10 s)" in check.found


@pytest.mark.parametrize("stage", ["start", "dump", "restore", "proof", "trial"])
def test_a_failed_trial_shows_the_causes(stage: str) -> None:
    check = judge_trial(Trial(stage, ("sockets: Can't get 1:16 opt", "Dumping FAILED.")))
    assert check.state is FAILED
    assert check.found == f"{stage}: sockets: Can't get 1:16 opt; Dumping FAILED."
    helps(check)


def test_no_trial_is_unknown_and_says_how_to_make_one() -> None:
    check = not_tried()
    assert check.state is UNKNOWN
    assert "--no-trial" in check.fix


# --- the whole

states = st.sampled_from(list(CheckState))


@given(st.dictionaries(st.sampled_from(sorted(FOR_CPU | FOR_GPU | {"clock", "io-uring"})), states))
def test_able_means_that_nothing_failed_that_a_cpu_workload_needs(
    found: dict[str, CheckState],
) -> None:
    checks = [Check(name, state, "w", "f") for name, state in found.items()]
    failed = {name for name, state in found.items() if state is FAILED}
    assert is_able(checks) == failed.isdisjoint(FOR_CPU)
    assert saves_gpu_state(checks) == all(found.get(name) is OK for name in FOR_GPU)


def test_what_cannot_be_read_is_unknown() -> None:
    def unreadable() -> list[Check]:
        raise PermissionError(13, "Permission denied", "/proc/x")

    (check,) = _look("clock", "clock", unreadable)
    assert check.state is UNKNOWN
    assert "Permission denied" in check.found


def test_ids_that_able_rests_on_exist() -> None:
    """A renamed check must not silently stop to count."""
    sources = [*Path(software.__file__).parent.glob("*.py")]
    sources.append(Path(software.__file__).parents[1] / "trial.py")
    written = {
        node.args[0].value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Check"
        and isinstance(node.args[0], ast.Constant)
    }
    assert written >= FOR_CPU | FOR_GPU
