"""Where in a process a file is held, in words."""

from __future__ import annotations

from collections.abc import Iterator

from pitstop.node.blockers.facts import Node, Process


def places(process: Process) -> Iterator[tuple[str, str]]:
    """Yield open and mapped files as (where, target); `where` names pid, place and target."""
    for descriptor in process.descriptors:
        place = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
        yield place, descriptor.target
    for mapped in process.mapped:
        yield f"pid {process.pid} map {mapped.area} -> {mapped.target}", mapped.target


def devices(process: Process) -> Iterator[tuple[str, str, Node]]:
    """Yield open and mapped devices as (where, target, device)."""
    for descriptor in process.descriptors:
        if descriptor.device is not None:
            place = f"pid {process.pid} fd {descriptor.number} -> {descriptor.target}"
            yield place, descriptor.target, descriptor.device
    for mapped in process.mapped:
        if mapped.device is not None:
            place = f"pid {process.pid} map {mapped.area} -> {mapped.target}"
            yield place, mapped.target, mapped.device
