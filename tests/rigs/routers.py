"""Real routers before two replicas, and clients that never stop asking through them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pitstop.fleet.routers.factory import router_for
from pitstop.fleet.routers.router import Router
from pitstop.lab.syscalls import CLONE_NEWNET, setns
from pitstop.model.errors import WorkloadGone
from pitstop.model.router import Haproxy, Nginx
from pitstop.node import processes
from tests.rigs.engine import until

SERVER = Path(__file__).with_name("counting_server.py")
Popen = Callable[..., "subprocess.Popen[Any]"]


class RealHaproxy:
    """HAProxy before the replicas; it hides no failure by trying again.

    Attributes:
        spec: as a site declares it.
        replicas: what the two replicas are called.
    """

    def __init__(self, root: Path, front: int, ports: Sequence[int], popen: Popen) -> None:
        self.root = root
        self.socket = root / "admin.sock"
        self.spec: dict[str, Any] = {"kind": "haproxy", "socket": str(self.socket)}
        self.replicas = [f"be/s{port}" for port in ports]
        self.ports = list(ports)
        self._front = front
        (root / "haproxy.cfg").write_text(self.config())
        self.process = popen(
            ["haproxy", "-db", "-f", str(root / "haproxy.cfg")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: listens(self.socket), "HAProxy listens")

    def config(self) -> str:
        servers = "\n".join(
            f"  server s{port} 127.0.0.1:{port} check inter 200ms fall 2 rise 20"
            for port in self.ports
        )
        return (
            f"global\n  stats socket {self.socket} mode 600 level admin\n  nbthread 2\n"
            "defaults\n  mode http\n  retries 0\n  timeout connect 5s\n  timeout client 60s\n"
            "  timeout server 60s\n  timeout queue 5s\n  timeout check 5s\n"
            f"frontend fe\n  bind 127.0.0.1:{self._front}\n  default_backend be\n"
            f"backend be\n  balance roundrobin\n  option httpchk GET /\n{servers}\n"
        )

    def close_by_hand(self, replica: str) -> None:
        """What an operator does with it."""
        said = self.command(f"set server {replica} state drain")
        assert not said.strip(), said

    def command(self, line: str) -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(line.encode() + b"\n")
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


class RealNginx:
    """nginx before the replicas; it hides no failure by trying another. As `RealHaproxy`."""

    def __init__(self, root: Path, front: int, ports: Sequence[int], popen: Popen) -> None:
        self.root = root
        self.upstream = root / "upstream.conf"
        self.program = ["nginx", "-e", str(root / "error.log"), "-c", str(root / "nginx.conf")]
        self.replicas = [f"127.0.0.1:{port}" for port in ports]
        self.spec: dict[str, Any] = {
            "kind": "nginx",
            "file": str(self.upstream),
            "program": self.program,
            "pid_file": str(root / "nginx.pid"),
        }
        lines = "".join(f"    server {replica}  max_fails=0;\n" for replica in self.replicas)
        self.upstream.write_text(f"upstream be {{ # two replicas\n{lines}}}\n")
        (root / "nginx.conf").write_text(self.config(front))
        self.process = popen(
            [*self.program, "-g", "daemon off;"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: (root / "nginx.pid").exists(), "nginx is up")
        until(self.has_workers, "nginx has workers")

    def config(self, front: int) -> str:
        temporary = "".join(
            f"  {kind}_temp_path {self.root}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return (
            f"user root;\nworker_processes 2;\npid {self.root}/nginx.pid;\n"
            "events { worker_connections 256; }\n"
            f"http {{\n{temporary}  access_log off;\n  proxy_next_upstream off;\n"
            f"  proxy_read_timeout 60s;\n  include {self.upstream};\n"
            f"  server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass http://be; }} }}\n}}\n"
        )

    def has_workers(self) -> bool:
        for process in processes.tree(self.process.pid):
            with suppress(OSError):
                if b"worker process" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                    return True
        return False

    def close_by_hand(self, replica: str) -> None:
        """What an operator does with it."""
        text = self.upstream.read_text()
        self.upstream.write_text(text.replace(f"{replica}  max_fails=0", f"{replica} down"))
        subprocess.run([*self.program, "-s", "reload"], check=True, timeout=20)


Real = RealHaproxy | RealNginx
KINDS: dict[str, type[RealHaproxy] | type[RealNginx]] = {
    "haproxy": RealHaproxy,
    "nginx": RealNginx,
}


def built(real: Real) -> Router:
    """A real router as pitstop sees it."""
    kind = Haproxy if isinstance(real, RealHaproxy) else Nginx
    return router_for("lb", kind.model_validate(real.spec))


def require_routers() -> None:
    """Skip on a laptop without them; in CI that is a failure."""
    from shutil import which

    missing = [name for name in KINDS if which(name) is None]
    if missing and os.environ.get("CI") == "true":
        raise RuntimeError(f"not installed: {missing}")
    if missing:
        pytest.skip(f"not installed: {missing}; scripts/setup routers")


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@contextmanager
def ended(*started: subprocess.Popen[Any]) -> Iterator[None]:
    """End processes afterwards, whatever happened; also those behind an nsenter."""
    try:
        yield
    finally:
        for process in started:
            with suppress(WorkloadGone):
                for member in processes.tree(process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(member.pid, signal.SIGTERM)
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def replica_command(port: int, let_go: Path) -> list[str]:
    return [sys.executable, str(SERVER), "--port", str(port), "--let-go", str(let_go)]


def fetch(url: str, timeout: float = 40) -> dict[str, Any]:
    """Ask once on a connection of its own; raises what went wrong."""
    with urllib.request.urlopen(url, timeout=timeout) as response:
        found: dict[str, Any] = json.load(response)
        return found


class Clients:
    """Threads that ask through a router until they are told to stop: quick and slow requests.

    Attributes:
        failures: each request that was not answered well.
        answered: by the port of the replica that answered.
    """

    def __init__(self, front: int, netns: str | None = None, threads: int = 4) -> None:
        self.failures: list[str] = []
        self.answered: Counter[int] = Counter()
        self._front = front
        self._netns = netns
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(threads)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    def since(self, port: int) -> int:
        """How often a replica has answered so far."""
        with self._lock:
            return self.answered[port]

    def wait_for(self, port: int, more: int = 3) -> None:
        """Wait until a replica has answered some more."""
        wanted = self.since(port) + more
        until(lambda: self.since(port) >= wanted, f"{more} answers of {port}")

    def _ask(self, number: int) -> None:
        if self._netns is not None:
            setns(self._netns, CLONE_NEWNET)
        path = "/slow/0.25" if number % 2 else "/count"
        while not self._stop.is_set():
            try:
                port = int(fetch(f"http://127.0.0.1:{self._front}{path}")["port"])
            except (OSError, ValueError, KeyError) as error:
                said = error.read()[:200] if isinstance(error, urllib.error.HTTPError) else b""
                with self._lock:
                    self.failures.append(f"{path}: {error} {said!r}")
                continue
            with self._lock:
                self.answered[port] += 1
            self._stop.wait(0.05)
