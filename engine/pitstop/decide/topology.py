"""How GPUs are linked, in a form that does not depend on their order, names or slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pitstop.model.fingerprint import Fact
from pitstop.model.inventory import Gpu, Link, number


def pair_label(link: Link | None) -> Fact:
    """Say in one word how two GPUs reach each other: NVLinks, and whether P2P is allowed.

    Where they sit on PCIe is left out: it is another on a node that is otherwise the same.
    """
    if link is None:
        return Fact(None, "not recorded")
    for fact in (link.nvlinks, link.p2p):
        if fact.value is None:
            return fact
    count = number(link.nvlinks)
    nvlinks = f"NV{count}" if count else ("PCIe" if count == 0 else f"NVLink {link.nvlinks.value}")
    return Fact(nvlinks if link.p2p.value == "ok" else f"{nvlinks}, P2P {link.p2p.value}")


class Links:
    """The labels of all pairs of a node."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._by_pair = {frozenset((link.one, link.other)): link for link in links}

    def label(self, one: str, other: str) -> Fact:
        """Say how two GPUs reach each other, by their UUIDs."""
        return pair_label(self._by_pair.get(frozenset((one, other))))


def links_text(gpus: Sequence[Gpu], links: Sequence[Link]) -> Fact:
    """Describe the topology so that equal topologies have equal texts.

    For each GPU it counts what kinds of links it has to which models: `8 x NVIDIA H100 (7 x NV18)`.
    Two topologies with the same counts may still differ; that is for `gpu_map` to find out.
    """
    known = Links(links)
    rows: list[str] = []
    for gpu in gpus:
        if gpu.uuid.value is None or gpu.name.value is None:
            return gpu.uuid if gpu.uuid.value is None else gpu.name
        kinds: Counter[str] = Counter()
        for other in gpus:
            if other is gpu:
                continue
            label = known.label(gpu.uuid.value, other.uuid.value or "")
            if label.value is None:
                return label
            kinds[f"{label.value} to {other.name.value}"] += 1
        row = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
        rows.append(f"{gpu.name.value} ({row or 'alone'})")
    return Fact("; ".join(f"{count} x {row}" for row, count in sorted(Counter(rows).items())))
