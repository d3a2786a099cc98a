"""The branches of a scheduler's jobs and pods, as a part of the run's sequence."""

from __future__ import annotations

from pitstop.decide.attempts import effect_unknown
from pitstop.model.errors import PitstopError, WorkloadGone
from pitstop.model.jobs import JobPlan, OnJob
from pitstop.model.words import Strategy, Verb
from pitstop.steps.branching import GivenUp, Perform
from pitstop.steps.context import RunContext


class JobSequence:
    """One pass over the jobs of a run.

    What can be taken back comes first. Jobs that are waited for come before anything else:
    that may take hours, and giving up then costs nothing. A checkpoint can be taken back in
    place, since its launcher stays; a place on the node that was given up cannot. So all are
    saved before the first is requeued.
    """

    def __init__(self, ctx: RunContext, perform: Perform) -> None:
        self._ctx = ctx
        self._perform = perform

    def wait_all(self) -> None:
        """Wait for those that end by themselves."""
        for job in self._of(Strategy.WAIT):
            self._wait(job)

    def signal_all(self) -> None:
        """Have those save themselves that can."""
        for job in self._of(Strategy.APPLICATION):
            self._attempt(job, Verb.SIGNAL)

    def move_all(self) -> None:
        """Save all that run under the launcher, then put all that remain into the queue."""
        saved = [job for job in self._of(Strategy.RESTORE) if self._save(job)]
        own = [j for j in self._of(Strategy.APPLICATION) if self._done(Verb.SIGNAL, j)]
        for job in self._of(Strategy.REQUEUE):
            self._decide(job, "save", "requeue", job.reason)
        for job in (*own, *saved, *self._of(Strategy.REQUEUE)):
            if job.kind == "job":  # pods of a node are evicted together, afterwards
                self._attempt(job, Verb.REQUEUE)

    def bring_back_all(self) -> bool:
        """Let all start again that were put aside; False when one needs a person."""
        # One that does not come back keeps none of the others down.
        back = [self._bring_back(job) for job in self._ctx.plan.jobs]
        return all(back)

    def _bring_back(self, job: JobPlan) -> bool:
        way = self._way_back(job)
        try:
            found = self._perform(way, job.name) if way is not None else {}
        except PitstopError as error:
            self._decide(job, "start", "wait for a person", str(error))
            return False
        requeued = self._ctx.result(Verb.REQUEUE, job.name) or {}
        kept = found.get("kept") or requeued.get("kept")
        if kept:
            ended = found.get("state") or requeued.get("state")
            cause = f"it ended as {ended}; checkpoint {kept} is kept"
            self._decide(job, "start", "wait for a person", cause)
            return False
        return not self._lost_in_dump(job)

    def _way_back(self, job: JobPlan) -> Verb | None:
        """Return the step that puts a job right; None when nothing was done to it."""
        requeue = self._ctx.standing(Verb.REQUEUE, job.name)
        checkpoint = self._ctx.standing(Verb.CHECKPOINT, job.name)
        if requeue.result is not None:
            return Verb.RELEASE if requeue.result["requeued"] else None
        touched = checkpoint.result is not None or effect_unknown(checkpoint.failure)
        if job.kind == "pod":
            return Verb.RELEASE if touched else None
        if touched:
            return Verb.RESTORE  # where it is, or, if that is true, from the queue
        # Whether it is in the queue is asked there; one that runs on is left.
        return Verb.RELEASE if requeue.failure is not None else None

    def _lost_in_dump(self, job: JobPlan) -> bool:
        failure = self._ctx.standing(Verb.CHECKPOINT, job.name).failure
        return failure is not None and failure["code"] == "ended_in_dump"

    def _save(self, job: JobPlan) -> bool:
        """Save a job, or do by its policy; True when it is still to be requeued."""
        try:
            self._perform(Verb.CHECKPOINT, job.name)
        except WorkloadGone as error:
            self._decide(job, "save", "leave", f"it had ended by itself: {error.cause}")
            return False
        except PitstopError as error:
            return self._unsaved(job, error)
        return True

    def _unsaved(self, job: JobPlan, error: PitstopError) -> bool:
        policy = job.policy.not_launched
        self._decide(job, "save", policy.value, str(error))
        if policy is OnJob.WAIT:
            self._attempt(job, Verb.WAIT)
            return False
        if policy is OnJob.SIGNAL:
            self._attempt(job, Verb.SIGNAL)
            return self._done(Verb.SIGNAL, job)
        if policy is OnJob.REQUEUE:
            return True
        raise GivenUp(error) from error

    def _wait(self, job: JobPlan) -> None:
        self._decide(job, "save", "wait", job.reason)
        self._attempt(job, Verb.WAIT)

    def _attempt(self, job: JobPlan, verb: Verb) -> None:
        """Perform a step without which there is no maintenance."""
        try:
            self._perform(verb, job.name)
        except WorkloadGone as error:
            self._decide(job, "save", "leave", f"it had ended by itself: {error.cause}")
        except PitstopError as error:
            raise GivenUp(error) from error

    def _done(self, verb: Verb, job: JobPlan) -> bool:
        return self._ctx.result(verb, job.name) is not None

    def _of(self, strategy: Strategy) -> list[JobPlan]:
        return [job for job in self._ctx.plan.jobs if job.strategy is strategy]

    def _decide(self, job: JobPlan, topic: str, choice: str, cause: str) -> None:
        self._ctx.decide(job.name, topic, choice, cause)
