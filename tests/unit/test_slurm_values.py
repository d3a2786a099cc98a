"""Single values as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.fleet.slurm.gres import Gres, gpus, parse_gres, parse_tres, requested_gpus, tres_gpus
from pitstop.fleet.slurm.hostlist import LIMIT, expand
from pitstop.fleet.slurm.values import Amount, duration, instant, memory, minutes, number


class TestHostlist:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("one", ["one"]),
            ("b[08-10]", ["b08", "b09", "b10"]),
            ("b[3,011]", ["b3", "b011"]),
            ("b[9-11]", ["b9", "b10", "b11"]),
            ("r1-a[01-02,05],r2-b[7],login", ["r1-a01", "r1-a02", "r1-a05", "r2-b7", "login"]),
            ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
            ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
            *((nothing, []) for nothing in ("", "(null)", "None", "None assigned", "N/A")),
        ],
    )
    def test_expands(self, text: str, names: list[str]) -> None:
        assert list(expand(text)) == names

    @pytest.mark.parametrize(
        "text",
        [
            *("n[1-2", "n1]", "n[[1]]", "n[]", "n[a]", "n[2-1]", "n[1-]", "n 1", "n[1],", ",n"),
            *(
                "n;rm",
                "$(id)",
                "n/../x",
                "né",
                "n[1-99999999999]",
                "n[1-400]m[1-400]",
                "n[१-२]",
                "\0",
            ),
        ],
    )
    def test_what_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            expand(text)

    def test_as_many_as_a_cluster_has(self) -> None:
        assert len(expand(f"n[1-{LIMIT}]")) == LIMIT

    @given(
        st.from_regex(r"[a-z]{1,8}-?", fullmatch=True),
        st.lists(st.integers(0, 9999), min_size=1, max_size=30, unique=True),
        st.integers(1, 6),
    )
    def test_every_name_comes_back(self, prefix: str, numbers: list[int], width: int) -> None:
        text = ",".join(str(number).zfill(width) for number in numbers)
        expected = [f"{prefix}{str(number).zfill(width)}" for number in numbers]
        assert list(expand(f"{prefix}[{text}]")) == expected


class TestGres:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("gpu:4", [Gres("gpu", "", 4)]),
            ("gpu:4(S:1)", [Gres("gpu", "", 4)]),
            ("gpu:a100:2(S:0-1)", [Gres("gpu", "a100", 2)]),
            ("gpu:l40s:3(IDX:1,4-5)", [Gres("gpu", "l40s", 3, (1, 4, 5))]),
            ("gpu:l40s:0(IDX:N/A)", [Gres("gpu", "l40s", 0, ())]),
            ("gpu:a:1(S:0),gpu:b:2(S:1)", [Gres("gpu", "a", 1), Gres("gpu", "b", 2)]),
            ("gpu:a:2(IDX:0,3),shard:8", [Gres("gpu", "a", 2, (0, 3)), Gres("shard", "", 8)]),
            ("gres:gpu:2", [Gres("gpu", "", 2)]),
            ("gres/gpu:h200:8", [Gres("gpu", "h200", 8)]),
            ("gpu", [Gres("gpu", "", 1)]),
            ("gpu:4090:2", [Gres("gpu", "4090", 2)]),
            ("gpu:(null):8(IDX:0-7)", [Gres("gpu", "", 8, tuple(range(8)))]),
            ("shard:h100:2(1/8,1/8)", [Gres("shard", "h100", 2)]),
            ("bandwidth:lustre:no_consume:4G", [Gres("bandwidth", "lustre", 4 << 30)]),
            *((nothing, []) for nothing in ("", "(null)", "N/A")),
        ],
    )
    def test_reads(self, text: str, expected: list[Gres]) -> None:
        assert list(parse_gres(text)) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "gpu:8(X:1)",
            "gpu:8(S:0",
            "gpu:8)",
            "gpu:a:b:c",
            ":8",
            "gpu:8(IDX:a)",
            "gpu:2(IDX:3-1)",
            "gpu:८",
            "gpu:8,,gpu:1",
        ],
    )
    def test_never_fewer_gpus_for_what_is_not_understood(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            parse_gres(text)

    @given(st.lists(st.tuples(st.sampled_from(["", "h100", "b200"]), st.integers(0, 64))))
    def test_gpus_are_added_up(self, found: list[tuple[str, int]]) -> None:
        text = ",".join(f"gpu:{kind}:{n}(S:0-1)" if kind else f"gpu:{n}" for kind, n in found)
        assert gpus(parse_gres(text)) == sum(n for _, n in found)

    @pytest.mark.parametrize(
        ("text", "count"),
        [
            ("cpu=4,mem=16G,node=1,billing=4", 0),
            ("cpu=4,gres/gpu=2", 2),
            ("cpu=4,gres/gpu:h100=3", 3),
            ("gres/gpu:h100=3,gres/gpu=3", 3),
            ("gres/gpu:a=1,gres/gpu:b=2,gres/gpumem=80G", 3),
            ("", 0),
        ],
    )
    def test_trackable(self, text: str, count: int) -> None:
        assert tres_gpus(text) == count

    @pytest.mark.parametrize(
        ("text", "count"),
        [
            ("cpu=8", 0),
            ("cpu:24", 0),
            ("gres:gpu:2", 2),
            ("gres/gpu:h100:2", 2),
            ("gres/gpu:h100=2", 2),
            ("cpu=8,mem=4G,gres/gpu=1", 1),
            ("", 0),
        ],
    )
    def test_requested(self, text: str, count: int) -> None:
        assert requested_gpus(text) == count

    @pytest.mark.parametrize("text", ["cpu", "gres/gpu=", "gres/gpu=many", "=4"])
    def test_trackable_that_is_not_understood(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            tres_gpus(text)

    def test_memory_stays_text(self) -> None:
        assert parse_tres("cpu=4,mem=1T")["mem"] == "1T"


class TestNumber:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (7, 7),
            ("7", 7),
            (0, 0),
            (None, None),
            ({"set": True, "infinite": False, "number": 7}, 7),
            ({"set": True, "infinite": False, "number": "7"}, 7),
            ({"set": False, "infinite": False, "number": 0}, None),
            ({"set": False, "infinite": True, "number": 0}, "unlimited"),
            ({"set": True, "infinite": True, "number": 3}, "unlimited"),
            ({"set": True, "infinite": False, "number": None}, None),
            ({}, None),
            (4294967294, None),
            (4294967295, "unlimited"),
            (18446744073709551614, None),
        ],
    )
    def test_reads(self, value: object, expected: Amount) -> None:
        assert number(value) == expected

    @pytest.mark.parametrize("value", [True, 1.5, "seven", [7], {"number": "x"}, {"number": True}])
    def test_what_is_none_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match="no number"):
            number(value)

    @pytest.mark.parametrize("value", [0, None, {"infinite": True, "set": False, "number": 0}])
    def test_no_moment_is_1970(self, value: object) -> None:
        assert instant(value) is None

    def test_minutes_are_returned_in_seconds(self) -> None:
        assert (minutes(90), minutes(None)) == (5400, None)
        assert minutes({"infinite": True}) == "unlimited"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("12:34", 754),
        ("1:02:03", 3723),
        ("02:10:44", 7844),
        ("3-00", 259200),
        ("3-01:30", 264600),
        ("365-00:00:00", 31536000),
        ("00:00.250", 0),
        ("UNLIMITED", "unlimited"),
        *((unknown, None) for unknown in ("INVALID", "Partition_Limit", "N/A", "", "Unknown")),
    ],
)
def test_durations(text: str, seconds: Amount) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["soon", "1:2:3:4", "-1", "1-", "1:", "१:२", "unlimited?"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration(text)


@given(st.integers(0, 10_000), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_any_duration(days: int, hours: int, minute: int, seconds: int) -> None:
    text = f"{days}-{hours:02}:{minute:02}:{seconds:02}"
    assert duration(text) == ((days * 24 + hours) * 60 + minute) * 60 + seconds


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("4000Mc", 4000 * 8),
        ("4Gn", 4096 * 2),
        ("64G", 65536),
        ("1T", 1 << 20),
        ("512", 512),
        ("2147487648Mn", 4000 * 8),  # 2^31 + 4000, as one version writes 4000 per CPU
        ("4294971296M", None),
        *((unknown, None) for unknown in ("", "0", "?")),
    ],
)
def test_memory_is_never_petabytes(text: str, mib: int | None) -> None:
    assert memory(text, cpus=8, nodes=2) == mib


def test_no_memory() -> None:
    with pytest.raises(ValueError, match="no amount"):
        memory("lots", 1, 1)
