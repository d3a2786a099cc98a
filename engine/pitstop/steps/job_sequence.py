"""The branches of a scheduler's jobs, as a part of the run's sequence."""

from __future__ import annotations

from pitstop.model.errors import PitstopError, WorkloadGone
from pitstop.model.jobs import JobPlan, OnJob
from pitstop.model.words import Strategy, Verb
from pitstop.steps.branching import GivenUp, Perform
from pitstop.steps.context import RunContext


class JobSequence:
    """One pass over the jobs of a run.

    Jobs that are waited for, or save themselves, come first: whatever they take, nothing of
    anybody else was touched yet, and giving up costs nothing.
    """

    def __init__(self, ctx: RunContext, perform: Perform) -> None:
        self._ctx = ctx
        self._perform = perform

    def prepare_all(self) -> None:
        """Wait for those that end, and have those save themselves that can."""
        for job in self._of(Strategy.WAIT):
            self._wait(job)
        for job in self._of(Strategy.APPLICATION):
            self._attempt(job, Verb.SIGNAL)

    def move_all(self) -> None:
        """Save those that run under the launcher, and put all that remain into the queue."""
        for job in self._of(Strategy.APPLICATION):
            if self._ctx.result(Verb.SIGNAL, job.name) is not None:
                self._attempt(job, Verb.REQUEUE)
        for job in self._of(Strategy.RESTORE):
            self._save(job)
        for job in self._of(Strategy.REQUEUE):
            self._decide(job, "save", "requeue", job.reason)
            self._attempt(job, Verb.REQUEUE)

    def bring_back_all(self) -> bool:
        """Let all start again that were put aside; False when one needs a person."""
        # One that does not come back keeps none of the others down.
        back = [self._bring_back(job) for job in self._ctx.plan.jobs]
        return all(back)

    def _bring_back(self, job: JobPlan) -> bool:
        ctx = self._ctx
        requeue = ctx.standing(Verb.REQUEUE, job.name)
        saved = ctx.result(Verb.CHECKPOINT, job.name) is not None
        queued = bool(requeue.result and requeue.result["requeued"])
        try:
            if job.kind == "pod":
                if saved:
                    self._perform(Verb.RELEASE, job.name)
            elif queued:
                self._perform(Verb.RELEASE, job.name)
            elif requeue.result is None and saved:
                self._perform(Verb.RESTORE, job.name)
            elif requeue.failure is not None:
                # Whether it is in the queue is asked there; one that runs on is left.
                self._perform(Verb.RELEASE, job.name)
        except PitstopError as error:
            self._decide(job, "start", "wait for a person", str(error))
            return False
        return True

    def _save(self, job: JobPlan) -> None:
        try:
            self._perform(Verb.CHECKPOINT, job.name)
        except WorkloadGone as error:
            self._decide(job, "save", "leave", f"it had ended by itself: {error.cause}")
            return
        except PitstopError as error:
            self._unsaved(job, error)
            return
        if job.kind == "job":  # pods of a node are evicted together, afterwards
            self._attempt(job, Verb.REQUEUE)

    def _unsaved(self, job: JobPlan, error: PitstopError) -> None:
        policy = job.policy.not_launched
        self._decide(job, "save", policy.value, str(error))
        if policy is OnJob.WAIT:
            self._wait(job)
        elif policy is OnJob.REQUEUE:
            self._attempt(job, Verb.REQUEUE)
        elif policy is OnJob.SIGNAL:
            self._attempt(job, Verb.SIGNAL)
            if self._ctx.result(Verb.SIGNAL, job.name) is not None:
                self._attempt(job, Verb.REQUEUE)
        else:
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

    def _of(self, strategy: Strategy) -> list[JobPlan]:
        return [job for job in self._ctx.plan.jobs if job.strategy is strategy]

    def _decide(self, job: JobPlan, topic: str, choice: str, cause: str) -> None:
        self._ctx.decide(job.name, topic, choice, cause)
