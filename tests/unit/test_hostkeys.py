"""Which host keys are accepted: known_hosts as people have them (paramiko#490, #1793)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.fleet.hostkeys import HostKeys, fingerprint, from_known_hosts, from_lines


def key(kind: str, seed: str) -> tuple[str, bytes]:
    """A key blob: its type, then some content."""
    name = kind.encode()
    content = hashlib.sha256(seed.encode()).digest()
    blob = struct.pack(">I", len(name)) + name + struct.pack(">I", len(content)) + content
    return kind, blob


def line(names: str, found: tuple[str, bytes], marker: str = "", comment: str = "") -> str:
    words = [marker, names, found[0], base64.b64encode(found[1]).decode(), comment]
    return " ".join(word for word in words if word)


def hashed(name: str, salt: bytes = b"0123456789abcdefghij") -> str:
    digest = hmac.new(salt, name.encode(), "sha1").digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


A = key("ssh-ed25519", "a")
B = key("ecdsa-sha2-nistp256", "b")
C = key("ssh-rsa", "c")


def read(text: str, host: str = "node01", port: int = 22) -> HostKeys:
    return from_known_hosts(text, host, port, "known_hosts")


def trusted(text: str, host: str = "node01", port: int = 22) -> set[tuple[str, bytes]]:
    return set(read(text, host, port).trusted)


class TestNames:
    def test_all_keys_of_a_host_count(self) -> None:
        text = "\n".join(["# comment", "", line("node01,192.0.2.11", A), line("node01", B)])
        assert trusted(text) == {A, B}
        assert trusted(text, "192.0.2.11") == {A}
        assert trusted(text, "node02") == set()

    def test_ports(self) -> None:
        text = line("[node02]:2222,[192.0.2.12]:2222", C)
        assert trusted(text, "node02", 2222) == {C}
        assert trusted(text, "192.0.2.12", 2222) == {C}
        assert trusted(text, "node02") == set()
        assert trusted(text, "node02", 2223) == set()
        assert trusted(line("node02", C), "node02", 2222) == set(), "another sshd, another key"

    def test_hashed(self) -> None:
        text = line(hashed("node04"), A) + "\n" + line(hashed("[node05]:2222"), B)
        assert trusted(text, "node04") == {A}
        assert trusted(text, "node05", 2222) == {B}
        assert trusted(text, "node05") == set()

    @pytest.mark.parametrize(
        ("pattern", "host", "matches"),
        [
            ("*.example.com", "a.example.com", True),
            ("*.example.com", "example.com", False),
            ("node0?", "node01", True),
            ("node0?", "node012", False),
            ("*", "anything", True),
            ("!node01,*", "node01", False),
            ("*,!node01", "node01", False),
            ("*,!node01", "node02", True),
            ("!node01", "node02", False),
            ("NODE01", "node01", True),
            ("node[01]", "node0", False),
            ("node.1", "nodex1", False),
            ("", "node01", False),
        ],
    )
    def test_patterns(self, pattern: str, host: str, matches: bool) -> None:
        assert trusted(f"{line(pattern, A)}\n" if pattern else "", host) == (
            {A} if matches else set()
        )

    def test_a_host_is_no_pattern(self) -> None:
        assert trusted(line("node01", A), "node0?") == set()
        assert trusted(line("node01", A), "*") == set()


class TestBrokenLines:
    @pytest.mark.parametrize(
        "broken",
        [
            "node01",
            "node01 ssh-rsa",
            "node01 ssh-rsa AAAA",
            "node01 ssh-rsa not/base64!",
            "node01 ssh-rsa AAAAB3NzaC1yc2E",
            "node01 ssh-ed25519 " + base64.b64encode(B[1]).decode(),
            "|1|broken ssh-ed25519 " + base64.b64encode(A[1]).decode(),
            "|1|a|b ssh-ed25519 " + base64.b64encode(A[1]).decode(),
            "|2|x|y ssh-ed25519 " + base64.b64encode(A[1]).decode(),
            "@revoked",
            "@unknown node01 ssh-ed25519 " + base64.b64encode(C[1]).decode(),
            "2048 35 1234567890 node01",
            "\x00\x01\x02",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQDg5 node01",
        ],
    )
    def test_does_not_hide_the_others(self, broken: str, caplog: pytest.LogCaptureFixture) -> None:
        text = "\n".join([line("node01", A), broken, line("node01", B)])
        with caplog.at_level(logging.WARNING):
            assert trusted(text) == {A, B}
        if broken.split()[0] != "|2|x|y" and "2048" not in broken:
            assert "known_hosts:2: skipped" in caplog.text

    @given(st.text(max_size=200))
    def test_any_text(self, text: str) -> None:
        extra = line("node01", A)
        assert A in trusted(f"{text}\n{extra}\n")

    @given(st.lists(st.sampled_from("@|1!*?,[]: \tnode01AB=#"), max_size=60))
    def test_any_text_of_its_own_characters(self, characters: list[str]) -> None:
        assert trusted("".join(characters)) == set()


class TestMarkers:
    def test_revoked_is_refused_even_if_trusted(self) -> None:
        for text in (
            line("node01", A) + "\n" + line("node01", A, "@revoked"),
            line("*", A, "@revoked") + "\n" + line("node01", A),
            line(hashed("node01"), A, "@revoked") + "\n" + line("node01", A),
        ):
            found = read(text)
            assert "is revoked in known_hosts" in found.refusal(*A)
            assert found.refusal(*B)

    def test_revoked_elsewhere_does_not_matter(self) -> None:
        found = read(line("node03", A, "@revoked") + "\n" + line("node01", A))
        assert found.refusal(*A) == ""

    def test_an_authority_is_never_a_plain_key(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            found = read(line("*", A, "@cert-authority"))
        assert found.trusted == frozenset()
        assert "knows no key" in found.refusal(*A)
        assert "known_hosts:1: skipped: @cert-authority is not supported" in caplog.text


class TestRefusal:
    def test_says_what_was_shown_and_what_is_known(self) -> None:
        found = read(line("node01", A) + "\n" + line("node01", B))
        assert found.refusal(*A) == found.refusal(*B) == ""
        refusal = found.refusal(*C)
        for shown in (fingerprint(C[1]), fingerprint(A[1]), fingerprint(B[1]), "known_hosts"):
            assert shown in refusal
        assert found.refusal("ssh-rsa", A[1]), "the same blob under another type"

    def test_of_an_unknown_host(self) -> None:
        refusal = read(line("node02", A)).refusal(*A)
        assert "knows no key of it" in refusal


class TestLinesOfASite:
    def test_pinned(self) -> None:
        lines = [" ".join(line("x", k).split()[1:]) for k in (A, B)]
        assert from_lines([lines[0], f"{lines[1]} a comment"]) == {A, B}

    def test_that_are_no_keys(self) -> None:
        """That a line has both words is seen when the site file is read."""
        with pytest.raises(ValueError):
            from_lines(["ssh-ed25519 !!!"])

    def test_of_another_type_than_it_says(self) -> None:
        found = HostKeys(from_lines(["ssh-ed25519 " + base64.b64encode(B[1]).decode()]))
        assert found.refusal(*A)
        assert found.refusal(*B)


def test_fingerprint_is_that_of_openssh(tmp_path: Path) -> None:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    kind, blob, *_ = (tmp_path / "key.pub").read_text().split()
    shown = subprocess.check_output(["ssh-keygen", "-lf", path], text=True)
    assert fingerprint(base64.b64decode(blob)) == shown.split()[1]
    known = tmp_path / "known_hosts"
    known.write_text(f"node04,[node05]:2222 {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    assert known.read_text().startswith("|1|")
    for host, port in (("node04", 22), ("node05", 2222)):
        assert len(from_known_hosts(known.read_text(), host, port, "x").trusted) == 1
