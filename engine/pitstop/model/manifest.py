"""The manifest of a checkpoint: what was saved, against what it is valid, byte for byte."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pitstop.model.base import Model, Name
from pitstop.model.words import Connections

SCHEMA = "pitstop/manifest/v1"


class ImageFile(Model):
    """One file of the image directory."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=255)]
    size: Annotated[int, Field(ge=0)]
    blake3: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class LogLength(Model):
    """Length of an append-mode output file when the workload was frozen."""

    path: str
    length: Annotated[int, Field(ge=0)]


class CudaSaved(Model):
    """The GPU state in a checkpoint.

    Attributes:
        pids: of the CUDA processes, in the PID namespace they were saved in.
        in_turn: the driver has to take them one after another.
        limits: seconds that its calls may take, see `pitstop.model.cuda.CudaLimits`.
        inventory: all GPUs of the node, as `pitstop.model.inventory.Inventory.to_json`.
        holds: UUID of a GPU to bytes that the workload held there.
        trace: every call until all was checkpointed, as `CudaAnswer.to_json`.
    """

    pids: Annotated[tuple[int, ...], Field(min_length=1)]
    in_turn: bool
    limits: dict[str, float]
    inventory: dict[str, Any]
    holds: dict[str, int]
    trace: tuple[dict[str, Any], ...]


class Manifest(Model):
    """What a checkpoint holds.

    Attributes:
        generation: which start of the workload this is a picture of. Only valid while no
            later start has happened (DESIGN, invariant 2).
        probes: where the engine's and the model's version were read, to read them again.
        tolerate: host fields the site's policy lets differ.
        root_pid: of the saved tree, in the PID namespace it was saved in.
        pids: all PIDs of the tree, there.
        options: CRIU options that dump and restore must share.
        proof: the recorded answer to the proof request; None without one.
        frozen_seconds: from the start of the dump until the images were complete.
        cuda: None where there was no CUDA process.
    """

    schema_: Literal["pitstop/manifest/v1"] = Field(alias="schema", default="pitstop/manifest/v1")
    checkpoint: Name
    workload: Name
    owner: int = 0
    node: str
    boot_id: str
    run: str
    created: str
    generation: Annotated[int, Field(ge=0)]
    shape: str
    fingerprint: dict[str, dict[str, str]]
    probes: dict[str, dict[str, Any]]
    tolerate: tuple[str, ...]
    root_pid: Annotated[int, Field(ge=2)]
    pids: tuple[int, ...]
    connections: Connections
    options: tuple[str, ...]
    launch_digest: str
    logs: tuple[LogLength, ...]
    proof: str | None
    files: Annotated[tuple[ImageFile, ...], Field(min_length=1)]
    total_bytes: int
    tools: dict[str, str]
    frozen_seconds: float
    dump_seconds: float
    cuda: CudaSaved | None = None
