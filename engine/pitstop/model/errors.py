"""The one exception tree.

PitstopError
├── BadInput          exit 2: a file, a flag or a request is wrong; nothing was touched
├── Refused           exit 3: a gate or a policy says no; nothing was touched
│   └── NotDrained         a node is not, or no longer, closed and empty
├── TemporaryError    exit 1: trying again may help
│   ├── NodeUnreachable
│   ├── ConnectionLost     the command may or may not have run: ask the node
│   ├── DeadlineExceeded
│   ├── Busy               another operation works on the same subject
│   ├── PortTaken          somebody else listens where the workload did
│   ├── TransferFailed     a checkpoint did not come to another node, which can be asked
│   ├── TargetLost         the node that a workload was to move to cannot be asked
│   └── Interrupted        the operation's process or its node ended before a result
└── PermanentError    exit 1: trying again changes nothing
    ├── HostKeyRefused
    ├── CheckpointFailed
    ├── RestoreFailed
    ├── NotReady
    ├── InvalidCheckpoint
    ├── MaintenanceFailed
    ├── ValidationFailed
    ├── WorkloadGone
    ├── EndedInDump        the workload died before or while it was being saved
    ├── Cancelled
    └── Unexpected         anything that is not a PitstopError; always a bug or a broken machine

Errors cross from node to controller as JSON (`to_json`, `from_json`), so that the branch a
run takes depends on the class and not on a text.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class PitstopError(Exception):
    """Base of all errors that pitstop raises on purpose.

    Attributes:
        subject: what it is about (a node, a workload, a file).
        cause: what was found, in words.
        hint: what a person can do next; may be empty.
        retryable: whether trying again may help: what the class says, unless the failure is
            known (`judged`).
        failure: its names in the catalogue of known failures; empty when it is unknown.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retryable: bool = False
    registry: ClassVar[dict[str, type[PitstopError]]] = {}

    def __init__(self, subject: str, cause: str, hint: str = "") -> None:
        super().__init__(subject, cause, hint)
        self.subject = subject
        self.cause = cause
        self.hint = hint
        self.evidence: dict[str, Any] = {}
        """What was seen up to the failure, for the record; not part of the error itself."""

    failure: str = ""

    def judged(self, failure: str, retryable: bool | None) -> Self:
        """Note the names of a known failure, which decide over the class. Returns itself."""
        self.failure = failure
        if failure and retryable is not None:
            self.retryable = retryable
        return self

    def __init_subclass__(cls) -> None:
        PitstopError.registry[cls.code] = cls

    def __str__(self) -> str:
        text = f"{self.subject}: {self.cause}"
        return f"{text} ({self.hint})" if self.hint else text

    def to_json(self) -> dict[str, Any]:
        """Return the error as plain data."""
        return {
            "code": self.code,
            "subject": self.subject,
            "cause": self.cause,
            "hint": self.hint,
            "retryable": self.retryable,
            **({"failure": self.failure} if self.failure else {}),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> PitstopError:
        """Rebuild an error; an unknown code (a newer node) becomes `Unexpected`.

        What may be tried again is believed only of a known failure: its node knows it. A refusal
        stays one.
        """
        kind = PitstopError.registry.get(str(data.get("code")), Unexpected)
        error = kind(
            str(data.get("subject", "?")), str(data.get("cause", "?")), str(data.get("hint", ""))
        )
        if not isinstance(error, TemporaryError | PermanentError):
            return error
        return error.judged(str(data.get("failure", "")), data.get("retryable") is True)


class BadInput(PitstopError):
    """Something a person wrote is wrong. The subject names file and line."""

    code = "bad_input"
    exit_code = 2


class Refused(PitstopError):
    """A gate or a policy says no."""

    code = "refused"
    exit_code = 3


class NotDrained(Refused):
    """A node is not, or no longer, closed to new work and empty; no maintenance has begun."""

    code = "not_drained"


class TemporaryError(PitstopError):
    """Trying again may help."""

    code = "temporary"
    retryable = True


class NodeUnreachable(TemporaryError):
    """No connection could be made; nothing was sent."""

    code = "node_unreachable"


class ConnectionLost(TemporaryError):
    """The connection ended after something was sent: its effect is unknown."""

    code = "connection_lost"


class DeadlineExceeded(TemporaryError):
    """A wait with a deadline ended without its event."""

    code = "deadline"


class Busy(TemporaryError):
    """Another living operation works on the same subject."""

    code = "busy"


class PortTaken(TemporaryError):
    """Somebody else listens on a port that the workload needs; it may go away."""

    code = "port_taken"


class TransferFailed(TemporaryError):
    """A checkpoint could not be brought to another node, though that node answers."""

    code = "transfer_failed"


class TargetLost(TemporaryError):
    """The node that a workload was to move to cannot be asked, and nothing runs there."""

    code = "target_lost"


class Interrupted(TemporaryError):
    """An operation ended without a result: its process was killed or its node rebooted.

    Steps that are idempotent may be tried again; a runbook's command may not.
    """

    code = "interrupted"


class PermanentError(PitstopError):
    """Trying again changes nothing."""

    code = "permanent"


class HostKeyRefused(PermanentError):
    """A node showed a host key that is unknown, changed or revoked."""

    code = "host_key"


class CheckpointFailed(PermanentError):
    """A dump failed or was given up; the workload runs on."""

    code = "checkpoint_failed"


class RestoreFailed(PermanentError):
    """The processes could not be brought back from their images."""

    code = "restore_failed"


class NotReady(PermanentError):
    """A workload started but never became ready to serve, or answers differently."""

    code = "not_ready"


class InvalidCheckpoint(PermanentError):
    """An image, its manifest or its signature is not what was written, or it is used up."""

    code = "invalid_checkpoint"


class MaintenanceFailed(PermanentError):
    """A step of the runbook failed."""

    code = "maintenance_failed"


class ValidationFailed(PermanentError):
    """A node is not fit to return to service."""

    code = "validation_failed"


class WorkloadGone(PermanentError):
    """The workload does not run, or is not known, where it was expected."""

    code = "workload_gone"


class EndedInDump(PermanentError):
    """The workload died before or while it was being saved: there is no usable image of it.

    Not one that ended by itself (`WorkloadGone`): this one is brought back.
    """

    code = "ended_in_dump"


class Cancelled(PermanentError):
    """An operation was cancelled on request."""

    code = "cancelled"


class Unexpected(PermanentError):
    """Not foreseen: a bug, or a machine that does not behave."""

    code = "unexpected"
