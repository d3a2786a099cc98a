"""SSH to a real sshd: who is trusted, what arrives, and what is said when it does not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko
import pytest

from pitstop.fleet import ssh as ssh_module
from pitstop.fleet.hostkeys import fingerprint
from pitstop.fleet.ssh import SshTransport
from pitstop.lab.lab import Lab
from pitstop.lab.node import LabNode
from pitstop.lab.syscalls import CLONE_NEWNET, setns
from pitstop.model.errors import (
    ConnectionLost,
    DeadlineExceeded,
    HostKeyRefused,
    NodeUnreachable,
    PermanentError,
    PitstopError,
)
from pitstop.model.ssh import Ssh
from tests.rigs.engine import until

Connect = Callable[..., SshTransport]


@pytest.fixture
def node(lab: Lab) -> Iterator[LabNode]:
    """The lab's node, on before and after the test."""
    found = lab.node("gpu1")
    yield found
    found.boot()


def ssh_of(node: LabNode, **changes: Any) -> Ssh:
    return Ssh(
        **{
            "address": node.address,
            "host_keys": [node.host_key],
            "identity_file": str(node.identity_file),
            "proxy_command": node.proxy_command,
            **changes,
        }
    )


@pytest.fixture
def connect(node: LabNode) -> Iterator[Connect]:
    """Make transports to the node; all are closed after the test."""
    made: list[SshTransport] = []

    def make(**changes: Any) -> SshTransport:
        made.append(SshTransport("gpu1", ssh_of(node, **changes)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def run(transport: SshTransport, *argv: str, stdin: bytes = b"", timeout: float = 30) -> bytes:
    done = transport.run(argv, stdin, timeout)
    assert done.exit_status == 0, done
    return done.stdout


def new_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """Make a key pair and return its public half as `type base64`."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def shown(public: str) -> str:
    return fingerprint(base64.b64decode(public.split()[1]))


def begin(transport: SshTransport, *argv: str, timeout: float = 60) -> Callable[[], Any]:
    """Run a command in the background; the returned function gives its result or error."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(transport.run(argv, b"", timeout))
        except PitstopError as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(60)
        assert not thread.is_alive()
        return outcome[0]

    return result


SAY_SESSION = 'echo $PPID > "$1.new"; mv "$1.new" "$1"; exec sleep 1000'


def session_under_way(transport: SshTransport, path: Path) -> tuple[str, Callable[[], Any]]:
    """Start a command that never ends; return the PID of its sshd session, and its result."""
    result = begin(transport, "sh", "-c", SAY_SESSION, "sh", str(path))
    until(path.exists, "the command runs")
    return path.read_text().strip(), result


# --- which host is trusted ---


def test_pinned_host_key_is_accepted_and_the_connection_is_reused(connect: Connect) -> None:
    transport = connect()
    sessions = {run(transport, "sh", "-c", "echo $PPID") for _ in range(3)}
    assert len(sessions) == 1


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_changed_host_key_is_refused_at_once_with_both_fingerprints(
    connect: Connect, node: LabNode, tmp_path: Path, kind: str
) -> None:
    """Also when the reinstalled machine has no key of the old one's type any more."""
    other = new_key(tmp_path / "other", kind)
    marker = tmp_path / "touched"
    with pytest.raises(HostKeyRefused) as caught:
        connect(host_keys=[other]).run(["touch", str(marker)], b"", 30)
    assert shown(node.host_key) in caught.value.cause
    assert shown(other) in caught.value.cause
    assert f"{node.address}:22" in caught.value.subject
    assert "site.yaml" in caught.value.hint
    assert not marker.exists()


def test_host_with_several_known_keys_is_accepted_by_any(
    connect: Connect, node: LabNode, tmp_path: Path
) -> None:
    keys = [new_key(tmp_path / "rsa", "rsa"), new_key(tmp_path / "old"), node.host_key]
    assert run(connect(host_keys=keys), "echo", "in") == b"in\n"


@pytest.mark.parametrize("content", [None, "", "other.example ssh-ed25519 AAAA\nbroken\n"])
def test_unknown_host_key_is_refused(
    connect: Connect, node: LabNode, tmp_path: Path, content: str | None
) -> None:
    known_hosts = tmp_path / "known_hosts"
    if content is not None:
        known_hosts.write_text(content)
    with pytest.raises(HostKeyRefused) as caught:
        connect(host_keys=[], known_hosts=str(known_hosts)).run(["true"], b"", 30)
    assert shown(node.host_key) in caught.value.cause
    assert str(known_hosts) in caught.value.cause


def hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("port", "name"),
    [
        (22, "{address}"),
        (22, "first.example,{address}"),
        (22, "198.18.*"),
        (22, "{hashed}"),
        (2222, "[{address}]:2222"),
        (2222, "{hashed}"),
    ],
)
def test_known_hosts_file_is_read_as_openssh_does(
    connect: Connect, node: LabNode, tmp_path: Path, port: int, name: str
) -> None:
    asked = node.address if port == 22 else f"[{node.address}]:{port}"
    name = name.format(address=node.address, hashed=hashed(asked))
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"# ours\nbroken line\n{name} {node.host_key}\n")
    transport = connect(host_keys=[], known_hosts=str(known_hosts), port=port)
    assert run(transport, "echo", "in") == b"in\n"
    # The same line does not speak for the same address on another port.
    with pytest.raises(HostKeyRefused):
        connect(host_keys=[], known_hosts=str(known_hosts), port=2022).run(["true"], b"", 30)


