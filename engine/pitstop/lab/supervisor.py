"""The power supply of one node: the parent of its pid 1.

`python -m pitstop.lab.supervisor NODE_DIRECTORY READY_FD`

It boots the node, boots it again when it restarts itself, and leaves it off after a power
cut or a power-off. It outlives the process that made the lab, so that a controller may be
killed and another one go on. One byte is written to READY_FD after the first boot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pitstop.lab.control import Power, short_path
from pitstop.lab.layout import NETNS_DIR, LabRecord, NodeSpec
from pitstop.lab.network import set_link
from pitstop.lab.syscalls import CLONE_NEWNET, CLONE_NEWPID, setns, unshare

BOOT_TIMEOUT = 30.0


async def readable(descriptor: int) -> None:
    """Wait until a descriptor can be read: a pipe with a byte or at its end, a dead pidfd."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


class Supervisor:
    """Keeps one node in the state that was asked for."""

    def __init__(self, node: NodeSpec) -> None:
        self.node = node
        self.power = True  # what is wanted
        self.state = Power(on=False, pid=0, boot_id="", boots=0)
        self.failure = ""  # why the last boot came to nothing
        self._init: subprocess.Popen[bytes] | None = None
        self._change = asyncio.Condition()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until something is so."""
        async with self._change:
            await self._change.wait_for(predicate)

    async def note(self, **changes: object) -> None:
        """Change attributes and tell everyone who waits."""
        async with self._change:
            for name, value in changes.items():
                setattr(self, name, value)
            self._change.notify_all()

    async def run(self) -> None:
        """Boot whenever the power is on and the node is not."""
        while True:
            await self.until(lambda: self.power)
            if self.state.boots and self.node.boot_delay:
                with contextlib.suppress(TimeoutError):
                    off = self.until(lambda: not self.power)
                    await asyncio.wait_for(off, self.node.boot_delay)
            if self.power:
                await self._life()

    async def cut(self) -> None:
        """Take the power away: no process of the node gets to do anything about it."""
        await self.note(power=False, failure="")
        if self._init is not None:
            self._init.kill()
        await self.until(lambda: self._init is None)

    async def _life(self) -> None:
        """One boot, until its end."""
        boot_id = str(uuid.uuid4())
        _write_boot_id(self.node, boot_id)
        ready, child_ready = os.pipe()
        # No await between the start and the note of it: a power cut must find it.
        self._init = init = _spawn(self.node, child_ready)
        os.close(child_ready)
        ended = os.pidfd_open(init.pid)
        boots = self.state.boots
        failure = ""
        try:
            if await self._wait_for_boot(ready):
                boots += 1
                await self.note(state=Power(True, init.pid, boot_id, boots))
            else:
                init.kill()
                failure = f"did not boot: {_last_words(self.node)}"
            await readable(ended)
            status = init.wait()
        finally:
            os.close(ready)
            os.close(ended)
        set_link(self.node, "down")
        await self.note(
            _init=None,
            state=Power(False, 0, boot_id, boots),
            failure=failure if self.power else "",  # cut off while it booted: no failure
            # The kernel ends pid 1 by SIGHUP for a restart that came from inside the node.
            power=self.power and status == -signal.SIGHUP,
        )

    async def _wait_for_boot(self, ready: int) -> bool:
        try:
            await asyncio.wait_for(readable(ready), BOOT_TIMEOUT)
        except TimeoutError:
            return False
        return os.read(ready, 1) == b"1"


def _spawn(node: NodeSpec, ready: int) -> subprocess.Popen[bytes]:
    """Start pid 1 in a new pid namespace, and come back to the machine's own.

    Left there, this process could start no thread, and its next child would join the node.
    """
    unshare(CLONE_NEWPID)
    try:
        with node.path("console.log").open("ab") as console:
            return subprocess.Popen(
                [sys.executable, "-I", "-m", "pitstop.lab.init", node.directory, str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=(ready,),
                cwd="/",
            )
    finally:
        setns("/proc/self/ns/pid", CLONE_NEWPID)


def _write_boot_id(node: NodeSpec, boot_id: str) -> None:
    path = node.path("boot_id")
    new = path.with_name("boot_id.new")
    new.write_text(f"{boot_id}\n")
    new.chmod(0o444)
    new.replace(path)


def _last_words(node: NodeSpec) -> str:
    lines = node.path("console.log").read_text(errors="replace").splitlines()
    return " | ".join(lines[-5:]) or "without a word"


class Desk:
    """Answers requests about one node."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request and answer when it is done."""
        request = json.loads(await reader.readline() or b"{}")
        answer = await self._answer(request)
        with contextlib.suppress(ConnectionError):  # nobody waits for the answer any more
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, str]) -> dict[str, object]:
        supervisor = self._supervisor
        verb = request.get("verb")
        if verb == "boot":
            await supervisor.note(power=True, failure="")
            await supervisor.until(lambda: supervisor.state.on or bool(supervisor.failure))
        elif verb == "cut":
            await supervisor.cut()
        elif verb == "wait-boot":
            await supervisor.until(
                lambda: supervisor.state.on and supervisor.state.boot_id != request["after"]
            )
        elif verb == "wait-off":
            await supervisor.until(lambda: not supervisor.state.on and not supervisor.power)
        elif verb != "status":
            return {"error": f"unknown request: {verb}"}
        if supervisor.failure:
            return {"error": supervisor.failure}
        return dict(asdict(supervisor.state))


async def supervise(node: NodeSpec, ready: int) -> None:
    """Run until killed: with this process its node goes too."""
    supervisor = Supervisor(node)
    with short_path(Path(node.directory)) as path:
        await asyncio.start_unix_server(Desk(supervisor).serve, path=path)
    running = asyncio.create_task(supervisor.run())
    await supervisor.until(lambda: supervisor.state.on or bool(supervisor.failure))
    os.write(ready, b"1" if supervisor.state.on else supervisor.failure.encode())
    os.close(ready)
    await running


def main() -> None:
    """Stand in the switch's namespace, where the lab's end finds this process, and work."""
    node = NodeSpec.load(Path(sys.argv[1]))
    ready = int(sys.argv[2])
    os.set_inheritable(ready, False)
    record = LabRecord.load(node.root / "lab.json")
    setns(str(NETNS_DIR / record.switch), CLONE_NEWNET)
    asyncio.run(supervise(node, ready))


if __name__ == "__main__":
    main()
