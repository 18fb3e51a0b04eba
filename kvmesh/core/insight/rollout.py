"""One replica's part in a change of policy: it follows what counts, and decides when it must."""

from collections import OrderedDict
from collections.abc import Mapping
from math import inf, nextafter
from typing import Final

import msgspec

from kvmesh.core.cost.arm_tally import Counter, Tally, add_tallies
from kvmesh.core.cost.arms import ArmName, Arms
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, Pricing
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import spec_of
from kvmesh.core.insight.rollout_state import (
    MOST_REASON,
    MOST_WINDOWS,
    WHOLE,
    Phase,
    PolicyUpdate,
    RolloutState,
    Step,
    TrialReport,
    newest,
)
from kvmesh.core.insight.rollout_verdict import Verdict, compare
from kvmesh.errors import ConfigError, RequestError

MOST_HISTORY: Final = 32
"""Changes remembered; the oldest is forgotten first."""

SETTLE: Final = 0.2
"""Of each window of the baseline, from its begin: what the candidate left in the queues may be
there still, and siblings that hear of it late go by the candidate.
"""

CONFLICT: Final = 409


class Rollout:
    """The policy in force at one replica (`policy`), and the `arms` while a change is on trial.

    Every replica folds the states of its siblings (`adopt`), and may return from what it sees to be
    worse. One moves the change on (`decide`): the least name of those that can. Replicas that do
    not see each other may decide differently; when they do again, a return counts. `base` is the
    policy of the settings, `counts` are the changes that came to each phase.

    A change begins with a window of the baseline, which lasts until `simulated` is set: what a
    simulator makes of both policies, "ahead" where it could not be asked.
    """

    def __init__(self, replica: str, base: Pricing, formulas: Formulas = PUBLISHED) -> None:
        self.policy = base
        self.arms: Arms | None = None
        self.state: RolloutState | None = None
        self.refused = ""
        self.own_formulas = tuple(sorted(formulas.costs.keys() - PUBLISHED.costs.keys()))
        self.counts = {"running": 0, "done": 0, "returned": 0}
        self._replica = replica
        self._formulas = formulas
        self.spec = spec_of(base)
        self.simulated: Verdict | None = None
        self._counters: list[Counter] = []
        self._history: OrderedDict[tuple[float, str], RolloutState] = OrderedDict()
        self._refused: RolloutState | None = None

    def history(self) -> list[RolloutState]:
        """Return the changes this replica knows of, the newest first."""
        return list(reversed(self._history.values()))

    def begin(
        self, change: PolicyChange, at: float, siblings: Mapping[str, PolicyUpdate]
    ) -> RolloutState:
        """Begin a change at Unix time `at`.

        Raises `RequestError`: 400 for what cannot be, 409 while another is on trial, or where a
        sibling does not know the formula.
        """
        if wrong := change.wrong():
            raise RequestError(wrong)
        try:
            change.policy.find(self._formulas)
        except ConfigError as error:
            raise RequestError(str(error)) from error
        state = self.state
        if state is not None and state.phase == "running":
            raise RequestError(
                f"{state.change.policy} has {state.share:.0%} of the time on trial since"
                f" {state.by} began it: wait for its end, or return from it first",
                status=CONFLICT,
            )
        formula = change.policy.formula
        if formula in self.own_formulas:
            lacking = sorted(
                one for one, updates in siblings.items() if formula not in updates.formulas
            )
            if lacking:
                raise RequestError(
                    f"formula {formula!r} is not known to {', '.join(lacking)}: start every"
                    " replica with its file",
                    status=CONFLICT,
                )
        states = (updates.state for updates in siblings.values())
        for known in (state, *states):
            # Later than what is in force even where another replica's clock is ahead.
            if known is not None and not known.wrong():
                at = max(at, nextafter(known.at, inf))
        phase: Phase = "done" if change.at_once else "running"
        begun = Step(at, self._replica, 1.0 if change.at_once else 0.5, "asked for")
        spec = self.spec
        return self._follow(RolloutState(at, self._replica, change, spec, phase, 0, (begun,), at))

    def give_up(self, at: float, reason: str) -> RolloutState:
        """Return to the baseline of the last change, on trial or done.

        Raises `RequestError` 409 where there is none to return from.
        """
        state = self.state
        if state is None or state.phase == "returned":
            raise RequestError("no policy was changed: nothing to return from", status=CONFLICT)
        return self._return(state, at, reason)

    def adopt(self, siblings: Mapping[str, PolicyUpdate]) -> RolloutState | None:
        """Take what a sibling knows later; return it, None when nothing is new.

        What cannot be, or needs a formula that is not known here, is left: `refused` says why, and
        this replica stays with the policy it has.
        """
        mine = self.state
        reported = [updates.state for updates in siblings.values() if updates.state is not None]
        sound = [one for one in reported if one == mine or not one.wrong()]
        best = newest([*sound, *((mine,) if mine is not None else ())])
        if best is None or best in (mine, self._refused):
            return None
        try:
            best.in_force.find(self._formulas)
            if best.phase == "running":
                best.change.policy.find(self._formulas)
        except ConfigError as error:
            self._refused, self.arms = best, None
            self.refused = f"{best.by} changed the policy to {best.change.policy}: {error}"
            return None
        self._follow(best)
        return best

    def updates(self) -> PolicyUpdate:
        """Return what the siblings are told."""
        return PolicyUpdate(self.state, self.report(), not self.refused, self.own_formulas)

    def report(self) -> TrialReport | None:
        """Return what this replica saw in each window; None when nothing is on trial."""
        if self.state is None or self.arms is None:
            return None
        return TrialReport(*self.state.name, tuple(one.tally() for one in self._counters))

    def seen(self, siblings: Mapping[str, PolicyUpdate]) -> tuple[list[Tally], list[Tally]]:
        """Return the tallies of the windows of the baseline and of the candidate, over replicas;
        once the candidate has all, of what it does since then.
        """
        state = self.state
        reported = [self.report(), *(updates.seen for updates in siblings.values())]
        sides: dict[ArmName, list[Tally]] = {"baseline": [], "candidate": []}
        if state is not None:
            sound = [one.windows for one in reported if one is not None and one.is_of(state)]
            for window in range(state.stage + 1):
                name = state.arm_of(window)
                if name == "baseline" or window >= state.whole:
                    sides[name].append(
                        add_tallies(one[window] for one in sound if window < len(one))
                    )
        return sides["baseline"], sides["candidate"]

    def verdict(self, siblings: Mapping[str, PolicyUpdate]) -> Verdict | None:
        """Return what is found so far; None when nothing is on trial."""
        state, arms = self.state, self.arms
        if state is None or arms is None:
            return None
        formula = arms.candidate.cost.formula
        if isinstance(formula, OwnFormula) and formula.off:
            # The default decides in its place: no comparison would show it.
            return Verdict("worse", formula.problem)
        if self.simulated is not None and self.simulated.kind == "worse":
            return self.simulated
        change = state.change
        found = compare(*self.seen(siblings), change.bounds, change.min_requests)
        if not state.whole:
            return found
        return Verdict(found.kind, f"all requests against before: {found.reason}")

    def leads(self, siblings: Mapping[str, PolicyUpdate]) -> bool:
        """Return whether it is this replica that moves a change on."""
        able = not self.refused
        return able and not any(n < self._replica and one.able for n, one in siblings.items())

    def decide(self, at: float, siblings: Mapping[str, PolicyUpdate]) -> RolloutState | None:
        """Return to the baseline when the candidate is worse, or move the change on where that is
        this replica's to do; return the state then, else None. `siblings` are the live ones.
        """
        state, arms, verdict = self.state, self.arms, self.verdict(siblings)
        if state is None or arms is None or verdict is None:
            return None
        if verdict.kind == "worse":
            return self._return(state, at, verdict.reason)
        window_s = state.change.window_s
        if at - state.since >= SETTLE * window_s:
            arms.settled()
        if not self.leads(siblings):
            return None
        if at - state.at > state.change.max_s:
            why = f"no verdict in {state.change.max_s:g} s (max_s), the baseline stays"
            return self._return(state, at, f"{why}: {verdict.reason}")
        baseline, candidate = self.seen(siblings)
        name = state.arm_of(state.stage)
        ended = (baseline if name == "baseline" else candidate)[-1].requests
        waits = self.simulated is None and not state.stage
        if at - state.since < window_s or ended < state.least() or waits:
            return None
        return self._next(state, at, verdict)

    def _next(self, state: RolloutState, at: float, verdict: Verdict) -> RolloutState:
        """End a window: what it shows is not worse."""
        window = state.stage + 1
        if state.whole:
            if window - state.whole >= WHOLE:
                return self._follow(state.moved(self._step(at, 1.0, verdict.reason), "done"))
        elif verdict.kind == "ahead":
            state = state.moved(self._step(at, 1.0, verdict.reason))
            state = msgspec.structs.replace(state, whole=window)
        elif window >= MOST_WINDOWS:
            why = f"no verdict in {window} windows, the baseline stays"
            return self._return(state, at, f"{why}: {verdict.reason}")
        return self._follow(state.next_window(at))

    def _return(self, state: RolloutState, at: float, reason: str) -> RolloutState:
        return self._follow(state.moved(self._step(at, 0.0, reason), "returned"))

    def _step(self, at: float, share: float, reason: str) -> Step:
        return Step(at, self._replica, share, reason[:MOST_REASON])

    def _follow(self, state: RolloutState) -> RolloutState:
        """Go by `state`; its policies are known here. Each window counts for itself."""
        known = self.state
        if known is None or known.name != state.name:
            self._counters, self.simulated = [], None
        if known is None or (known.name, known.phase) != (state.name, state.phase):
            self.counts[state.phase] += 1
        self.state, self.refused, self._refused = state, "", None
        self._history[state.name] = state
        if len(self._history) > MOST_HISTORY:
            self._history.popitem(last=False)
        self.spec, self.arms = state.in_force, None
        self.policy = self.spec.find(self._formulas)
        if state.phase == "running":
            self._counters += (Counter() for _ in range(len(self._counters), state.stage + 1))
            candidate = state.change.policy.find(self._formulas)
            arm, counter = state.arm_of(state.stage), self._counters[state.stage]
            self.arms = Arms(self.policy, candidate, arm, counter, state.quota())
        return state
