"""Rules about the processes themselves: their tree, their namespaces, who traces them."""

from __future__ import annotations

from collections.abc import Iterator

from pitstop.node.blockers.blocker import Blocker, Kind
from pitstop.node.blockers.facts import Tree

SESSION = Kind(
    "a foreign session",
    "its leader is not part of the workload (criu.org: What cannot be checkpointed)",
    "start it through pitstop-node launch or setsid",
)
STRAY = Kind(
    "a process that left the tree",
    "a dump would leave it out, and so lose it",
    "end it, or cold-start; a daemon that is its session's leader stays in the tree",
)
TRACED = Kind(
    "a traced process",
    "a process has one tracer, and CRIU needs to be it (ptrace(2))",
    "end the debugger, strace or profiler that is attached",
)
SHARED_MEMORY = Kind(
    "a process in its parent's memory",
    "CRIU cannot dump processes that share one address space (criu: kcmp-ids.c), and cannot "
    "stop a parent that waits in vfork(2)",
    "try again: a child in vfork lasts for a moment; else a cold start",
)
NAMESPACE = Kind(
    "a nested namespace",
    "CRIU dumps a tree whose processes are in the same namespaces (criu: namespaces.c)",
    "start it without sandboxes or containers inside, or save what is inside as a workload of "
    "its own",
)
OUTER_NAMESPACE = Kind(
    "a foreign namespace",
    "it would have to be rebuilt at a restore, which the launcher does not do",
    "start pitstop-node launch inside of that container, or a cold start",
)
KINDS = (SESSION, STRAY, TRACED, SHARED_MEMORY, NAMESPACE, OUTER_NAMESPACE)

_TOGETHER = ("mnt", "pid", "user", "ipc", "uts", "cgroup", "net", "time")
"""Namespaces that CRIU 4.2.1 does not dump nested; that of net it dumps and fails to restore."""


def session(tree: Tree) -> Iterator[Blocker]:
    """The root's session has to be led from within the tree."""
    root = tree.root
    if root.session != root.pid and root.session not in tree.pids:
        yield SESSION.at(f"pid {root.pid}", f"it belongs to session {root.session}")


def strays(tree: Tree) -> Iterator[Blocker]:
    """Processes that a dump of the root's tree would leave out."""
    for process in tree.processes[1:]:
        if process.parent not in tree.pids:
            found = f"its parent is pid {process.parent}, not a process of the workload"
            yield STRAY.at(f"pid {process.pid}", found)


def traced(tree: Tree) -> Iterator[Blocker]:
    """Traced by whomever, also from within the tree."""
    for process in tree.processes:
        if process.tracer:
            yield TRACED.at(f"pid {process.pid}", f"pid {process.tracer} traces it")


def shared_memory(tree: Tree) -> Iterator[Blocker]:
    """Processes that are not threads, and yet share their memory."""
    for process in tree.processes:
        if process.shares_memory:
            yield SHARED_MEMORY.at(f"pid {process.pid}", f"it is that of pid {process.parent}")


def namespaces(tree: Tree) -> Iterator[Blocker]:
    """All processes in the root's namespaces, and the root in those that CRIU is started in."""
    root, own = tree.root.namespaces, tree.own_namespaces
    for process in tree.processes[1:]:
        inner = process.namespaces
        other = [k for k in _TOGETHER if k in inner and k in root and inner[k] != root[k]]
        if other:
            yield NAMESPACE.at(f"pid {process.pid}", f"its own: {', '.join(other)}")
    # One of time is no hindrance: CRIU itself gives one to whatever it restores.
    foreign = [k for k in ("user",) if k in root and k in own and root[k] != own[k]]
    if "mnt" in root and root["mnt"] != own.get("mnt", root["mnt"]) and not tree.below_init:
        foreign.append("mnt")
    if foreign:
        yield OUTER_NAMESPACE.at(f"pid {tree.root.pid}", f"not the engine's: {', '.join(foreign)}")
    for process in tree.processes:
        later = process.namespaces.get("time_for_children")
        if later is not None and later != process.namespaces.get("time", later):
            yield NAMESPACE.at(f"pid {process.pid}", "another time for its children")
