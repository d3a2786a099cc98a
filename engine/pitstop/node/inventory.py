"""The fingerprint of this node and of a workload's engine and model, as they are now."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pitstop.decide.gate import compare
from pitstop.model.errors import PitstopError, Refused
from pitstop.model.fingerprint import Fact, Fingerprint
from pitstop.node import criu
from pitstop.node.capture import capture
from pitstop.node.gpus import gpu_facts

if TYPE_CHECKING:
    from pitstop.model.inventory import Inventory
    from pitstop.model.manifest import Manifest

PROBE_TIMEOUT = 60


def take_fingerprint(
    probes: Mapping[str, Mapping[str, Any]], inventory: Inventory | None = None
) -> Fingerprint:
    """Read all facts. What cannot be read is unknown, with the reason; it never raises.

    Args:
        probes: for `engine` and `model`, where the version is read (`model.workload.Probe`
            as plain data). A workload that declares none has no such field.
        inventory: the GPUs as they were read already; without it, they are read now.
    """
    facts = {**host_facts(), **gpu_facts(inventory)}
    for name, probe in probes.items():
        facts[f"{name}.version"] = read_probe(probe)
    return Fingerprint(facts)


def refuse_if_changed(manifest: Manifest) -> None:
    """Ask the gate about a checkpoint whose manifest is verified, against what is here now.

    The manifest says which commands to run to read the versions, so it must be verified.

    Raises:
        Refused: it is not valid here.
    """
    verdict = compare(
        Fingerprint.from_json(manifest.fingerprint),
        take_fingerprint(manifest.probes),
        manifest.tolerate,
    )
    if not verdict.valid:
        raise Refused(manifest.checkpoint, str(verdict))


def host_facts() -> dict[str, Fact]:
    """Return kernel, CPU, C library and CRIU."""
    uname = os.uname()
    libc = os.confstr("CS_GNU_LIBC_VERSION")
    try:
        criu_version = Fact(criu.version())
    except PitstopError as error:
        criu_version = Fact(None, str(error))
    return {
        "host.kernel": Fact(uname.release),
        "host.arch": Fact(uname.machine),
        "host.cpu": _cpu_features(),
        "host.libc": Fact(libc) if libc else Fact(None, "not the GNU C library"),
        "host.criu": criu_version,
    }


def read_probe(probe: Mapping[str, Any]) -> Fact:
    """Read one version from where it is declared to be."""
    try:
        if probe.get("value") is not None:
            return Fact(str(probe["value"]))
        if probe.get("file") is not None:
            return _file(Path(str(probe["file"])))
        if probe.get("command") is not None:
            return _first_line([str(part) for part in probe["command"]])
        if probe.get("package") is not None:
            interpreter, _, package = str(probe["package"]).partition(":")
            code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
            return _first_line([interpreter, "-c", code, package])
        if probe.get("container") is not None:
            runtime, _, container = str(probe["container"]).partition(":")
            return _first_line([runtime, "inspect", "--format", "{{.Image}}", container])
    except OSError as error:
        return Fact(None, f"{error.strerror}: {error.filename}")
    return Fact(None, "no source is declared")


def _file(path: Path) -> Fact:
    from blake3 import blake3

    path.open("rb").close()  # whose error names what is wrong; that of the mapping does not
    return Fact("blake3:" + blake3(max_threads=2).update_mmap(path).hexdigest())


def _first_line(argv: list[str]) -> Fact:
    found = capture(argv, PROBE_TIMEOUT)
    if found.status is None:
        return Fact(None, f"{argv[0]}: no answer in {PROBE_TIMEOUT} s")
    lines = found.out.strip().splitlines()
    if found.status != 0:
        tail = found.err.strip().splitlines()[-1:]
        return Fact(None, f"{argv[0]}: exit status {found.status} {''.join(tail)[:200]}")
    return Fact(lines[0][:500]) if lines else Fact(None, f"{argv[0]}: printed nothing")


def _cpu_features() -> Fact:
    """Return the features of the first CPU as a set; x86 calls them flags, arm64 Features."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return Fact(" ".join(sorted(value.split())))
    return Fact(None, "/proc/cpuinfo names no features")
