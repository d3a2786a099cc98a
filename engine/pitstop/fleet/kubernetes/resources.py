"""GPUs that a pod holds, from the limits of its containers. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from pitstop.fleet.kubernetes.fields import Field

WHOLE_GPUS = frozenset(
    {"nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi"}
)
"""Resource names of device plugins that count whole GPUs, from their documentation."""

# A slice by MIG, and a share by time slicing or MPS with `renameByDefault` (NVIDIA's device
# plugin, README): each is a part of a GPU that others may use as well.
_SLICE, _SHARE = "nvidia.com/mig-", "nvidia.com/gpu.shared"
# What the API allows of an extended resource: whole numbers, in its canonical form.
_WHOLE = re.compile(r"([0-9]{1,9})(k|M)?")
_FACTORS = {None: 1, "k": 1000, "M": 1_000_000}


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a pod.

    Attributes:
        whole: number of whole GPUs.
        parts: number of MIG slices and shares. How many GPUs they lie on is not known.
        claims: names of resource claims (dynamic resource allocation). What they hold stands
            in other objects, so it is not known here.
    """

    whole: int = 0
    parts: int = 0
    claims: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether it holds, or may hold, any."""
        return bool(self.whole or self.parts or self.claims)

    def __str__(self) -> str:
        words = []
        if self.whole:
            words.append(f"{self.whole} GPU" + ("s" if self.whole > 1 else ""))
        if self.parts:
            words.append(f"{self.parts} part" + ("s" if self.parts > 1 else "") + " of a GPU")
        if self.claims:
            words.append(f"resource claims {', '.join(self.claims)}")
        return " and ".join(words) or "no GPU"


def is_gpu(resource: str) -> bool:
    """Whether a resource is a GPU or a part of one."""
    return resource in WHOLE_GPUS or resource.startswith(_SLICE) or resource == _SHARE


def gpus_of(spec: Field) -> Gpus:
    """Count what the scheduler has reserved for a pod.

    Containers and sidecars run at once; an init container runs alone, beside the sidecars
    before it. So it is the larger of both sums ("Sidecar Containers", Kubernetes docs).

    Raises:
        FieldError: an amount is none.
    """
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.each("initContainers"):
        held = _limits(container)
        policy = container.get("restartPolicy")
        if policy is not None and policy.text() == "Always":
            running += held
        else:
            most |= running + held
    for container in spec.each("containers"):
        running += _limits(container)
    most |= running
    return Gpus(
        whole=sum(count for name, count in most.items() if name in WHOLE_GPUS),
        parts=sum(count for name, count in most.items() if name not in WHOLE_GPUS),
        claims=tuple(claim["name"].name() for claim in spec.each("resourceClaims")),
    )


def _limits(container: Field) -> Counter[str]:
    resources = container.get("resources")
    limits = resources.get("limits") if resources is not None else None
    found: Counter[str] = Counter()
    for name, amount in limits.fields() if limits is not None else ():
        if is_gpu(name):
            found[name] = _whole(amount)
    return found


def _whole(amount: Field) -> int:
    # YAML written by hand may hold a number; the API itself writes a text.
    if isinstance(amount.value, int) and not isinstance(amount.value, bool) and amount.value >= 0:
        return amount.value
    found = _WHOLE.fullmatch(amount.text())
    if found is None:
        raise amount.error(f"{amount.text()[:100]!r} is no number of GPUs")
    return int(found.group(1)) * _FACTORS[found.group(2)]
