"""The part of a run's sequence that moves a workload: away, up on its target, and admitted.

It comes before the maintenance of the node it leaves, so it is down only while it moves.
"""

from __future__ import annotations

from pitstop.decide.moves import lost_after_hand_over
from pitstop.model.errors import PitstopError, TargetLost
from pitstop.model.plan import WorkloadPlan
from pitstop.model.verdict import Verdict
from pitstop.model.words import Verb
from pitstop.steps.branching import Perform
from pitstop.steps.context import RunContext


class MoveSequence:
    """Moves workloads of one run.

    Args:
        ctx: the run.
        perform: executes a step; it raises `OutOfContact` where nothing may be decided.
    """

    def __init__(self, ctx: RunContext, perform: Perform) -> None:
        self._ctx = ctx
        self._perform = perform

    def move(self, workload: WorkloadPlan) -> None:
        """Move a workload that was saved. What does not come up is brought up later."""
        name = workload.name
        try:
            self._perform(Verb.TRANSFER, name)
        except TargetLost as error:
            self._ctx.decide(name, "move", "stay", str(error))
            return
        except PitstopError as error:
            self._ctx.decide(name, "move", "leave the checkpoint", str(error))
        if self.bring_up(workload):
            self._admit(name)

    def bring_up(self, workload: WorkloadPlan) -> bool:
        """Restore or cold-start a workload on its target; False when neither worked.

        False also when the target was given up meanwhile: it is then the run's node again.
        """
        name = workload.name
        try:
            cause, verdict = self._try_restore(workload)
            if not cause:
                return True
            where = workload.target.node if workload.target else ""
            self._ctx.decide(name, "start", "cold-start", f"on {where}: {cause}", verdict=verdict)
            self._perform(Verb.COLD_START, name)
        except TargetLost as error:
            self._ctx.decide(name, "move", "stay", str(error))
            return False
        except PitstopError as error:
            self._ctx.decide(name, "start", "wait for a person", str(error))
            return False
        return True

    def given_up(self, name: str) -> str:
        """Say why a workload starts cold on the run's node though it was handed over."""
        return lost_after_hand_over(self._ctx.events(), name)

    def _try_restore(self, workload: WorkloadPlan) -> tuple[str, dict[str, object] | None]:
        """Return why it must start cold (empty: it was restored), and the gate's verdict."""
        name = workload.name
        if self._ctx.result(Verb.TRANSFER, name) is None:
            failure = self._ctx.standing(Verb.TRANSFER, name).failure or {}
            return f"its checkpoint did not come: {failure.get('cause', 'unknown')}", None
        verdict = Verdict.from_json(self._perform(Verb.GATE, name)["verdict"])
        said = "; ".join(str(d) for d in verdict.invalid)
        if verdict.valid:
            try:
                self._perform(Verb.RESTORE, name)
            except TargetLost:
                raise
            except PitstopError as error:
                said = f"the restore failed: {error}"
        return said, verdict.to_json()

    def _admit(self, name: str) -> None:
        try:
            self._perform(Verb.RETURN_TO_SERVICE, name)
        except PitstopError as error:
            self._ctx.decide(name, "admission", "wait for a person", str(error))
