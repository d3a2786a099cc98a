"""Which GPU the state of which other one moves to, and whether there is room for it.

The driver wants a map that covers every GPU its kernel module sees, not only those that the
process used (cuda-python: cuda.core.checkpoint.Process.restore), and moves state between GPUs of
one model only (cuda-checkpoint#18). So the whole of the node has to fit, links included: what
runs there may rely on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pitstop.decide.topology import Links
from pitstop.model.inventory import NOT_SUPPORTED, OFF, Gpu, Inventory, Link, number


@dataclass(frozen=True, slots=True)
class GpuMap:
    """From old GPUs to new ones.

    Attributes:
        pairs: old and new UUID, for every GPU of the node; empty when it is refused.
        refusals: why there is no map, and what to do.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        """Whether the state fits onto what is there."""
        return not self.refusals

    @property
    def moved(self) -> bool:
        """Whether any GPU is another; without that no map is needed."""
        return any(old != new for old, new in self.pairs)


def map_gpus(
    saved: Sequence[Gpu],
    present: Sequence[Gpu],
    saved_links: Sequence[Link] = (),
    present_links: Sequence[Link] = (),
    usable: Collection[str] | None = None,
    used: Collection[str] = (),
) -> GpuMap:
    """Map the GPUs of a checkpoint onto those that are there.

    A GPU that is still there keeps its state where the links allow it.

    Args:
        saved: all GPUs of the node when the checkpoint was made.
        present: all GPUs of the node now.
        saved_links: between the saved ones; needed for two and more.
        present_links: between the present ones.
        usable: UUIDs of the present ones that may take state; None for all.
        used: UUIDs of the saved ones that hold state; the others may go anywhere.
    """
    refusals = (
        *_unfit(saved, "the checkpoint's"),
        *_unfit(present, "this node's"),
    ) or tuple(_counts(saved, present))
    if refusals:
        return GpuMap(refusals=refusals)
    old, new = Links(saved_links), Links(present_links)
    refusals = (
        *_unknown_links(saved, old, "of the checkpoint"),
        *_unknown_links(present, new, "of this node"),
    )
    if refusals:
        return GpuMap(refusals=refusals)
    too_few = f"{len(used)} GPUs are needed, and {len(usable or ())} of {len(present)} may be used"
    if usable is not None and _are_too_few(saved, present, usable, used):
        return GpuMap(refusals=(too_few,))  # at once: a search would try all orders of them
    found = _Search(saved, old, present, new, usable, used).run()
    if found is None and usable is not None and _Search(saved, old, present, new).run():
        return GpuMap(refusals=(f"{too_few}, which are linked in another way",))
    if found is None:
        return GpuMap(
            refusals=(
                "the GPUs are linked in another way than those of the checkpoint, whichever is "
                "taken for which; restore on a node that is built the same",
            )
        )
    return GpuMap(tuple(sorted(found.items())))


def fits(
    needs: Mapping[str, int], present: Inventory, own: Collection[int] = ()
) -> tuple[str, ...]:
    """Say why state does not fit onto the GPUs of this node; empty when it does.

    A restore onto a GPU that is in use fails with "out of memory" and leaves a process that can
    only be killed (cuda-checkpoint#44).

    Args:
        needs: bytes by UUID of the GPU they go to.
        present: the node as it is now.
        own: PIDs that may be on the GPUs; any other compute process is somebody else's.
    """
    return tuple(
        reason
        for uuid, needed in sorted(needs.items())
        for reason in _fits(uuid, needed, present.gpu(uuid), own)
    )


def _fits(uuid: str, needed: int, gpu: Gpu | None, own: Collection[int]) -> Iterable[str]:
    if gpu is None:
        yield f"{uuid} is not there"
        return
    if gpu.lost:
        yield f"{uuid} is lost: reboot the node"
        return
    memory, used = number(gpu.memory), number(gpu.memory_used)
    if memory is None or used is None:
        fact = gpu.memory if memory is None else gpu.memory_used
        yield f"{uuid}: its free memory is not known ({fact})"
    elif memory - used < needed:
        yield f"{uuid} has {memory - used} bytes free, {needed} are needed: end what uses it"
    if gpu.processes_read.value is None or number(gpu.processes_read) is None:
        yield f"{uuid}: whether it is empty is not known ({gpu.processes_read})"
        return
    others = sorted({p.pid for p in gpu.processes if p.kind != "graphics" and p.pid not in own})
    if others:
        yield f"{uuid} is in use by pid {', '.join(map(str, others))}: end what uses it"


