"""Shape: counted in machines at the same time, never by the size of the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from pitstop.model.words import Shape


def shape_of(placement: Mapping[str, int]) -> Shape:
    """Tell the shape from the number of GPUs a workload holds on each machine.

    Args:
        placement: machine name to GPU count. A machine counts although its share is 0
            GPUs: processes of the workload run there.

    Raises:
        ValueError: no machine at all, or a negative count.
    """
    if not placement:
        raise ValueError("a workload lies on at least one machine")
    if any(count < 0 for count in placement.values()):
        raise ValueError("a GPU count cannot be negative")
    if len(placement) > 1:
        return Shape.MULTI_NODE
    return Shape.SINGLE_GPU if sum(placement.values()) == 1 else Shape.SINGLE_NODE
