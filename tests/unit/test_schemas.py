"""The published schemas are those of the models, and real documents satisfy them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.write_schemas import SCHEMAS, schema_text

DIRECTORY = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.mark.parametrize("name", SCHEMAS)
def test_published_schema_is_the_models(name: str) -> None:
    published = DIRECTORY / f"{name}.json"
    assert published.read_text() == schema_text(name), "run scripts/write_schemas.py"


def test_no_schema_is_left_over() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.json")} == set(SCHEMAS)
