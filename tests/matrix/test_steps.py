"""The kill matrix without a workflow system: `pitstop run`, then `pitstop resume`."""

from __future__ import annotations

import pytest

from tests.rigs.matrix import Scene
from tests.rigs.matrix_cells import Cell
from tests.rigs.matrix_command import play
from tests.rigs.matrix_params import parameters
from tests.rigs.site import SiteRig


@pytest.mark.parametrize("cell", parameters("steps"))
def test_cell(rig: SiteRig, cell: Cell) -> None:
    play(cell, Scene(rig, cell.step), "steps", {})
