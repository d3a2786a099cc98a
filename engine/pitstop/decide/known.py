"""What an entry of the failure catalogue says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Where(StrEnum):
    """At what a line was said.

    `dump` and `restore` are CRIU's. `cuda-restore` includes the unlock after it. `serving` is
    the workload's own output after a restore that succeeded.
    """

    DUMP = "dump"
    RESTORE = "restore"
    CUDA_LOCK = "cuda-lock"
    CUDA_CHECKPOINT = "cuda-checkpoint"
    CUDA_RESTORE = "cuda-restore"
    SERVING = "serving"
    NVML = "nvml"
    KERNEL = "kernel"


CUDA = (Where.CUDA_LOCK, Where.CUDA_CHECKPOINT, Where.CUDA_RESTORE)


class Action(StrEnum):
    """What helps, from what costs least to what costs most.

    `retry`: the same again, later. `fix`: the same again, with something changed that `way`
    names. `other`: not here or not so, but elsewhere or by another strategy. `cold-start`: nothing
    saved can be used.
    """

    RETRY = "retry"
    FIX = "fix"
    OTHER = "other"
    COLD_START = "cold-start"


@dataclass(frozen=True, slots=True)
class Known:
    """A failure that is known.

    Attributes:
        name: for records and statistics; never changes.
        pattern: found in a line of the log.
        cause: in words.
        way: what a person can do.
        references: where it was reported or is documented.
        unfit: the machine is at fault, so its node is not fit for service until it is mended.
    """

    name: str
    where: tuple[Where, ...]
    pattern: str
    cause: str
    action: Action
    way: str
    references: tuple[str, ...]
    unfit: bool = False

    def says(self, line: str) -> bool:
        """Tell whether a line is of this failure."""
        return re.search(self.pattern, line) is not None

    @property
    def hint(self) -> str:
        """Cause and way out, with name and first reference, for an error."""
        return f"{self.cause}: {self.way} [{self.name}, {self.references[0]}]"
