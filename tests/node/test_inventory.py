"""What a checkpoint is valid against: read, or unknown with the reason, never guessed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from pitstop.decide.gate import compare
from pitstop.model.fingerprint import NONE, Fact, Fingerprint
from pitstop.node import criu, inventory
from pitstop.node.inventory import read_probe, take_fingerprint


def test_of_this_machine() -> None:
    facts = take_fingerprint({}).facts
    assert facts["host.kernel"] == Fact(os.uname().release)
    assert facts["host.arch"] == Fact(os.uname().machine)
    assert str(facts["host.libc"].value).startswith("glibc ")
    features = str(facts["host.cpu"].value).split()
    assert len(features) > 10
    assert features == sorted(set(features))
    assert facts["host.criu"] == Fact(criu.version())
    assert not [name for name in facts if name.startswith(("engine.", "model."))]


def test_is_valid_against_itself() -> None:
    probes = {"engine": {"value": "1.0"}, "model": {"value": "m"}}
    first, second = take_fingerprint(probes), take_fingerprint(probes)
    assert compare(first, second, ()).valid
    assert Fingerprint.from_json(first.to_json()) == first


def test_without_a_gpu() -> None:
    """No library is a value, not an error: a machine without GPU is compared as such."""
    pytest.importorskip("pynvml")
    if Path("/proc/driver/nvidia").exists():
        pytest.fail("this machine has a GPU: run tests/gpu on it")
    facts = take_fingerprint({}).facts
    assert facts["gpu.count"] == Fact("0")
    assert facts["driver.version"] == Fact(NONE)
    assert facts["cuda.version"] == Fact(NONE)


class TestProbe:
    @pytest.mark.parametrize("value", ["1.0", "", "ü"])
    def test_value(self, value: str) -> None:
        assert read_probe({"value": value}) == Fact(value)

    def test_file(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        for content in (b"", b"weights"):
            path.write_bytes(content)
            assert read_probe({"file": str(path)}) == Fact("blake3:" + blake3(content).hexdigest())

    def test_command_is_its_first_line(self) -> None:
        assert read_probe({"command": ["printf", "\nv1.2\nmore\n"]}) == Fact("v1.2")
        long = read_probe({"command": [sys.executable, "-c", "print('x' * 9999)"]})
        assert long == Fact("x" * 500)

    def test_package(self) -> None:
        import pydantic

        assert read_probe({"package": f"{sys.executable}:pydantic"}) == Fact(pydantic.VERSION)

    @pytest.mark.parametrize(
        ("probe", "reason"),
        [
            ({"file": "/no/such/file"}, "No such file or directory: /no/such/file"),
            ({"file": "/"}, "directory"),
            ({"command": ["no-such-program"]}, "No such file or directory"),
            ({"command": ["sh", "-c", "echo 1.0; echo broken >&2; exit 3"]}, "status 3 broken"),
            ({"command": ["sh", "-c", "echo 1.0; kill -9 $$"]}, "exit status -9"),
            ({"command": ["true"]}, "printed nothing"),
            ({"command": ["printf", " \\n\\n"]}, "printed nothing"),
            ({"package": f"{sys.executable}:no-such-package"}, "exit status 1"),
            ({"package": "/no/such/python:pydantic"}, "/no/such/python"),
            ({"container": "docker:engine"}, "docker"),
            ({"container": "podman:engine"}, "podman"),
            ({}, "no source"),
        ],
    )
    def test_that_cannot_be_read_is_unknown(self, probe: dict[str, Any], reason: str) -> None:
        fact = read_probe(probe)
        assert not fact.known
        assert reason in fact.reason, fact.reason

    def test_that_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inventory, "PROBE_TIMEOUT", 0.2)
        for script in ("exec sleep 1000", "sleep 1000 & wait"):
            fact = read_probe({"command": ["sh", "-c", script]})
            assert not fact.known
            assert "no answer in 0.2 s" in fact.reason

    @pytest.mark.usefixtures("engine")  # it ends what is left
    def test_that_leaves_somebody_behind_with_its_output(self) -> None:
        fact = read_probe({"command": ["sh", "-c", "sleep 1000 & echo 1.0"]})
        assert fact == Fact("1.0")

    def test_that_is_not_utf_8(self) -> None:
        assert read_probe({"command": ["printf", "v\\377"]}) == Fact("v\ufffd")

    def test_unknown_is_never_equal(self) -> None:
        unknown = take_fingerprint({"engine": {"command": ["false"]}})
        verdict = compare(unknown, unknown, ())
        assert not verdict.valid
        assert [difference.field for difference in verdict.differences] == ["engine.version"]


class TestCriu:
    """Where it is, and what it is when it is not there."""

    @pytest.fixture
    def fake(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        path = tmp_path / "criu"
        monkeypatch.setenv("PITSTOP_CRIU", str(path))
        yield path

    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            (None, "does not run"),
            ("exit 1", "does not run"),
            ("echo nothing", "cannot be read"),
        ],
    )
    def test_that_does_not_work_is_unknown(
        self, fake: Path, script: str | None, reason: str
    ) -> None:
        if script is not None:
            fake.write_text(f"#!/bin/sh\n{script}\n")
            fake.chmod(0o755)
        fact = take_fingerprint({}).facts["host.criu"]
        assert not fact.known
        assert reason in fact.reason

    def test_named_by_the_environment(self, fake: Path) -> None:
        fake.write_text("#!/bin/sh\necho Version: 9.9\necho GitID: v9.9\n")
        fake.chmod(0o755)
        assert criu.program() == str(fake)
        assert criu.version() == "9.9"
