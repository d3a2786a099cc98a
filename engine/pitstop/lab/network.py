"""The lab's wires: a bridge in a namespace of its own, and one link from it to each node.

Links are made inside these namespaces from the start, so the machine's own network never
holds one, not even for a moment.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

from pitstop.lab.errors import LabError
from pitstop.lab.layout import NETNS_DIR, LabRecord, NodeSpec


def ip(arguments: Sequence[str], lines: Iterable[str] = ()) -> str:
    """Run `ip`; the lines become the input of a batch.

    Raises:
        LabError: it failed.
    """
    done = subprocess.run(
        ["ip", *arguments],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LabError(f"ip {' '.join(arguments)}", done.stderr.strip() or "failed")
    return done.stdout


def create(record: LabRecord, nodes: Sequence[NodeSpec]) -> None:
    """Make the namespaces and the wires; a node's own end is set up but down."""
    ip(["-batch", "-"], (f"netns add {name}" for name in record.netns_names()))
    switch = ["link add br0 type bridge", "link set br0 up", "link set lo up"]
    for node in nodes:
        port = f"port{node.index}"
        switch.append(f"link add {port} type veth peer name eth0 netns {node.netns}")
        switch.append(f"link set {port} master br0 up")
    ip(["-n", record.switch, "-batch", "-"], switch)
    for node in nodes:
        ip(["-n", node.netns, "address", "add", f"{node.address}/24", "dev", "eth0"])


def set_link(node: NodeSpec, state: str) -> None:
    """Plug a node's cable in (`up`) or out (`down`)."""
    ip(["-n", node.netns, "link", "set", "eth0", state])


def destroy(record: LabRecord) -> None:
    """Kill every process in the lab's namespaces, then remove them.

    The supervisors sit in the switch's namespace, every node's pid 1 in its node's: with
    them goes everything else. Nothing is found by name, nor by a pid that could be reused.
    """
    present = [name for name in record.netns_names() if (NETNS_DIR / name).exists()]
    # Until there is none: a process may have started another one meanwhile.
    while pids := [int(pid) for name in present for pid in ip(["netns", "pids", name]).split()]:
        _kill(pids)
    for name in present:
        ip(["netns", "delete", name])


def _kill(pids: Sequence[int]) -> None:
    """Kill and wait for the end.

    All are held before one is killed. Who dies with another leaves its namespace a moment
    before its end, and would not be found there to be waited for.
    """
    with ExitStack() as stack:
        handles = []
        for pid in pids:
            with suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
                stack.callback(os.close, handles[-1])
        for handle in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        for handle in handles:
            wait_for_end(handle)


def wait_for_end(pidfd: int, timeout: float = 10.0) -> None:
    """Wait until the process behind a pidfd has ended.

    Raises:
        LabError: it goes on.
    """
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(timeout * 1000):
        raise LabError("a process of the lab", f"still there {timeout:.0f} s after it was killed")
