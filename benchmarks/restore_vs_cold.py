"""Restore to ready against cold start to ready, of a real inference server.

    .venv-prefect/bin/python -m benchmarks.restore_vs_cold [--rounds N] [--json]

llama.cpp with a 270M model, on a node made of namespaces, over SSH. Each round: cold start,
checkpoint, restore, stop. Both times run from just before the launcher is started, in the
same operation on the node, to the first answer to a real completion. Caches are warm for
both, which favours the cold start.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import median, show, spread
from pitstop.demo.setup import NODE, WORKLOAD, write_site
from pitstop.fleet.node import RemoteNode
from pitstop.lab.lab import Lab
from pitstop.model.site import Site
from pitstop.steps.files import load_site
from pitstop.steps.specs import bring_up_arguments, checkpoint_arguments


def one_round(site: Site, node: RemoteNode, number: int) -> dict[str, Any]:
    spec = site.workloads[WORKLOAD]
    run, checkpoint = f"bench-{number}", f"{WORKLOAD}.bench.{number}"

    def operate(kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return node.operate(f"{run}.{kind}", kind, arguments, 300)

    cold = operate("cold-start", bring_up_arguments(WORKLOAD, spec, run, None))
    saved = operate(
        "checkpoint",
        checkpoint_arguments(WORKLOAD, spec, run, checkpoint, NODE, ()),
    )
    restored = operate("restore", bring_up_arguments(WORKLOAD, spec, run, checkpoint))
    operate("stop", {"workload": WORKLOAD, "run": run, "signal": "TERM", "grace": 20})
    node.call("release", workload=WORKLOAD, run=run)
    assert restored["proof"] == "equal"
    return {
        "cold": cold["ready_seconds"],
        "restore": restored["ready_seconds"],
        "frozen": saved["frozen_seconds"],
        "bytes": saved["image_bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pitstop-bench-") as directory:
        root = Path(directory)
        with Lab(root / "lab", [NODE]) as lab:
            site = load_site(write_site(root, lab).site)
            node = RemoteNode(NODE, site.nodes[NODE])
            try:
                rounds = [one_round(site, node, n) for n in range(arguments.rounds)]
            finally:
                node.close()
    cold, restore = [r["cold"] for r in rounds], [r["restore"] for r in rounds]
    row = {
        "workload": "llama.cpp, Gemma 3 270M",
        "image (MiB)": f"{median([r['bytes'] for r in rounds]) / 2**20:.0f}",
        "cold start to ready (s)": spread(cold),
        "restore to ready (s)": spread(restore),
        "cold : restore": f"{median(cold) / median(restore):.2f}",
    }
    show(
        f"Restore against cold start, {len(rounds)} rounds in turn",
        [row],
        {"rounds": rounds, "ratio": median(cold) / median(restore)},
    )


if __name__ == "__main__":
    main()
