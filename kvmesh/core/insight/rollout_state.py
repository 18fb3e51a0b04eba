"""Where a change of policy stands, as the replicas of a bucket tell each other."""

from collections.abc import Iterable
from math import inf, isfinite
from typing import Final, Literal

import msgspec

from kvmesh.core.cost.arm_tally import Tally
from kvmesh.core.cost.arms import ArmName
from kvmesh.core.insight.policy_change import LEAST_REQUESTS, PolicyChange, wrong_spec
from kvmesh.core.insight.policy_spec import MOST_NAME, PolicySpec

Phase = Literal["running", "done", "returned"]

_RANKS: Final[dict[Phase, int]] = {"running": 0, "done": 1, "returned": 2}

MOST_WINDOWS: Final = 24
"""Windows in which the arms take turns, at most: then the test is at its end."""

WHOLE: Final = 4
"""Windows behind it in which the candidate has all, and the fleet is compared with before."""

FIRST_REQUESTS: Final = 50
"""Of a replica, by the candidate in its first window; twice as many in each further one."""

MOST_STEPS: Final = 8
MOST_REASON: Final = 512
LATEST_S: Final = 1e11
"""No clock is right that tells a later Unix time: the year 5138."""


class Step(msgspec.Struct, frozen=True):
    """What replica `by` decided at Unix time `at`: to give the candidate that `share` of the time,
    and why.
    """

    at: float
    by: str
    share: float
    reason: str


class RolloutState(msgspec.Struct, frozen=True):
    """One change, begun `by` a replica `at` a Unix time, that name it; `steps` are its history.

    `returned`: all requests are the baseline's again, `done`: the candidate's. While it runs it is
    in window `stage`, which began at Unix time `since`; from window `whole` on (0: not yet) the
    candidate has all.
    """

    at: float
    by: str
    change: PolicyChange
    baseline: PolicySpec
    phase: Phase
    stage: int
    steps: tuple[Step, ...]
    since: float = 0.0
    whole: int = 0

    @property
    def name(self) -> tuple[float, str]:
        """Return what tells this change from any other."""
        return self.at, self.by

    @property
    def share(self) -> float:
        """Return the candidate's share of the time."""
        return self.steps[-1].share

    @property
    def in_force(self) -> PolicySpec:
        """Return the policy of the requests that are not the candidate's on trial."""
        return self.change.policy if self.phase == "done" else self.baseline

    def arm_of(self, window: int) -> ArmName:
        """Return which arm a window is of: A B B A A B B A …, so that a load that rises or falls is
        both's.
        """
        whole = 0 < self.whole <= window
        return "candidate" if whole or window % 4 in (1, 2) else "baseline"

    def quota(self) -> float:
        """Return how many requests of a replica are compared in the present window."""
        if self.whole or self.arm_of(self.stage) == "baseline":
            return inf
        return FIRST_REQUESTS << (self.stage // 4 * 2 + self.stage % 4 - 1)

    def least(self) -> float:
        """Return how many requests must have ended in the present window before it is over."""
        parts: float = self.change.min_requests // WHOLE
        return max(LEAST_REQUESTS, min(parts, self.quota() // 2))

    def order(self) -> tuple[float, str, int, int, float, float, str, str]:
        """Return by what states are compared: the later change counts; of one change its return
        before its end, and that before any window: whatever replicas decided apart, all agree.
        """
        last = self.steps[-1]
        ranks = _RANKS[self.phase], self.stage, self.since
        return (*self.name, *ranks, last.at, last.by, last.reason)

    def next_window(self, at: float) -> "RolloutState":
        """Return the state with the next window begun at Unix time `at`."""
        return msgspec.structs.replace(self, stage=self.stage + 1, since=at)

    def moved(self, step: Step, phase: Phase = "running") -> "RolloutState":
        """Return the state after one more step."""
        return msgspec.structs.replace(self, phase=phase, steps=(*self.steps, step))

    def wrong(self) -> str:
        """Return why this cannot be, "" when it can: a sibling told it."""
        if not 0.0 < self.at <= LATEST_S or not 1 <= len(self.by) <= MOST_NAME:
            return f"begun at {self.at:g} by a name of {len(self.by)} characters"
        if wrong := self.change.wrong() or wrong_spec(self.baseline):
            return wrong
        windows = MOST_WINDOWS + WHOLE
        if not (0 <= self.stage < windows and 0 <= self.whole < windows and isfinite(self.since)):
            return f"window {self.stage} of {windows}, begun at {self.since:g}, {self.whole}"
        if not 1 <= len(self.steps) <= MOST_STEPS:
            return f"{len(self.steps)} steps"
        for one in self.steps:
            sound = isfinite(one.at) and 0.0 <= one.share <= 1.0 and len(one.by) <= MOST_NAME
            if not sound or len(one.reason) > MOST_REASON:
                return f"a step at {one.at:g} to {one.share:g}, for {len(one.reason)} characters"
        return ""


class TrialReport(msgspec.Struct, frozen=True):
    """What one replica saw in each window of the change begun `by` at `at`."""

    at: float
    by: str
    windows: tuple[Tally, ...]

    def is_of(self, state: RolloutState) -> bool:
        """Return whether it is of the change that `state` is of, and can be."""
        of_it = (self.at, self.by) == state.name and len(self.windows) <= MOST_WINDOWS + WHOLE
        return of_it and not any(one.wrong() for one in self.windows)


class PolicyUpdate(msgspec.Struct, frozen=True):
    """What a replica's heartbeat says of policies: the change it goes by, what it saw of it, and
    whether it can (`able`): not when it does not know the formula. `formulas` are those it knows
    besides the published ones.
    """

    state: RolloutState | None = None
    seen: TrialReport | None = None
    able: bool = False
    formulas: tuple[str, ...] = ()


NO_NEWS: Final = PolicyUpdate()


def newest(states: Iterable[RolloutState]) -> RolloutState | None:
    """Return the state that counts; the same one whatever the order they come in."""
    return max(states, key=RolloutState.order, default=None)
