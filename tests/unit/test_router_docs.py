"""The examples of docs/routers.md are what the model takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pitstop.model.site import Site

PAGE = (Path(__file__).parents[2] / "docs" / "routers.md").read_text()
EXAMPLES: list[dict[str, Any]] = [
    yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.S | re.M)
]
FIRST, PARTS = EXAMPLES[0], EXAMPLES[1:]


def merged(base: Any, part: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(part, dict):
        return part
    return {**base, **{key: merged(base.get(key), value) for key, value in part.items()}}


def test_first_example_is_a_whole_site() -> None:
    site = Site.model_validate(FIRST)
    assert site.workloads["llm"].drain.router is not None


@pytest.mark.parametrize(
    "part", PARTS, ids=lambda part: next(iter(part["routers"].values()))["kind"]
)
def test_every_other_example_fits_into_it(part: dict[str, Any]) -> None:
    # A router's example is alone: of the first one's fields none is left.
    site = Site.model_validate(merged({**FIRST, "routers": {}}, part))
    at = site.workloads["llm"].drain.router
    assert at is not None
    assert site.routers[at.name].kind == next(iter(part["routers"].values()))["kind"]


def test_every_kind_has_an_example() -> None:
    kinds = {router["kind"] for example in EXAMPLES for router in example["routers"].values()}
    routers = Site.model_json_schema()["properties"]["routers"]["additionalProperties"]
    assert kinds == set(routers["discriminator"]["mapping"])
