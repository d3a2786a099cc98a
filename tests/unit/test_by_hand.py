"""Where a workload is, asked by hand: by its word of moves, and never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from pitstop.fleet.node import RemoteNode
from pitstop.model.errors import NodeUnreachable, Refused
from pitstop.model.site import Node, Site
from pitstop.steps import by_hand
from pitstop.steps.by_hand import find_home, refuse_if_elsewhere
from tests.unit.test_sequence import FrameTransport

HERE = {"running": True, "moved": None}
RESTS = {"running": False, "moved": None}
DOWN = NodeUnreachable("node", "no route to it")


def moved(to: str) -> dict[str, Any]:
    return {"running": False, "moved": {"to": to, "run": "r1"}}


def site(monkeypatch: pytest.MonkeyPatch, **nodes: Any) -> Site:
    """A site whose nodes say this of the workload `web`, placed on gpu1."""

    def reach(name: str, spec: Node) -> RemoteNode:
        def answer(_request: dict[str, Any]) -> dict[str, Any]:
            if isinstance(nodes[name], Exception):
                raise nodes[name]
            found: dict[str, Any] = nodes[name]
            return found

        return RemoteNode(name, spec, FrameTransport(answer))

    monkeypatch.setattr(by_hand, "RemoteNode", reach)
    web = {
        "placement": {"gpu1": 1},
        "spares": [{"node": "gpu2"}],
        "launch": {"command": ["serve"]},
        "ready": {"command": ["true"]},
    }
    return Site.model_validate(
        {
            "schema": "pitstop/site/v1",
            "name": "lab",
            "nodes": {name: {} for name in nodes},
            "workloads": {"web": web},
        }
    )


@pytest.mark.parametrize(
    ("gpu1", "gpu2", "expected"),
    [
        (HERE, RESTS, "gpu1"),
        (RESTS, RESTS, "gpu1"),
        (RESTS, moved("gpu1"), "gpu1"),
        (RESTS, DOWN, "gpu1"),
        (moved("gpu2"), HERE, "gpu2"),
        (moved("gpu2"), RESTS, "gpu2"),
    ],
)
def test_it_is_where_its_own_node_says(
    monkeypatch: pytest.MonkeyPatch, gpu1: Any, gpu2: Any, expected: str
) -> None:
    node, spec = find_home(site(monkeypatch, gpu1=gpu1, gpu2=gpu2), "web")
    assert (node, list(spec.placement)) == (expected, [expected])


@pytest.mark.parametrize(
    ("gpu1", "gpu2", "words"),
    [
        (DOWN, RESTS, "whether it is on gpu1 cannot be told"),
        (moved("gpu2"), DOWN, "whether it is on gpu2 cannot be told"),
        (moved("gpu2"), moved("gpu1"), "hand-over between gpu1 and gpu2 was cut off"),
        (moved("gpu9"), RESTS, "moved to gpu9, no home of it"),
    ],
)
def test_where_it_is_not_known_it_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, gpu1: Any, gpu2: Any, words: str
) -> None:
    with pytest.raises(Refused, match=words):
        find_home(site(monkeypatch, gpu1=gpu1, gpu2=gpu2), "web")


def test_nothing_is_brought_back_that_runs_or_may_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_if_elsewhere(site(monkeypatch, gpu1=RESTS, gpu2=HERE), "web", "gpu2")
    for gpu1, words in ((HERE, "it runs on gpu1"), (DOWN, "cannot be told")):
        with pytest.raises(Refused, match=words):
            refuse_if_elsewhere(site(monkeypatch, gpu1=gpu1, gpu2=RESTS), "web", "gpu2")
