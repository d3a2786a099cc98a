"""The closed vocabularies of the project (DESIGN, section 1)."""

from __future__ import annotations

from enum import StrEnum


class Shape(StrEnum):
    """How a workload's GPUs lie: counted in machines at the same time."""

    SINGLE_GPU = "single-gpu"
    SINGLE_NODE = "single-node"
    MULTI_NODE = "multi-node"


class Strategy(StrEnum):
    """What the plan intends for a workload."""

    RESTORE = "checkpoint-restore"
    MIGRATE = "checkpoint-migrate"
    COLD_START = "cold-start"
    APPLICATION = "application-level"
    WAIT = "wait"
    REQUEUE = "requeue"
    LEAVE = "leave"
    REFUSE = "refuse"


class Outcome(StrEnum):
    """How a workload ended."""

    RESTORED = "restored"
    MIGRATED = "migrated"
    COLD_STARTED = "cold-started"
    REQUEUED = "requeued"
    UNTOUCHED = "untouched"
    LOST = "lost"


class Verb(StrEnum):
    """What a step does."""

    PRECHECK = "precheck"
    DRAIN = "drain"
    SIGNAL = "signal"
    CHECKPOINT = "checkpoint"
    TRANSFER = "transfer"
    REQUEUE = "requeue"
    EVICT = "evict"
    STOP = "stop"
    WAIT = "wait"
    MAINTAIN = "maintain"
    ROLLBACK = "rollback"
    VALIDATE = "validate"
    GATE = "gate"
    RESTORE = "restore"
    COLD_START = "cold_start"
    RETURN_TO_SERVICE = "return_to_service"
    RELEASE = "release"
    QUARANTINE = "quarantine"


class Judgement(StrEnum):
    """What the gate says of one differing field."""

    INVALID = "invalid"
    TOLERATED = "tolerated"


class OnCheckpointFailure(StrEnum):
    """What happens to a workload that cannot be saved."""

    ABORT = "abort"
    COLD_START = "cold-start"
    WAIT = "wait"


class Connections(StrEnum):
    """What becomes of established TCP connections."""

    REFUSE = "refuse"
    CLOSE = "close"
    KEEP = "keep"
