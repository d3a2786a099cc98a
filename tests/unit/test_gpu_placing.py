"""What a workload holds on GPUs is never taken for less, and goes only where it may."""

from __future__ import annotations

from pitstop.model.fingerprint import Fact
from pitstop.model.inventory import Answer, Gpu, GpuProcess, Inventory, Link
from pitstop.node.cuda.placing import holdings, place, place_for

GIB = 1 << 30
MODEL = "NVIDIA H100 80GB HBM3"


def gpu(name: str, *processes: GpuProcess, used: int = 0) -> Gpu:
    return Gpu(
        index=0,
        uuid=Fact(f"GPU-{name}"),
        name=Fact(MODEL),
        memory=Fact(str(80 * GIB)),
        memory_used=Fact(str(used)),
        mig=Fact("off"),
        pci=Fact(f"0000:0{name[-1]}:00.0"),
        processes_read=Fact(str(len(processes))),
        processes=processes,
    )


def node(*gpus: Gpu) -> Inventory:
    links = tuple(
        Link(str(a.uuid.value), str(b.uuid.value), Fact("18"), Fact("ok"))
        for at, a in enumerate(gpus)
        for b in gpus[at + 1 :]
    )
    return Inventory(Answer.OK, gpus=gpus, links=links)


def process(pid: int, memory: int | None) -> GpuProcess:
    size = Fact(str(memory)) if memory is not None else Fact(None, "not available")
    return GpuProcess(pid, "compute", size)


def test_only_ones_own_memory_counts_where_the_driver_tells_whose_it_is() -> None:
    found = node(gpu("a0", process(7, GIB), process(9, 5 * GIB), used=6 * GIB), gpu("a1", used=GIB))
    assert holdings(found, [7]) == {"GPU-a0": GIB}


def test_all_that_is_in_use_counts_where_it_does_not() -> None:
    """As in a container, where PIDs are others, and where the size is not available."""
    unsized = node(gpu("a0", process(7, None), used=6 * GIB), gpu("a1", used=GIB))
    assert holdings(unsized, [7]) == {"GPU-a0": 6 * GIB}
    strangers = node(gpu("a0", process(4711, GIB), used=6 * GIB), gpu("a1"))
    assert holdings(strangers, [7]) == {"GPU-a0": 6 * GIB}


def test_state_goes_to_a_gpu_that_is_free_and_may_be_used() -> None:
    before = node(gpu("a0"), gpu("a1"))
    present = node(gpu("b0", process(5, GIB), used=GIB), gpu("b1"))
    found = place(before, {"GPU-a0": GIB}, present)
    assert (dict(found.gpu_map)["GPU-a0"], found.takes) == ("GPU-b1", ("GPU-b1",))
    promised = place(before, {"GPU-a0": GIB}, present, reserved=["GPU-b1"])
    assert "in use by pid 5" in " ".join(promised.refusals)
    hidden = place_for(before, {"GPU-a0": GIB}, present, {"CUDA_VISIBLE_DEVICES": "GPU-b0"})
    assert hidden.refusals


def test_what_has_not_moved_needs_no_map() -> None:
    here = node(gpu("a0"), gpu("a1"))
    found = place(here, {"GPU-a0": GIB}, here)
    assert (dict(found.gpu_map), found.takes, found.refusals) == ({}, ("GPU-a0",), ())


def test_a_list_that_nobody_can_resolve_forbids_nothing_to_what_stays() -> None:
    """`7` is no GPU of this node; those that it was on are all here."""
    here = node(gpu("a0"), gpu("a1"))
    environment = {"CUDA_VISIBLE_DEVICES": "7"}
    assert not place_for(here, {"GPU-a0": GIB}, here, environment).refusals
    elsewhere = place_for(node(gpu("c0"), gpu("c1")), {"GPU-c0": GIB}, here, environment)
    assert "7 is not a GPU of this node" in elsewhere.refusals[0]