def test_revoked_host_key_is_refused_whatever_else_is_said_of_it(
    connect: Connect, node: LabNode, tmp_path: Path
) -> None:
    known_hosts = tmp_path / "known_hosts"
    line = f"{node.address} {node.host_key}"
    known_hosts.write_text(f"{line}\n@revoked * {node.host_key}\n{line}\n")
    with pytest.raises(HostKeyRefused, match="revoked"):
        connect(host_keys=[], known_hosts=str(known_hosts)).run(["true"], b"", 30)


def test_certificate_authority_is_no_plain_key(
    connect: Connect, node: LabNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"@cert-authority {node.address} {node.host_key}\n")
    with pytest.raises(HostKeyRefused):
        connect(host_keys=[], known_hosts=str(known_hosts)).run(["true"], b"", 30)
    assert "known_hosts:1" in caplog.text


# --- who is let in ---


def test_wrong_user_key_is_a_permanent_error_with_a_hint(connect: Connect, tmp_path: Path) -> None:
    new_key(tmp_path / "mine")
    with pytest.raises(PermanentError, match="not let in") as caught:
        connect(identity_file=str(tmp_path / "mine")).run(["true"], b"", 30)
    assert type(caught.value) is PermanentError
    assert "identity_file" in caught.value.hint


@pytest.mark.parametrize("case", ["missing", "garbage", "encrypted", "unsupported", "directory"])
def test_unusable_identity_file_is_named(connect: Connect, tmp_path: Path, case: str) -> None:
    path = tmp_path / "key"
    if case == "garbage":
        path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nbm8=\n")
    elif case == "encrypted":
        new_key(path, passphrase="correct horse")  # noqa: S106
    elif case == "unsupported":
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", "X25519", "-out", str(path)], check=True
        )
    elif case == "directory":
        path.mkdir()
    with pytest.raises(PermanentError, match="not a usable private key") as caught:
        connect(identity_file=str(path)).run(["true"], b"", 30)
    assert caught.value.subject == str(path)


def test_private_key_stands_in_no_log_and_no_error(
    connect: Connect, node: LabNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = node.identity_file.read_text().splitlines()[1:-1]
    run(connect(), "true")
    other = tmp_path / "other"
    new_key(other)
    secret += other.read_text().splitlines()[1:-1]
    cut = tmp_path / "cut"
    cut.write_text("\n".join(other.read_text().splitlines()[:-2]))
    said = []
    for changes in ({"identity_file": str(other)}, {"identity_file": str(cut)}):
        with pytest.raises(PermanentError) as caught:
            connect(**changes).run(["true"], b"", 30)
        error: BaseException | None = caught.value
        while error is not None:
            said.append(f"{error} {error!r}")
            error = error.__cause__ or error.__context__
    assert caplog.records
    for line in secret:
        assert line not in caplog.text + "".join(said)


# --- no way to it ---


def test_nothing_listens(connect: Connect) -> None:
    transport = connect(address="127.0.0.1", port=1, proxy_command=[])
    with pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1 port 1: .*refused"):
        transport.run(["true"], b"", 30)


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        (["/does/not/exist"], "/does/not/exist: No such file"),
        (["false"], "no SSH connection"),
        (["echo", "HTTP/1.1 400 Bad Request"], "no SSH connection"),
        (["yes"], "no SSH connection"),
    ],
)
def test_proxy_command_that_is_missing_or_fails(
    connect: Connect, proxy: list[str], said: str
) -> None:
    with pytest.raises(NodeUnreachable, match=said):
        connect(proxy_command=proxy, connect_timeout=2).run(["true"], b"", 30)


