"""The kill matrix under Prefect: `pitstop run --on prefect`, then the flow again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rigs.matrix import Scene
from tests.rigs.matrix_cells import Cell
from tests.rigs.matrix_command import play
from tests.rigs.matrix_params import parameters
from tests.rigs.matrix_prefect import prefect_server
from tests.rigs.site import SiteRig


@pytest.fixture(scope="session")
def server() -> Iterator[dict[str, str]]:
    with prefect_server() as environment:
        yield environment


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cell", parameters("prefect"))
def test_cell(server: dict[str, str], rig: SiteRig, cell: Cell) -> None:
    play(cell, Scene(rig, cell.step), "prefect", server)
