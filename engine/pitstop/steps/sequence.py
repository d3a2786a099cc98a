"""The sequence of a run and its branches, the same under every front end.

A front end passes `perform`, which executes one step in its own way (a Prefect task, an
Airflow task, a plain call) and raises what the step raises. Which step comes next is decided
here, from results and errors alone, so running the sequence again over the same journal takes
the same branches: that is how a run is resumed.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

from pitstop.decide.attempts import WITHOUT_CONTACT
from pitstop.decide.outcome import result_of
from pitstop.model.errors import EndedInDump, NotDrained, PitstopError, Refused, WorkloadGone
from pitstop.model.kubernetes import KubernetesSpec
from pitstop.model.plan import WorkloadPlan
from pitstop.model.result import RunResult
from pitstop.model.verdict import Verdict
from pitstop.model.words import OnCheckpointFailure, Strategy, Verb
from pitstop.steps.branching import GivenUp, OutOfContact, Perform
from pitstop.steps.context import RunContext
from pitstop.steps.job_sequence import JobSequence
from pitstop.steps.move_sequence import MoveSequence


class Sequence:
    """One pass over a run's steps."""

    def __init__(self, ctx: RunContext, perform: Perform) -> None:
        self._ctx = ctx
        self._performer = perform
        self._node = ctx.plan.node
        self._moved: list[WorkloadPlan] = []
        self._jobs = JobSequence(ctx, self._perform)
        self._moves = MoveSequence(ctx, self._perform)

    def run(self) -> RunResult:
        """Go through the whole sequence and return how the run ended."""
        try:
            self._performer(Verb.PRECHECK, self._node)
        except PitstopError as error:
            return self._end("refused" if isinstance(error, Refused) else "failed", str(error))
        try:
            return self._run()
        except OutOfContact as lost:
            self._free_jobs()
            return self._end("partial", f"its effect is unknown: {lost.cause}")

    def _free_jobs(self) -> None:
        """Keep no job in the queue because the node does not come back: it was empty of them."""
        if any(e.kind == "step.started" and e.verb == Verb.MAINTAIN for e in self._ctx.events()):
            with contextlib.suppress(OutOfContact):  # the step has recorded it
                self._jobs.bring_back_all()

    def _run(self) -> RunResult:
        try:
            self._close_node()
            self._jobs.wait_all()
            self._drain_all()
            self._jobs.signal_all()
            self._save_all()
            self._jobs.move_all()
            self._evict_pods()
            failure = self._maintain()
        except GivenUp as given_up:
            # The node itself was not touched; all that was moved aside comes back.
            complete = self._put_back()
            return self._end("failed" if complete else "partial", str(given_up.cause))
        if failure is not None:
            return self._after_failed_maintenance(failure)
        if self._put_back():
            return self._end("done", "")
        return self._end("partial", "not every workload is back; see each one's cause")

    def _close_node(self) -> None:
        """Keep new jobs away first: what comes later would not be in the plan."""
        if self._ctx.plan.scheduler is not None:
            self._perform_or_give_up(Verb.DRAIN)

    def _evict_pods(self) -> None:
        scheduler = self._ctx.plan.scheduler
        if scheduler is not None and isinstance(scheduler.spec, KubernetesSpec):
            self._perform_or_give_up(Verb.EVICT)

    def _perform_or_give_up(self, verb: Verb) -> None:
        """Perform a step on the node without which there is no maintenance."""
        try:
            self._perform(verb, self._node)
        except PitstopError as error:
            raise self._give_up(error) from error

    def _maintain(self) -> PitstopError | None:
        """Maintain and validate; return what failed, if something did."""
        try:
            self._perform(Verb.MAINTAIN, self._node)
            self._perform(Verb.VALIDATE, self._node)
        except NotDrained as error:
            raise self._give_up(error) from error
        except PitstopError as error:
            return error
        return None

    def _give_up(self, error: PitstopError) -> GivenUp:
        self._decide(self._node, "give up", "no maintenance", str(error))
        return GivenUp(error)

    def _put_back(self) -> bool:
        """Bring all back, and open what was closed; False when something needs a person."""
        back = self._bring_back_all()
        # One after the other: none of them may be left out because another failed.
        done = [back, self._admit_all(), self._open_node(), self._jobs.bring_back_all()]
        return all(done)

    def _open_node(self) -> bool:
        """Give the node back to its scheduler, if it was ever closed."""
        if self._ctx.plan.scheduler is None:
            return True
        drain = self._ctx.standing(Verb.DRAIN, self._node)
        if drain.result is None and not drain.failures:
            return True
        try:
            self._perform(Verb.RETURN_TO_SERVICE, self._node)
        except PitstopError as error:
            self._decide(self._node, "admission", "wait for a person", str(error))
            return False
        return True

    def recover(self) -> RunResult:
        """After a person has mended the node: validate, bring back the rest, lift quarantine."""
        try:
            return self._recover()
        except OutOfContact as lost:
            return self._end("partial", f"its effect is unknown: {lost.cause}")

    def _recover(self) -> RunResult:
        self._moved = [w for w in self._ctx.plan.workloads if self._was_moved(w.name)]
        try:
            self._perform(Verb.VALIDATE, self._node)
        except PitstopError as error:
            return self._end("partial", f"still not fit for service: {error}")
        if not self._put_back():
            return self._end("partial", "not every workload is back; see each one's cause")
        if self._ctx.result(Verb.QUARANTINE, self._node) is not None:
            self._ctx.node.call("unquarantine", run=self._ctx.run)
            self._decide(self._node, "unquarantine", "in service", "validated after repair")
        return self._end("done", "")

    def _perform(self, verb: Verb, subject: str) -> dict[str, Any]:
        """Perform a step; without contact to the node no branch is taken, the run waits."""
        try:
            return self._performer(verb, subject)
        except PitstopError as error:
            final = self._ctx.standing(verb, subject).failure is not None
            if error.code in WITHOUT_CONTACT or not final:
                # Or somebody else is at this very step (`Busy`): it has not failed.
                raise OutOfContact(error) from error
            raise

    def _drain_all(self) -> None:
        for workload in self._concerned():
            try:
                self._perform(Verb.DRAIN, workload.name)
            except EndedInDump:
                # Nothing is left to drain, and it must be brought back whatever follows.
                self._moved.append(workload)
            except PitstopError as error:
                raise self._give_up(error) from error

    def _save_all(self) -> None:
        for workload in self._concerned():
            if workload.strategy is Strategy.COLD_START:
                self._decide(workload.name, "save", "stop", workload.reason)
                self._stop(workload)
            elif died := self._died_in_drain(workload.name):
                self._stop_dead(workload, died)
            else:
                self._save(workload)
                if workload.strategy is Strategy.MIGRATE and self._was_saved(workload.name):
                    self._moves.move(workload)

    def _died_in_drain(self, name: str) -> str:
        failure = self._ctx.standing(Verb.DRAIN, name).failure
        died = failure is not None and failure["code"] == EndedInDump.code
        return str(failure["cause"]) if failure is not None and died else ""

    def _stop_dead(self, workload: WorkloadPlan, cause: str) -> None:
        self._decide(workload.name, "save", "stop", cause)
        # Whatever becomes of the stop: it does not run, and must be brought back.
        if workload not in self._moved:
            self._moved.append(workload)
        self._stop(workload)

    def _save(self, workload: WorkloadPlan) -> None:
        try:
            self._perform(Verb.CHECKPOINT, workload.name)
            self._moved.append(workload)
        except WorkloadGone as error:
            self._decide(workload.name, "save", "leave", f"it had ended by itself: {error.cause}")
        except EndedInDump as error:
            self._stop_dead(workload, str(error))
        except PitstopError as error:
            policy = workload.spec.policy.on_checkpoint_failure
            if isinstance(error, Refused):
                policy = OnCheckpointFailure.ABORT  # drained no longer: nothing is touched
            self._decide(workload.name, "save", policy.value, str(error))
            if policy is OnCheckpointFailure.COLD_START:
                self._stop(workload)
            elif policy is OnCheckpointFailure.WAIT:
                self._wait(workload)
            else:
                raise GivenUp(error) from error

    def _stop(self, workload: WorkloadPlan) -> None:
        try:
            self._perform(Verb.STOP, workload.name)
        except PitstopError as error:
            raise GivenUp(error) from error
        if workload not in self._moved:
            self._moved.append(workload)

    def _wait(self, workload: WorkloadPlan) -> None:
        try:
            self._perform(Verb.WAIT, workload.name)
        except PitstopError as error:
            raise GivenUp(error) from error

    def _after_failed_maintenance(self, error: PitstopError) -> RunResult:
        self._decide(self._node, "maintenance", "roll back", str(error))
        try:
            valid = bool(self._perform(Verb.ROLLBACK, self._node)["valid"])
        except PitstopError as failure:
            valid = False
            self._decide(self._node, "rollback", "failed", str(failure))
        self._decide(self._node, "quarantine", "quarantine", str(error))
        try:
            self._perform(Verb.QUARANTINE, self._node)
        except PitstopError as failure:
            self._jobs.bring_back_all()
            return self._end("partial", f"{error}; and no quarantine could be set: {failure}")
        if valid:
            self._bring_back_all()
            self._admit_all()
        # The jobs wait in the queue, and the node stays closed: they start elsewhere.
        self._jobs.bring_back_all()
        if not valid:
            return self._end("partial", f"{error}; the node is not fit to run workloads")
        return self._end("partial", f"{error}; rolled back, and the node is quarantined")

    def _bring_back_all(self) -> bool:
        # One that does not come back keeps none of the others down.
        back = [self._bring_back(workload) for workload in self._moved]
        return all(back)

    def _bring_back(self, workload: WorkloadPlan) -> bool:
        """Restore or cold-start one workload; False when neither worked."""
        name = workload.name
        if self._is_back(name):
            return True
        if self._ctx.is_there(name):
            up = self._moves.bring_up(workload)
            if up or self._ctx.is_there(name):
                return up
        try:
            cause, verdict = self._try_restore(name)
            if not cause:
                return True
            self._decide(name, "start", "cold-start", cause, verdict=verdict)
            self._perform(Verb.COLD_START, name)
        except PitstopError as error:
            self._decide(name, "start", "wait for a person", str(error))
            return False
        return True

    def _try_restore(self, name: str) -> tuple[str, dict[str, Any] | None]:
        """Return why it must start cold (empty: it was restored), and the gate's verdict."""
        if given_up := self._moves.given_up(name):
            return given_up, None
        saved = self._was_saved(name)
        try:
            verdict = Verdict.from_json(self._perform(Verb.GATE, name)["verdict"])
        except PitstopError as error:
            if saved:
                raise  # a checkpoint of which nothing is known is kept
            return f"it was not saved: {self._why_not_saved(name)}; no verdict: {error}", None
        said = "; ".join(str(d) for d in verdict.invalid)
        if not saved:
            said = said or f"it was not saved: {self._why_not_saved(name)}"
        elif verdict.valid:
            try:
                self._perform(Verb.RESTORE, name)
            except PitstopError as error:
                said = f"the restore failed: {error}"
        return said, verdict.to_json()

    def _why_not_saved(self, name: str) -> str:
        """Return what failed, which the failure catalogue may name, or what was planned."""
        failure = self._ctx.standing(Verb.CHECKPOINT, name).failure
        return self._ctx.workload(name).reason if failure is None else str(failure["cause"])

    def _admit_all(self) -> bool:
        """Open admission of all that was drained and runs; False when one did not open."""
        opened = True
        for workload in self._concerned():
            drain = self._ctx.standing(Verb.DRAIN, workload.name)
            if drain.result is None and not drain.failures:
                continue  # never reached
            if self._was_moved(workload.name) and not self._is_back(workload.name):
                continue
            if self._ended_itself(workload.name):
                continue
            try:
                self._perform(Verb.RETURN_TO_SERVICE, workload.name)
            except PitstopError as error:
                self._decide(workload.name, "admission", "wait for a person", str(error))
                opened = False
        return opened

    def _ended_itself(self, name: str) -> bool:
        saving = self._ctx.standing(Verb.CHECKPOINT, name).failure
        gone = saving is not None and saving["code"] == WorkloadGone.code
        return gone or self._ctx.result(Verb.WAIT, name) is not None

    def _concerned(self) -> list[WorkloadPlan]:
        return [w for w in self._ctx.plan.workloads if w.strategy is not Strategy.LEAVE]

    def _was_moved(self, name: str) -> bool:
        return any(
            self._ctx.result(verb, name) is not None for verb in (Verb.CHECKPOINT, Verb.STOP)
        )

    def _was_saved(self, name: str) -> bool:
        return self._ctx.result(Verb.CHECKPOINT, name) is not None

    def _is_back(self, name: str) -> bool:
        return any(
            self._ctx.result(verb, name) is not None for verb in (Verb.RESTORE, Verb.COLD_START)
        )

    def _decide(self, subject: str, topic: str, choice: str, cause: str, **data: Any) -> None:
        self._ctx.decide(subject, topic, choice, cause, **data)

    def _end(self, state: Literal["done", "refused", "partial", "failed"], cause: str) -> RunResult:
        ctx = self._ctx
        outcome = result_of(ctx.plan, ctx.run, ctx.events())
        ctx.journal.append(
            ctx.run,
            "run.ended",
            ctx.actor,
            self._node,
            data={"state": state, "cause": cause, "node_state": outcome.node_state},
        )
        self._end_lease()
        return result_of(ctx.plan, ctx.run, ctx.events())

    def _end_lease(self) -> None:
        """Nobody has to look after the run any more: how it ended has been said."""
        if not any(
            e.kind == "step.started" and e.verb != Verb.PRECHECK for e in self._ctx.events()
        ):
            return  # nothing was asked of the node, so it knows of no lease
        try:
            self._ctx.node.call("lease.end", run=self._ctx.run)
        except PitstopError as error:
            # Then it lapses, and the node says so.
            self._ctx.progress(f"{self._node}: the lease could not be ended: {error.cause}")