def test_silent_proxy_is_given_up_in_time_and_leaves_no_process(
    connect: Connect, tmp_path: Path
) -> None:
    """Not even one that does not listen to SIGTERM."""
    pid_file = tmp_path / "pid"
    proxy = ["sh", "-c", 'trap "" TERM; echo $$ > "$1"; while :; do sleep 0.2; done', "sh"]
    begun = time.monotonic()
    with pytest.raises(NodeUnreachable):
        connect(proxy_command=[*proxy, str(pid_file)], connect_timeout=0.5).run(["true"], b"", 30)
    assert time.monotonic() - begun < 15
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_failed_connection_prints_no_trace_by_itself() -> None:
    """A library's log is not for a person's terminal: the error says what was found."""
    code = (
        "from pitstop.fleet.ssh import SshTransport\n"
        "from pitstop.model.ssh import Ssh\n"
        "from pitstop.model.errors import NodeUnreachable\n"
        "try:\n"
        "    SshTransport('n', Ssh(address='x', proxy_command=['false'])).run(['true'], b'', 9)\n"
        "except NodeUnreachable:\n"
        "    print('unreachable')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("unreachable\n", "")


# --- what arrives ---

ODD = [
    "",
    " ",
    "two words",
    "it's",
    'say "hi"',
    "$(touch /tmp/pitstop-never)",
    "`id`",
    "$HOME",
    "a\nb\n",
    "tab\there",
    "*",
    "~",
    "!!",
    "back\\slash",
    "; exit 7",
    "节点完成 ✓ 🦄",
    "é\u0301",
    "-n",
    "\x01\x7f",
]


def test_arguments_arrive_untouched(connect: Connect) -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    found = run(connect(), sys.executable, "-c", code, *ODD)
    assert json.loads(found) == ODD


def test_output_is_bytes_and_the_exit_status_is_the_commands(connect: Connect) -> None:
    raw = bytes(range(256)) * 3
    assert run(connect(), "cat", stdin=raw) == raw
    done = connect().run(["sh", "-c", "printf '\\246' >&2; exit 41"], b"", 30)
    assert (done.exit_status, done.stdout, done.stderr) == (41, b"", b"\xa6")


def test_much_on_both_streams_at_once(connect: Connect) -> None:
    code = (
        "import sys\n"
        "for n in range(160):\n"
        "    sys.stderr.buffer.write(b'e' * 65536)\n"
        "    sys.stdout.buffer.write(b'o' * 65536)\n"
        "print('end')"
    )
    done = connect().run([sys.executable, "-c", code], b"", 60)
    assert len(done.stdout) == 160 * 65536 + 4
    assert done.stdout.endswith(b"oend\n")
    assert done.stderr == b"e" * (160 * 65536)


def test_of_too_much_the_end_is_kept(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_module, "OUTPUT_LIMIT", 1 << 16)
    code = "import sys; sys.stdout.write('n' * 3000000 + 'answer')"
    found = run(connect(), sys.executable, "-c", code)
    assert len(found) == 1 << 16
    assert found.endswith(b"nanswer")


def test_more_input_than_fits_comes_back_whole(connect: Connect) -> None:
    """A program that answers while it is still being written to must not block."""
    data = os.urandom(1 << 20) * 6
    assert run(connect(), "cat", stdin=data) == data


def test_input_that_is_not_read_is_no_lost_connection(connect: Connect) -> None:
    """As of a shell that does not find the program."""
    done = connect().run(["/does/not/exist"], b"x" * (6 << 20), 30)
    assert done.exit_status == 127
    assert b"/does/not/exist" in done.stderr


def test_command_that_goes_on_with_its_streams_closed_is_waited_for_quietly(
    connect: Connect, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    transport = connect()
    run(transport, "true")
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = begin(
        transport, "sh", "-c", 'exec >&- 2>&-; echo > "$1.up"; read x < "$1"; exit 3', "sh",
        str(tmp_path / "fifo"),
    )  # fmt: skip
    until((tmp_path / "fifo.up").exists, "its streams are closed")
    threading.Event().wait(1.0)
    (tmp_path / "fifo").write_text("go\n")
    assert result().exit_status == 3
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.7


# --- what ends it ---


def test_command_that_never_ends_is_given_up_in_time(connect: Connect) -> None:
    transport = connect()
    run(transport, "true")
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"no answer after 0\.5 s"):
        transport.run(["sleep", "1000"], b"", 0.5)
    assert time.monotonic() - begun < 5
    assert run(transport, "echo", "again") == b"again\n"


def test_killed_session_is_a_lost_connection_and_the_next_run_makes_a_new_one(
    connect: Connect, node: LabNode, tmp_path: Path
) -> None:
    transport = connect()
    session, result = session_under_way(transport, tmp_path / "session")
    node.run(["kill", "-9", session])
    assert isinstance(result(), ConnectionLost)
    assert run(transport, "sh", "-c", "echo $PPID").decode().strip() != session


def test_connection_that_dies_after_the_answer_takes_nothing_from_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that reboots has answered, and is gone before the channel is closed.

    paramiko then raises what its `write_all` does, if its reader has not noticed yet; that
    moment is too short to be met at will.
    """
    transport = connect()

    def gone(_channel: paramiko.Channel) -> None:
        raise EOFError

    with monkeypatch.context() as patch:
        patch.setattr(paramiko.Channel, "close", gone)
        assert run(transport, "echo", "answer") == b"answer\n"
    assert run(transport, "echo", "again") == b"again\n"


def test_command_killed_by_a_signal_has_an_unknown_end(connect: Connect) -> None:
    with pytest.raises(ConnectionLost, match="unknown"):
        connect().run(["sh", "-c", "kill -9 $$"], b"", 30)


def test_power_cut_is_a_lost_connection_and_after_the_boot_the_same_object_works(
    connect: Connect, node: LabNode, tmp_path: Path
) -> None:
    transport = connect(connect_timeout=5)
    _, result = session_under_way(transport, tmp_path / "session")
    node.power_cut()
    assert isinstance(result(), ConnectionLost)
    marker = tmp_path / "marker"
    with pytest.raises(NodeUnreachable):
        transport.run(["touch", str(marker)], b"", 30)
    node.boot()
    assert run(transport, "echo", "back") == b"back\n"
    assert not marker.exists()


def test_idle_connection_that_died_unnoticed_is_made_anew(connect: Connect, node: LabNode) -> None:
    """The session hangs and nothing tells: nothing was sent, so another one is opened."""
    transport = connect(connect_timeout=1)
    session = run(transport, "sh", "-c", "echo $PPID").decode().strip()
    node.run(["kill", "-STOP", session])
    try:
        assert run(transport, "sh", "-c", "echo $PPID").decode().strip() != session
    finally:
        node.run(["kill", "-9", session])


@contextmanager
def network_of(node: LabNode) -> Iterator[None]:
    """This thread makes its sockets in the node's network."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    setns(node.netns, CLONE_NEWNET)
    try:
        yield
    finally:
        setns(f"/proc/self/fd/{back}", CLONE_NEWNET)
        os.close(back)


DROP = """
table ip cut {
    chain in { type filter hook input priority 0; tcp dport 22 drop; }
    chain out { type filter hook output priority 0; tcp sport 22 drop; }
}
"""


def test_node_that_vanishes_without_a_word_is_noticed(
    connect: Connect, node: LabNode, tmp_path: Path
) -> None:
    """No FIN, no RST: keepalives that nobody acknowledges end the connection."""
    transport = connect(proxy_command=[], keepalive=1)
    with network_of(node):
        run(transport, "true")
    _, result = session_under_way(transport, tmp_path / "session")
    with node.popen(["nft", "-f", "-"], stdin=subprocess.PIPE, text=True) as nft:
        nft.communicate(DROP)
    assert nft.returncode == 0
    begun = time.monotonic()
    try:
        assert isinstance(result(), ConnectionLost)
        assert time.monotonic() - begun < 10
    finally:
        node.run(["nft", "delete", "table", "ip", "cut"])


class _Deaf(paramiko.ServerInterface):
    """A server that takes a session, and then never says whether it runs the command."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def check_auth_publickey(self, *_: object) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def get_allowed_auths(self, *_: object) -> str:
        return "publickey"

    def check_channel_request(self, *_: object) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, *_: object) -> bool:
        self.let_go.wait(30)
        return False


def test_server_that_never_answers_the_request_is_given_up_in_time(
    connect: Connect, tmp_path: Path
) -> None:
    import socket

    public = new_key(tmp_path / "host")
    deaf = _Deaf()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            server = paramiko.Transport(connection)
            server.add_server_key(paramiko.PKey.from_path(tmp_path / "host"))
            server.start_server(server=deaf)
            deaf.let_go.wait(30)
            server.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        transport = connect(
            address="127.0.0.1",
            port=listener.getsockname()[1],
            proxy_command=[],
            host_keys=[public],
        )
        result = begin(transport, "true", timeout=1)
        try:
            assert isinstance(result(), DeadlineExceeded)
        finally:
            deaf.let_go.set()
            thread.join(10)
