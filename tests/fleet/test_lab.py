"""The lab's nodes behave like machines, and leave nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pitstop.lab.errors import LabError
from pitstop.lab.lab import Lab
from pitstop.lab.layout import NETNS_DIR, REGISTRY
from pitstop.lab.node import LabNode
from pitstop.lab.reboot import inside_node
from tests.rigs.lab import MakeLab, ssh

CRIU = os.environ.get("PITSTOP_CRIU", "/opt/pitstop/criu/bin/criu")


def machine_network() -> list[object]:
    """Links, addresses and routes of the machine itself, less what changes by itself."""
    found: list[object] = []
    for what in (["link"], ["address"], ["-4", "route"], ["-6", "route"], ["rule"]):
        arguments = ["ip", "-json", *what]
        for item in json.loads(subprocess.check_output(arguments) or "[]"):
            for address in item.get("addr_info", []):
                address.pop("valid_life_time", None)
                address.pop("preferred_life_time", None)
            item.pop("expires", None)
            found.append(item)
    return found


def netns_of(lab: Lab) -> list[str]:
    return sorted(p.name for p in NETNS_DIR.glob(f"pitstop-{lab.record.lab}*"))


def ended(pidfd: int, within: float) -> bool:
    """Whether a process ends in time."""
    return bool(select.select([pidfd], [], [], within)[0])


@contextmanager
def sleeper(node: LabNode) -> Iterator[int]:
    """A daemon inside a node, as a pidfd."""
    lines = "import os, time; print(os.readlink('/proc/self/ns/pid'), flush=True); time.sleep(999)"
    with node.popen([sys.executable, "-c", lines], stdout=subprocess.PIPE, text=True) as client:
        namespace = client.stdout.readline().strip() if client.stdout else ""
        assert namespace == os.readlink(f"/proc/{node.pid}/ns/pid")
        children = Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text().split()
        handle = os.pidfd_open(int(children[0]))
        try:
            yield handle
        finally:
            os.close(handle)
            client.kill()


def test_boots_fast_and_takes_ssh(make_lab: MakeLab, tmp_path: Path) -> None:
    began = time.monotonic()
    node = make_lab("gpu1").node("gpu1")
    assert time.monotonic() - began < 5
    done = ssh(
        node, tmp_path, ["cat", "/proc/sys/kernel/hostname", "/proc/sys/kernel/random/boot_id"]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["gpu1", node.boot_id]
    assert node.boot_id != Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_session_finds_the_engine_and_its_state(lab: Lab, tmp_path: Path) -> None:
    node = lab.node("gpu1")
    done = ssh(node, tmp_path, ["sh", "-c", 'echo "$PITSTOP_STATE_DIR"; command -v pitstop-node'])
    assert done.stdout.split() == [
        str(node.state_dir),
        str(Path(sys.executable).with_name("pitstop-node")),
    ]


def test_a_node_shows_paths_and_devices_that_only_it_has(make_lab: MakeLab, tmp_path: Path) -> None:
    (tmp_path / "inside").write_text("seen\n")
    lab = make_lab(
        "gpu1",
        "gpu2",
        environments={"gpu1": {"TEAM": "blue:green"}},
        mounts={"gpu1": {"/run/shown": str(tmp_path), "/dev/pitstop-full": "/dev/full"}},
    )
    one, two = lab.nodes
    show = 'cat /run/shown/inside; echo "$TEAM"; echo x 2>/dev/null >/dev/pitstop-full || echo full'
    expected = ["seen", "blue:green", "full"]
    assert ssh(one, tmp_path, ["sh", "-c", show]).stdout.split() == expected
    assert one.run(["sh", "-c", show]).split() == expected
    assert "pitstop-full" not in two.run(["ls", "/dev"]).split()
    assert not Path("/dev/pitstop-full").exists()
    one.power_cut()
    one.boot()
    assert one.run(["sh", "-c", show]).split() == expected
    python = "import os, pty; os.openpty(); open('/dev/shm/x', 'w'); open('/dev/fd/0')"
    one.run([sys.executable, "-c", python])


@pytest.mark.parametrize(
    "options",
    [
        {"environments": {"gpu1": {"TEAM": 'blue" PATH="/tmp'}}},
        {"environments": {"gpu1": {"NO NAME": "x"}}},
        {"mounts": {"gpu1": {"/run/shown": "/nowhere/at/all"}}},
    ],
)
def test_unfit_variables_and_mounts_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(LabError, match="gpu1"):
        Lab(tmp_path, ["gpu1"], **options)


def test_another_nodes_host_key_is_refused(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab("gpu1", "gpu2")
    one, two = lab.nodes
    assert one.host_key != two.host_key
    done = ssh(one, tmp_path, ["true"], host_key=two.host_key)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_private_files_are_private(lab: Lab) -> None:
    node = lab.node("gpu1")
    assert node.identity_file.stat().st_mode & 0o777 == 0o600
    assert node.spec.path("host_key").stat().st_mode & 0o777 == 0o600
    assert node.state_dir.stat().st_mode & 0o777 == 0o700


def test_reboot_changes_the_boot_id_and_keeps_the_state(lab: Lab, tmp_path: Path) -> None:
    node = lab.node("gpu1")
    node.run(["touch", str(node.state_dir / "kept"), "/run/gone", "/dev/shm/gone"])
    before = node.power
    with sleeper(node) as process:
        asked = ssh(node, tmp_path, [*node.reboot_command, "--delay", "0.1"])
        assert asked.returncode == 0, asked.stderr
        after = node.wait_boot(before.boot_id)
        assert ended(process, 0)
    assert after.boot_id != before.boot_id
    assert after.boots == before.boots + 1
    found = node.run(["ls", str(node.state_dir), "/run", "/dev/shm"]).split()
    assert "kept" in found
    assert "gone" not in found
    assert node.run(["cat", "/proc/sys/kernel/random/boot_id"]).strip() == after.boot_id


def test_firewall_rules_are_gone_after_a_reboot(lab: Lab) -> None:
    node = lab.node("gpu1")
    node.run(["nft", "add", "table", "inet", "left-behind"])
    assert "left-behind" in node.run(["nft", "list", "tables"])
    node.power_cut()
    node.boot()
    assert node.run(["nft", "list", "tables"]) == ""


def test_power_cut_kills_everything_and_stays_off(lab: Lab, tmp_path: Path) -> None:
    node = lab.node("gpu1")
    init = os.pidfd_open(node.pid)
    try:
        with sleeper(node) as process:
            node.power_cut()
            assert ended(init, 0)
            assert ended(process, 0)
    finally:
        os.close(init)
    assert not node.power.on
    assert ssh(node, tmp_path, ["true"]).returncode == 255
    with pytest.raises(LabError, match="off"):
        node.run(["true"])
    node.boot()
    assert ssh(node, tmp_path, ["true"]).returncode == 0


def test_poweroff_from_inside_stays_off(lab: Lab) -> None:
    node = lab.node("gpu1")
    before = node.power
    node.popen([*node.reboot_command, "--poweroff"]).wait(30)
    node.wait_off()
    assert not node.power.on
    assert node.boot().boots == before.boots + 1
    node.wait_ssh()


def test_a_slow_machine_takes_its_time_to_boot_again(make_lab: MakeLab) -> None:
    node = make_lab("slow", boot_delays={"slow": 1.0}).node("slow")
    before = node.boot_id
    node.popen([*node.reboot_command]).wait(30)
    began = time.monotonic()
    node.wait_boot(before)
    assert time.monotonic() - began > 0.9


def test_orphans_are_reaped(lab: Lab) -> None:
    node = lab.node("gpu1")
    for _ in range(5):
        node.run(["setsid", "--fork", "true"])
    deadline = time.monotonic() + 5
    while "Z" in (states := node.run(["ps", "-e", "-o", "stat="])):
        assert time.monotonic() < deadline, states
        select.select([], [], [], 0.05)


def test_nodes_see_each_other_over_the_wire(make_lab: MakeLab) -> None:
    one, two = make_lab("gpu1", "gpu2").nodes
    lines = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], 22), 5); print(s.recv(8))"
    )
    greet = [sys.executable, "-c", lines]
    assert "SSH-2.0-" in one.run([*greet, two.name])
    with one.popen_net([*greet, two.address], stdout=subprocess.PIPE, text=True) as client:
        out, _ = client.communicate(timeout=30)
    assert "SSH-2.0-" in out
    two.power_cut()
    with pytest.raises(LabError, match=r"No route to host|timed out"):
        one.run([*greet, two.address])


def test_a_client_in_the_nodes_network_survives_its_reboot(lab: Lab) -> None:
    node = lab.node("gpu1")
    with node.popen_net(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        node.power_cut()
        node.boot()
        out, _ = client.communicate(b"still here", timeout=10)
    assert out == b"still here"


def test_labs_side_by_side_are_strangers(make_lab: MakeLab, tmp_path: Path) -> None:
    first, second = make_lab("gpu1").node("gpu1"), make_lab("gpu1").node("gpu1")
    assert first.address == second.address
    for node in (first, second):
        done = ssh(node, tmp_path, ["cat", "/proc/sys/kernel/random/boot_id"])
        assert done.stdout.strip() == node.boot_id, done.stderr
    assert first.boot_id != second.boot_id
    first.power_cut()
    assert ssh(second, tmp_path, ["true"]).returncode == 0


def test_close_leaves_nothing_and_the_machine_is_as_before(tmp_path: Path) -> None:
    before = machine_network()
    lab = Lab(tmp_path / "lab", ["gpu1", "gpu2"])
    with lab:
        assert machine_network() == before
        assert len(netns_of(lab)) == 3
        pids = [
            int(pid)
            for name in netns_of(lab)
            for pid in subprocess.check_output(["ip", "netns", "pids", name]).split()
        ]
        assert len(pids) >= 6  # per node: the supervisor, pid 1 and sshd
        handles = [os.pidfd_open(pid) for pid in pids]
    assert all(ended(handle, 0) for handle in handles)
    for handle in handles:
        os.close(handle)
    assert netns_of(lab) == []
    assert not (REGISTRY / f"{lab.record.lab}.json").exists()
    assert machine_network() == before


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", ["gpu1", "gpu2"])
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hosts").mkdir()  # cannot be written as a file
    with pytest.raises(OSError, match="hosts"):
        lab.start()
    assert netns_of(lab) == []
    assert not (REGISTRY / f"{lab.record.lab}.json").exists()


def test_a_node_that_cannot_boot_says_why(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", ["gpu1"])
    host_key = tmp_path / "lab" / "nodes" / "gpu1" / "host_key"
    host_key.parent.mkdir(parents=True)
    host_key.write_text("not a key")
    host_key.with_name("host_key.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(LabError, match="sshd ended at once"):
        lab.start()
    assert netns_of(lab) == []


@contextmanager
def killed_creator(root: Path) -> Iterator[None]:
    """A lab whose creator was killed without any chance to clean up."""
    lines = (
        "import sys, pathlib\n"
        "from pitstop.lab.lab import Lab\n"
        "lab = Lab(pathlib.Path(sys.argv[1]), ['gpu1']).start()\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", lines, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as creator:
        assert creator.stdout is not None
        assert creator.stdout.readline() == b"up\n"
        creator.send_signal(signal.SIGKILL)
        creator.wait()
    try:
        yield
    finally:
        if (root / "lab.json").exists():
            Lab.attach(root).close()


def test_nodes_outlive_a_killed_creator_and_are_found_again(tmp_path: Path) -> None:
    root = tmp_path / "lab"
    with killed_creator(root):
        with Lab.attach(root) as lab:
            node = lab.node("gpu1")
            assert ssh(node, tmp_path, ["true"]).returncode == 0
            boot_id = node.boot_id
            node.popen([*node.reboot_command]).wait(30)
            assert node.wait_boot(boot_id).boots == 2
        assert netns_of(lab) == []


def test_cleanup_removes_only_what_nobody_owns(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "lab"
    with killed_creator(root):
        left = json.loads((root / "lab.json").read_text())["lab"]
        done = subprocess.run(
            [sys.executable, "-m", "pitstop.lab", "cleanup"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert left in done.stdout
        assert lab.record.lab not in done.stdout
        assert not list(NETNS_DIR.glob(f"pitstop-{left}*"))
        assert not (root / "lab.json").exists()
    assert lab.node("gpu1").power.on


def test_dial_passes_a_half_close_on(lab: Lab) -> None:
    node = lab.node("gpu1")
    lines = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 7000))\n"
        "print('up', flush=True)\n"
        "peer, _ = server.accept()\n"
        "data = b''.join(iter(lambda: peer.recv(65536), b''))\n"
        "peer.sendall(data[::-1])\n"
    )
    payload = os.urandom(1 << 20)
    dial = [*node.proxy_command[:-2], "127.0.0.1", "7000"]
    with node.popen([sys.executable, "-c", lines], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        done = subprocess.run(dial, input=payload, capture_output=True, timeout=30, check=True)
    assert done.stdout == payload[::-1]


def test_dial_ends_with_the_node_and_with_its_caller(lab: Lab) -> None:
    node = lab.node("gpu1")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(node.proxy_command, **pipes) as dial:  # type: ignore[call-overload]
        assert dial.stdout.readline().startswith(b"SSH-2.0-")
        node.power_cut()
        assert dial.wait(5) == 0
    node.boot()
    with subprocess.Popen(node.proxy_command, **pipes) as dial:  # type: ignore[call-overload]
        assert dial.stdout.readline().startswith(b"SSH-2.0-")
        dial.stdout.close()  # its stdin stays open: only the reader has gone
        assert dial.wait(5) == 0


def test_the_machine_is_not_a_node() -> None:
    assert not inside_node()


@pytest.mark.parametrize("names", [[], ["a", "a"], ["UPPER"], ["-a"], ["a.switch"]])
def test_unfit_names_are_refused(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(LabError):
        Lab(tmp_path, names)


def test_criu_dumps_and_restores_a_listener_in_a_node(lab: Lab, tmp_path: Path) -> None:
    node = lab.node("gpu1")
    images = tmp_path / "images"
    images.mkdir(mode=0o700)
    # It opens its stdio itself, inside the node; the rest is closed by subprocess.
    serve = (
        "import os, socket, sys\n"
        "null = os.open('/dev/null', os.O_RDWR)\n"
        "server = socket.create_server(('127.0.0.1', 7001))\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "for fd in (0, 1, 2): os.dup2(null, fd)\n"
        "number = 0\n"
        "while True:\n"
        "    peer, _ = server.accept()\n"
        "    number += 1\n"
        "    peer.sendall(str(number).encode())\n"
        "    peer.close()\n"
    )
    ask = "import socket; print(socket.create_connection(('127.0.0.1', 7001), 5).recv(9).decode())"
    node.run([sys.executable, "-c", serve, str(tmp_path / "pid")])
    assert node.run([sys.executable, "-c", ask]).strip() == "1"
    pid = (tmp_path / "pid").read_text()
    common = ["--images-dir", str(images), "--manage-cgroups=ignore", "--log-file", "log", "-v4"]
    node.run([CRIU, "dump", "--tree", pid, *common])
    with pytest.raises(LabError, match="ConnectionRefused"):
        node.run([sys.executable, "-c", ask])
    # A real reboot lies between: other pids, another boot id, nothing left in memory.
    node.power_cut()
    node.boot()
    node.run([CRIU, "restore", "--restore-detached", *common])
    assert node.run([sys.executable, "-c", ask]).strip() == "2"
