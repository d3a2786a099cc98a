"""Slurm as a scheduler of nodes: look, drain, give back. Only what is ours is undone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pitstop.fleet.scheduler import Claim, Job, JobScheduler, Standing, claim_of, mark
from pitstop.fleet.slurm import commands
from pitstop.fleet.slurm.records import (
    NotUnderstood,
    SlurmJob,
    SlurmNode,
    read_jobs,
    read_jobs_squeue,
    read_nodes,
    read_nodes_text,
)
from pitstop.fleet.transport import Completed, Transport
from pitstop.model.errors import (
    BadInput,
    PermanentError,
    PitstopError,
    Refused,
    TemporaryError,
)

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds for one command. Big sites answer slowly; one that does not answer says nothing."""

_NO_JSON = ("unrecognized option", "unknown option", "serializer", "plugin", "JSON")
# What Slurm writes behind the reason of a node that it reboots.
_REBOOTED = re.compile(r"(?: : reboot (?:issued|complete|timed out))+\Z")
_NOT_FOUND = 127
_CLOSED = frozenset({"DRAIN", "FAIL", "POWER_DRAIN"})


class SlurmRefused(TemporaryError):
    """A command of Slurm failed: what it was to do was not done."""

    code = "slurm_command"


class Slurm(JobScheduler):
    """One cluster, through the commands of a machine that has them.

    Args:
        transport: the way to that machine.
        conf: where its slurm.conf is, if it is not where Slurm looks.
        path: the directory of its commands, if they are in none of the usual ones.
    """

    def __init__(self, transport: Transport, conf: str = "", path: str = "") -> None:
        self._transport = transport
        self._conf = conf
        self._path = path
        self._version: commands.Version | None = None
        self._has_json = True

    @property
    def version(self) -> commands.Version:
        """Year and month of its release.

        Raises:
            BadInput: it is older than pitstop can read.
            NotUnderstood: it does not say.
        """
        if self._version is None:
            said = self._run(["scontrol", "--version"])
            try:
                found = commands.parse_version(said)
            except ValueError as error:
                raise NotUnderstood("scontrol --version", str(error)) from error
            if found < commands.OLDEST:
                raise BadInput("slurm", f"{said.strip()} is older than 22.05", "upgrade it")
            self._version = found
        return self._version

    def node(self, name: str) -> SlurmNode:
        """Return a node.

        Raises:
            PitstopError: it cannot be told, or there is none of that name.
        """
        nodes = self._read(
            commands.show_node(self.version, name),
            read_nodes,
            commands.show_node_text(name),
            read_nodes_text,
        )
        found = [node for node in nodes if node.name == name]
        if len(found) != 1:
            raise NotUnderstood("scontrol show node", f"it shows {len(found)} nodes named {name}")
        return found[0]

    def jobs_on(self, node: str) -> tuple[SlurmJob, ...]:
        """Return the jobs that hold a node, or may.

        Raises:
            PitstopError: it cannot be told.
        """
        return tuple(job for job in self._jobs(node) if node in job.nodes and job.state.holds_node)

    def jobs(self, node: str) -> tuple[Job, ...]:
        """Return the jobs on a node; see `JobScheduler.jobs`. The parts of one are one."""
        numbers = dict.fromkeys(job.whole for job in self.jobs_on(node))
        found = (self.job(number) for number in numbers)
        return tuple(job for job in found if job is not None and job.active)

    def job(self, number: int) -> Job | None:
        """Return a job with all its parts; see `JobScheduler.job`."""
        try:
            records = self._read(
                commands.show_job(self.version, number),
                read_jobs,
                commands.show_job_text(number),
                read_jobs_squeue,
            )
        except SlurmRefused as error:
            if "Invalid job id" in error.cause:
                return None
            raise
        parts = [record for record in records if number in (record.whole, record.job_id)]
        return joined(number, parts) if parts else None

    def signal(self, key: str, signal: str, batch: bool) -> None:
        """Signal a job; see `JobScheduler.signal`."""
        self._run(commands.signal_job(key, signal, batch))

    def requeue(self, key: str) -> None:
        """Put a job back into the queue, held; see `JobScheduler.requeue`.

        Slurm does so even with a job that was cancelled a moment ago, so whoever asks has
        looked; nothing in Slurm makes the two one step.
        """
        self._run(commands.requeue_job(key))

    def hold(self, key: str) -> None:
        """Keep a waiting job from starting; see `JobScheduler.hold`."""
        self._run(commands.hold_job(key))

    def release(self, key: str, excluded: Sequence[str] = (), only: str = "") -> None:
        """Let a held job start; see `JobScheduler.release`."""
        if excluded:
            self._run(commands.exclude_nodes(key, excluded))
        if only:
            self._run(commands.require_nodes(key, only))
        # While it is held: once it is released it may run before the second command comes.
        self._run(commands.start_now(key))
        self._run(commands.release_job(key))

    def look(self, node: str, run: str) -> Standing:
        """Say how a node stands; see `Scheduler.look`."""
        return self._standing(self.node(node), run)

    def _standing(self, found: SlurmNode, run: str) -> Standing:
        jobs = self.jobs_on(found.name)
        # DOWN keeps work away as well, whoever or whatever took it down.
        closed = bool(found.state.flags & _CLOSED) or found.state.base in ("DOWN", "ERROR")
        claim = claim_of(closed, _REBOOTED.sub("", found.reason), run)
        # Down, as its reboot was to leave it, and Slurm has heard from it since: no process
        # is older than that.
        came_back = (
            claim is Claim.OURS
            and found.reason.endswith(" : reboot complete")
            and found.state.base == "DOWN"
            and found.state.reachable
        )
        return Standing(
            claim=claim,
            reason=found.reason,
            drained=(found.state.drained or came_back) and not jobs,
            reachable=found.state.reachable and not found.state.powered_down,
            state=str(found.state),
            jobs=tuple(job.key for job in jobs),
        )

    def drain(self, node: str, run: str) -> Standing:
        """Drain a node with our reason; see `Scheduler.drain`.

        Slurm cannot set a reason only if there is none: a person's, set between our look and
        our drain, is lost.
        """
        before = self.look(node, run)
        if before.claim is Claim.NOBODY:
            self._run(commands.update_node(node, "DRAIN", mark(run)))
            return self.look(node, run)
        return before

    def give_back(self, node: str, run: str) -> bool:
        """Resume a node if its reason is ours; see `Scheduler.give_back`.

        Raises:
            SlurmRefused: Slurm has no contact with it; it would wait for its jobs for nothing.
        """
        found = self.look(node, run)
        if found.claim is not Claim.OURS:
            return False
        if not found.reachable:
            raise SlurmRefused(node, f"Slurm does not reach it: {found.state}", "is slurmd up?")
        self._run(commands.update_node(node, "RESUME"))
        return True

    def reboot(self, node: str, run: str) -> None:
        """Have Slurm reboot a node that is ours and empty, read anew just before.

        It stays DOWN afterwards, until `give_back`. What is under way is not asked for again.
        Nothing here tells that it has rebooted: a changed boot id does.

        Raises:
            Refused: it is not ours, or not empty.
            PitstopError: it was not done, or is not known to be.
        """
        seen = self.node(node)
        if seen.state.reboot:
            return
        found = self._standing(seen, run)
        if found.claim is not Claim.OURS or not found.drained:
            jobs = f", with jobs {', '.join(found.jobs)}" if found.jobs else ""
            raise Refused(
                node,
                f"not rebooted: it is {found.state}, drained by {found.claim.value}{jobs}",
                f"its reason is {found.reason!r}" if found.reason else "",
            )
        self._run(commands.reboot_node(node, mark(run)))

    def reserve(self, node: str, run: str, starts_in: int, seconds: int) -> None:
        """Reserve a node for maintenance, from a moment on and for so long; once.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """
        argv = commands.create_reservation(node, run, starts_in, seconds)
        completed = self._try(argv)
        if completed.exit_status != 0 and "Duplicate reservation" not in _decode(completed.stderr):
            raise _refused(argv, completed)

    def unreserve(self, node: str, run: str) -> None:
        """End our reservation of a node; one that is not there has ended.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """
        argv = commands.delete_reservation(node, run)
        completed = self._try(argv)
        if completed.exit_status != 0 and "reservation is invalid" not in _decode(completed.stderr):
            raise _refused(argv, completed)

    def close(self) -> None:
        """Give the connection back."""
        self._transport.close()

    def _jobs(self, node: str) -> tuple[SlurmJob, ...]:
        return self._read(
            commands.show_jobs(self.version, node),
            read_jobs,
            commands.show_jobs_text(node),
            read_jobs_squeue,
        )

    def _read(
        self,
        argv: list[str] | None,
        read: Callable[[str, str], tuple[T, ...]],
        text_argv: list[str],
        read_text: Callable[[str, str], tuple[T, ...]],
    ) -> tuple[T, ...]:
        """Ask for JSON, and for text where this Slurm has none."""
        if argv is not None and self._has_json:
            completed = self._try(argv)
            if completed.exit_status == 0:
                return read(" ".join(argv), _decode(completed.stdout))
            said = _decode(completed.stderr)
            if not any(words in said for words in _NO_JSON):
                raise _refused(argv, completed)
            self._has_json = False
        return read_text(" ".join(text_argv), self._run(text_argv))

    def _run(self, argv: list[str]) -> str:
        completed = self._try(argv)
        if completed.exit_status != 0:
            raise _refused(argv, completed)
        return _decode(completed.stdout)

    def _try(self, argv: list[str]) -> Completed:
        return self._transport.run(
            commands.in_clean_environment(argv, self._conf, self._path), b"", TIMEOUT
        )


