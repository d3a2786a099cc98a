"""Shape: counted in machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop.decide.shape import shape_of
from pitstop.model.words import Shape

placements = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 64), min_size=1)


@pytest.mark.parametrize(
    ("placement", "shape"),
    [
        ({"a": 1}, Shape.SINGLE_GPU),
        ({"a": 0}, Shape.SINGLE_NODE),
        ({"a": 2}, Shape.SINGLE_NODE),
        ({"a": 8}, Shape.SINGLE_NODE),
        ({"a": 1, "b": 1}, Shape.MULTI_NODE),
        ({"a": 1, "b": 0}, Shape.MULTI_NODE),
        ({"a": 0, "b": 0}, Shape.MULTI_NODE),
    ],
)
def test_shape(placement: dict[str, int], shape: Shape) -> None:
    assert shape_of(placement) is shape


@given(placements)
def test_several_machines_are_multi_node_and_one_never_is(placement: dict[str, int]) -> None:
    assert (shape_of(placement) is Shape.MULTI_NODE) == (len(placement) > 1)


@given(placements)
def test_names_and_order_do_not_matter(placement: dict[str, int]) -> None:
    renamed = {f"m{i}": n for i, n in enumerate(reversed(placement.values()))}
    assert shape_of(renamed) is shape_of(placement)


def test_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one machine"):
        shape_of({})


@pytest.mark.parametrize("placement", [{"a": -1}, {"a": 1, "b": -1}])
def test_negative_counts_are_errors(placement: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        shape_of(placement)