def _unfit(gpus: Sequence[Gpu], whose: str) -> Iterable[str]:
    """Say what about single GPUs forbids any map."""
    for gpu in gpus:
        if gpu.lost:
            yield f"{whose} {gpu.label} is lost: reboot the node"
            continue
        for what, fact in (
            ("UUID", gpu.uuid),
            ("model", gpu.name),
            ("memory", gpu.memory),
            ("MIG mode", gpu.mig),
        ):
            if fact.value is None:
                yield f"the {what} of {whose} {gpu.label} is not known ({fact.reason})"
        if gpu.mig.value not in (None, OFF, NOT_SUPPORTED):
            yield (
                f"MIG of {whose} {gpu.label} is {gpu.mig.value}: nothing can be restored there "
                "(cuda-checkpoint#42)"
            )
    counted = Counter(gpu.uuid.value for gpu in gpus if gpu.uuid.value is not None)
    for uuid, count in sorted(counted.items()):
        if count > 1:
            yield f"{count} of {whose} GPUs have the UUID {uuid}"


def _kind(gpu: Gpu) -> tuple[str, str]:
    return gpu.name.value or "", gpu.memory.value or ""


def _counts(saved: Sequence[Gpu], present: Sequence[Gpu]) -> Iterable[str]:
    before, now = Counter(map(_kind, saved)), Counter(map(_kind, present))
    for kind in sorted({*before, *now}):
        if before[kind] != now[kind]:
            name, memory = kind
            yield (
                f"the checkpoint has {before[kind]} {name} of {memory} bytes, this node "
                f"{now[kind]}: models and counts of all its GPUs have to be the same "
                "(cuda-checkpoint#18)"
            )


def _are_too_few(
    saved: Sequence[Gpu], present: Sequence[Gpu], usable: Collection[str], used: Collection[str]
) -> bool:
    needed = Counter(_kind(gpu) for gpu in saved if gpu.uuid.value in used)
    there = Counter(_kind(gpu) for gpu in present if gpu.uuid.value in usable)
    return any(count > there[kind] for kind, count in needed.items())


def _unknown_links(gpus: Sequence[Gpu], links: Links, whose: str) -> Iterable[str]:
    uuids = sorted(gpu.uuid.value or "" for gpu in gpus)
    for at, one in enumerate(uuids):
        for other in uuids[at + 1 :]:
            label = links.label(one, other)
            if label.value is None:
                yield f"how {one} and {other} {whose} are linked is not known ({label.reason})"
                return  # one pair says it; 16 GPUs have 120


class _Search:
    """Finds an assignment that keeps every link, by trying where there is a choice.

    After each choice the candidates of all others are cut down to those with the right link to
    the GPU just placed, and the one with the fewest is next. Where all GPUs are linked alike
    every choice is right, so nothing is ever taken back.
    """

    def __init__(
        self,
        saved: Sequence[Gpu],
        old: Links,
        present: Sequence[Gpu],
        new: Links,
        usable: Collection[str] | None = None,
        used: Collection[str] = (),
    ) -> None:
        self._old, self._new = _matrix(saved, old), _matrix(present, new)
        before, now = _rows(saved, self._old), _rows(present, self._new)
        self._candidates = {
            uuid: frozenset(
                other
                for other, row in now.items()
                if row == before[uuid] and (usable is None or uuid not in used or other in usable)
            )
            for uuid in sorted(before)
        }

    def run(self) -> dict[str, str] | None:
        """Return new UUIDs by old ones."""
        return self._place({}, self._candidates)

    def _place(
        self, placed: dict[str, str], open_: Mapping[str, frozenset[str]]
    ) -> dict[str, str] | None:
        if not open_:
            return placed
        old = min(open_, key=lambda uuid: (len(open_[uuid]), uuid))
        # Itself first, then one that is no other's own: what does not have to move stays.
        for new in sorted(open_[old], key=lambda u: (u != old, u in self._candidates, u)):
            left = {
                other: frozenset(
                    candidate
                    for candidate in candidates
                    if candidate != new and self._new[new, candidate] == self._old[old, other]
                )
                for other, candidates in open_.items()
                if other != old
            }
            if all(left.values()):
                found = self._place({**placed, old: new}, left)
                if found is not None:
                    return found
        return None


def _matrix(gpus: Sequence[Gpu], links: Links) -> dict[tuple[str, str], str]:
    uuids = [gpu.uuid.value or "" for gpu in gpus]
    return {
        (one, other): links.label(one, other).value or ""
        for one in uuids
        for other in uuids
        if one != other
    }


def _rows(
    gpus: Sequence[Gpu], matrix: Mapping[tuple[str, str], str]
) -> dict[str, tuple[tuple[str, str], tuple[tuple[str, tuple[str, str]], ...]]]:
    """Return model and kinds of links of each GPU: only those with the same can be mapped."""
    kinds = {gpu.uuid.value or "": _kind(gpu) for gpu in gpus}
    return {
        uuid: (
            kind,
            tuple(sorted((matrix[uuid, other], kinds[other]) for other in kinds if other != uuid)),
        )
        for uuid, kind in kinds.items()
    }