def joined(number: int, parts: Sequence[SlurmJob]) -> Job:
    """Put the parts of a heterogeneous job together; any other job is its only part."""
    first = parts[0]
    gpus = [part.gpus for part in parts]
    ends = [part.end for part in parts if part.end is not None]
    return Job(
        number=number,
        key=str(first.whole) if "+" in first.key else first.key,
        name=first.name,
        user=first.user,
        nodes=tuple(dict.fromkeys(node for part in parts for node in part.nodes)),
        gpus=None if None in gpus else sum(count for count in gpus if count is not None),
        active=any(part.state.holds_node for part in parts),
        running=all(part.state.runs for part in parts),
        waiting=all(part.state.base == "PENDING" and not part.state.holds_node for part in parts),
        held=any(part.held for part in parts),
        over=all(part.state.over for part in parts),
        cancelled=any(part.state.base == "CANCELLED" for part in parts),
        ends=min(ends, default=None),
        # A part of which Slurm does not say so must not be taken for one that may.
        requeue=_all(part.requeue for part in parts),
        excluded=tuple(dict.fromkeys(node for part in parts for node in part.excluded)),
        state="; ".join(dict.fromkeys(_in_words(part) for part in parts)),
    )


def _in_words(part: SlurmJob) -> str:
    waits = part.state.base == "PENDING" and part.reason
    return f"{part.state}, {part.reason}" if waits else str(part.state)


def _all(values: Iterable[bool | None]) -> bool | None:
    known = set(values)
    if False in known:
        return False
    return None if None in known else True


def _refused(argv: list[str], completed: Completed) -> PitstopError:
    said = _decode(completed.stderr).strip() or _decode(completed.stdout).strip()
    if completed.exit_status == _NOT_FOUND:
        return PermanentError(argv[0], f"is not there: {said[-300:]}", "where are its commands?")
    return SlurmRefused(
        " ".join(argv), f"exit status {completed.exit_status}: {said[-500:] or 'no words'}"
    )


def _decode(output: bytes) -> str:
    """Names are UTF-8, or what somebody's terminal had: none may cost the whole answer."""
    return output.decode("utf-8", errors="backslashreplace")
