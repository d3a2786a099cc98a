"""The cells of a system as pytest's parameters."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet

from tests.rigs.matrix_cells import IN_THE_USUAL_SUITES, cells


def parameters(system: str) -> list[ParameterSet]:
    """Those that make sense, marked unless the usual suites run them."""
    return [
        pytest.param(
            cell,
            id=cell.id,
            marks=() if cell.id in IN_THE_USUAL_SUITES else pytest.mark.matrix,
        )
        for cell in cells(system)
        if not cell.reason
    ]
