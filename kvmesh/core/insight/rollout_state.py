"""Where a change of policy stands, as the replicas of a bucket tell each other."""

from collections.abc import Iterable
from math import isfinite
from typing import Final, Literal

import msgspec

from kvmesh.core.cost.arm_tally import Tally
from kvmesh.core.insight.policy_change import MOST_STAGES, PolicyChange, wrong_spec
from kvmesh.core.insight.policy_spec import MOST_NAME, PolicySpec

Phase = Literal["running", "done", "returned"]

_RANKS: Final[dict[Phase, int]] = {"running": 0, "done": 1, "returned": 2}

MOST_STEPS: Final = MOST_STAGES + 3
MOST_REASON: Final = 512
LATEST_S: Final = 1e11
"""No clock is right that tells a later Unix time: the year 5138."""


class Step(msgspec.Struct, frozen=True):
    """What replica `by` decided at Unix time `at`: to give the candidate that `share`, and why."""

    at: float
    by: str
    share: float
    reason: str


class RolloutState(msgspec.Struct, frozen=True):
    """One change, begun `by` a replica `at` a Unix time, that name it; `steps` are its history.

    `returned`: all requests are the baseline's again, `done`: the candidate's.
    """

    at: float
    by: str
    change: PolicyChange
    baseline: PolicySpec
    phase: Phase
    stage: int
    steps: tuple[Step, ...]

    @property
    def name(self) -> tuple[float, str]:
        """Return what tells this change from any other."""
        return self.at, self.by

    @property
    def share(self) -> float:
        """Return the candidate's share of the requests now."""
        return self.steps[-1].share

    @property
    def in_force(self) -> PolicySpec:
        """Return the policy of the requests that are not the candidate's on trial."""
        return self.change.policy if self.phase == "done" else self.baseline

    def order(self) -> tuple[float, str, int, int, float, str, str]:
        """Return by what states are compared: the later change counts; of one change its return
        before its end, and that before any stage: whatever replicas decided apart, all agree.
        """
        last = self.steps[-1]
        return (*self.name, _RANKS[self.phase], self.stage, last.at, last.by, last.reason)

    def moved(self, step: Step, phase: Phase = "running", *, stage: int = 0) -> "RolloutState":
        """Return the state after one more step, to the same stage at least."""
        return msgspec.structs.replace(
            self,
            phase=phase,
            stage=max(stage, self.stage),
            steps=(*self.steps, step),
        )

    def wrong(self) -> str:
        """Return why this cannot be, "" when it can: a sibling told it."""
        if not 0.0 < self.at <= LATEST_S or not 1 <= len(self.by) <= MOST_NAME:
            return f"begun at {self.at:g} by a name of {len(self.by)} characters"
        if wrong := self.change.wrong() or wrong_spec(self.baseline):
            return wrong
        if not 0 <= self.stage < len(self.change.stages) or not 1 <= len(self.steps) <= MOST_STEPS:
            return f"stage {self.stage} of {len(self.change.stages)}, {len(self.steps)} steps"
        for one in self.steps:
            if not (isfinite(one.at) and 0.0 <= one.share <= 1.0 and len(one.by) <= MOST_NAME):
                return f"a step at {one.at:g} to a share of {one.share:g}"
            if len(one.reason) > MOST_REASON:
                return f"a reason of {len(one.reason)} characters"
        return ""


class StageReport(msgspec.Struct, frozen=True):
    """What one replica saw of both arms in one `stage` of the change begun `by` at `at`."""

    at: float
    by: str
    stage: int
    baseline: Tally
    candidate: Tally

    def is_of(self, state: RolloutState) -> bool:
        """Return whether it is of the stage that `state` is in, and can be."""
        of_it = (self.at, self.by, self.stage) == (*state.name, state.stage)
        return of_it and not (self.baseline.wrong() or self.candidate.wrong())


class PolicyUpdate(msgspec.Struct, frozen=True):
    """What a replica's heartbeat says of policies: the change it goes by, what it saw of it, and
    whether it can (`able`): not when it does not know the formula. `formulas` are those it knows
    besides the published ones.
    """

    state: RolloutState | None = None
    report: StageReport | None = None
    able: bool = False
    formulas: tuple[str, ...] = ()


NO_NEWS: Final = PolicyUpdate()


def newest(states: Iterable[RolloutState]) -> RolloutState | None:
    """Return the state that counts; the same one whatever the order they come in."""
    return max(states, key=RolloutState.order, default=None)
