"""One replica's part in a change of policy: it follows what counts, and decides when it must."""

from collections import OrderedDict
from collections.abc import Mapping
from math import inf, nextafter
from typing import Final

from kvmesh.core.cost.arm_tally import Tally, add_tallies
from kvmesh.core.cost.arms import Arms, Marks
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, Pricing
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec, spec_of
from kvmesh.core.insight.rollout_state import (
    MOST_REASON,
    Phase,
    PolicyUpdate,
    RolloutState,
    StageReport,
    Step,
    newest,
)
from kvmesh.core.insight.rollout_verdict import Verdict, compare
from kvmesh.errors import ConfigError, RequestError

MOST_HISTORY: Final = 32
"""Changes remembered; the oldest is forgotten first."""

CONFLICT: Final = 409


class Rollout:
    """The policy in force at one replica (`policy`), and the `arms` while a change is on trial.

    Every replica folds the states of its siblings (`adopt`), and may return from what it sees to be
    worse. One moves the change on (`decide`): the least name of those that can. Replicas that do
    not see each other may decide differently; when they do again, a return counts. `base` is the
    policy of the settings, `counts` are the changes that came to each phase.
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
        self._spec = spec_of(base)
        self._marks = Marks()
        self._history: OrderedDict[tuple[float, str], RolloutState] = OrderedDict()
        self._refused: RolloutState | None = None

    @property
    def spec(self) -> PolicySpec:
        """Return the policy in force by name: the baseline while a change is on trial."""
        return self._spec

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
                f"{state.change.policy} has {state.share:.0%} of the requests on trial since"
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
        begun = Step(at, self._replica, change.share(0), "asked for")
        phase: Phase = "done" if change.immediate else "running"
        self._follow(RolloutState(at, self._replica, change, self._spec, phase, 0, (begun,)))
        assert self.state is not None
        return self.state

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

    def report(self) -> StageReport | None:
        """Return what this replica saw in the present stage; None when nothing is on trial."""
        state, arms = self.state, self.arms
        if state is None or arms is None:
            return None
        return StageReport(
            *state.name,
            state.stage,
            arms.baseline.counter.tally(),
            arms.candidate.counter.tally(),
        )

    def seen(self, siblings: Mapping[str, PolicyUpdate]) -> tuple[Tally, Tally]:
        """Return the baseline's and the candidate's tallies of the present stage over replicas."""
        state = self.state
        reported = [self.report(), *(updates.report for updates in siblings.values())]
        reports = [
            one for one in reported if one is not None and state is not None and one.is_of(state)
        ]
        return (
            add_tallies(one.baseline for one in reports),
            add_tallies(one.candidate for one in reports),
        )

    def verdict(self, siblings: Mapping[str, PolicyUpdate]) -> Verdict | None:
        """Return what the arms show so far; None when nothing is on trial."""
        state, arms = self.state, self.arms
        if state is None or arms is None:
            return None
        formula = arms.candidate.policy.cost.formula
        if isinstance(formula, OwnFormula) and formula.off:
            # The default decides in its place: no comparison would show it.
            return Verdict("worse", formula.problem)
        baseline, candidate = self.seen(siblings)
        return compare(baseline, candidate, state.change.bounds, state.change.min_requests)

    def decide(self, at: float, siblings: Mapping[str, PolicyUpdate]) -> RolloutState | None:
        """Return to the baseline when the candidate is worse, or move the change on where that is
        this replica's to do; return the state then, else None. `siblings` are the live ones.
        """
        state, verdict = self.state, self.verdict(siblings)
        if state is None or verdict is None:
            return None
        if verdict.kind == "worse":
            return self._return(state, at, verdict.reason)
        if any(name < self._replica and updates.able for name, updates in siblings.items()):
            return None
        if verdict.kind == "ahead":
            return self._advance(state, at, verdict.reason)
        longest_s = state.change.max_stage_s
        if longest_s and at - state.steps[-1].at > longest_s:
            return self._return(
                state, at, f"no verdict in {longest_s:g} s (max_stage_s): {verdict.reason}"
            )
        return None

    def _advance(self, state: RolloutState, at: float, reason: str) -> RolloutState:
        if state.stage + 1 == len(state.change.stages):
            self._follow(state.moved(self._step(at, 1.0, reason), "done"))
        else:
            stage = state.stage + 1
            step = self._step(at, state.change.share(stage), reason)
            self._follow(state.moved(step, stage=stage))
        assert self.state is not None
        return self.state

    def _return(self, state: RolloutState, at: float, reason: str) -> RolloutState:
        self._follow(state.moved(self._step(at, 0.0, reason), "returned"))
        assert self.state is not None
        return self.state

    def _step(self, at: float, share: float, reason: str) -> Step:
        return Step(at, self._replica, share, reason[:MOST_REASON])

    def _follow(self, state: RolloutState) -> None:
        """Go by `state`; its policies are known here. Each stage counts anew."""
        if self.state is None or self.state.name != state.name:
            self._marks = Marks()
        if self.state is None or (self.state.name, self.state.phase) != (state.name, state.phase):
            self.counts[state.phase] += 1
        self.state, self.refused, self._refused = state, "", None
        self._history[state.name] = state
        if len(self._history) > MOST_HISTORY:
            self._history.popitem(last=False)
        self._spec, self.arms = state.in_force, None
        self.policy = self._spec.find(self._formulas)
        if state.phase == "running":
            candidate, salt = state.change.policy.find(self._formulas), f"{state.at!r}{state.by}"
            self.arms = Arms(self.policy, candidate, state.share, salt, self._marks)
