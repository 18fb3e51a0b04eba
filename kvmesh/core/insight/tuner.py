"""The tuner: observes a load, has weights searched, shadows them, and proposes what is better."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.core.insight.load_character import Character, differences
from kvmesh.core.insight.tuning_acts import (
    Act,
    GiveUp,
    Seen,
    Stage,
    StartSearch,
    StartShadow,
    Step,
    StepKind,
    StopShadow,
    TunerStatus,
)
from kvmesh.core.insight.tuning_judgement import describe, judge_shadow, model_error, pick, ratios
from kvmesh.core.insight.weight_search import Found, Weighting, alike, name_policy

MAX_STEPS: Final = 32
MAX_DROPPED: Final = 16

DRIFT_LOOKS: Final = 2
"""Looks in a row that must show another load before it is believed."""

SHADOW_PATIENCE: Final = 10.0
"""After so many times `shadow_s` a shadow that still has too few decisions is given up."""


class TunerOptions(msgspec.Struct, frozen=True):
    """How careful a tuner is. Times in seconds.

    A search needs `least_requests` in `observe_s` at least. What it finds must be better by
    `min_gain` on requests held out, against the present weights and the default ones, and the
    simulator's median TTFT within `model_ratio` times of the measured one. A candidate is shadowed
    for `shadow_s` and `shadow_decisions` at least. One that a shadow speaks against is not shadowed
    again for `reject_s`, and nothing is searched for `rest_s` then; otherwise the same load is
    searched again after `retune_s`. Searches begin at least `pause_s` apart.
    """

    least_requests: int = 500
    observe_s: float = 120.0
    min_gain: float = 0.03
    model_ratio: float = 3.0
    shadow_s: float = 60.0
    shadow_decisions: int = 200
    pause_s: float = 30.0
    rest_s: float = 600.0
    reject_s: float = 7200.0
    retune_s: float = 3600.0


class Tuner:
    """Decides what to do next; does nothing itself. Deterministic, bounded, O(1) a look.

    Where the load changes its character, what was proposed for another one is withdrawn, and the
    new load is searched as soon as it was seen for long enough. `since_s`: only requests that began
    after it count.
    """

    def __init__(
        self, options: TunerOptions, cost: str, default: Weighting, now: float = 0.0
    ) -> None:
        self.options = options
        self.cost = cost
        self.default = default
        self.since_s = now
        self.stage: Stage = "observing"
        self.candidate: Weighting | None = None
        self._words = "no request was seen yet"
        self._base: Character | None = None
        self._now: Character | None = None
        self._proposal: Weighting | None = None
        self._found: Found | None = None
        self._not_before_s = 0.0
        self._shadow_from_s = 0.0
        self._strange_checks = 0
        self._dropped: deque[tuple[float, Weighting]] = deque(maxlen=MAX_DROPPED)
        self._steps: deque[Step] = deque(maxlen=MAX_STEPS)
        self._number = 0

    def check(self, seen: Seen, now: float) -> list[Act]:
        """Return what to do next, in order."""
        if not seen.leads or seen.obstacle:
            words = seen.obstacle or "another replica of the bucket tunes"
            return self._stand_aside("blocked" if seen.leads else "following", words, now)
        if self.stage in ("following", "blocked"):
            self._begin_anew(now)
        self._now = seen.character
        drift = self._drift(seen.character)
        if drift:
            return self._drifted(drift, now)
        match self.stage:
            case "observing":
                return self._observe(seen, now)
            case "shadowing":
                return self._judge_shadow(seen, now)
            case _:
                return []

    def found(self, found: Found, now: float) -> list[Act]:
        """Take what a search found; nothing happens when none was under way."""
        if self.stage != "searching":
            return []
        self._found = found
        wrong = model_error(found, self.options.model_ratio)
        if wrong:
            return self._rest("dropped", wrong, self.options.rest_s, now)
        chosen = pick(found, self.options.min_gain)
        if chosen is None:
            text = (
                f"nothing better by {self.options.min_gain:.0%} in {found.trials} trials on"
                f" {found.requests} requests: best {ratios(found.best, found)}"
            )
            return self._rest("nothing-better", text, self.options.retune_s, now)
        policy = name_policy(self.cost, chosen.weights)
        if self._was_dropped(chosen.weights, now):
            text = f"{policy} again, which its shadow spoke against"
            return self._rest("dropped", text, self.options.rest_s, now)
        self._step("found", f"{policy}: {ratios(chosen, found)}", now)
        self.stage, self.candidate = "shadowing", chosen.weights
        self._shadow_from_s = now
        self._step("shadows", f"{policy} for {self.options.shadow_s:g} s", now)
        return [StartShadow(chosen.weights)]

    def search_failed(self, why: str, now: float) -> list[Act]:
        """Take that a search ended without a result."""
        if self.stage != "searching":
            return []
        return self._rest("dropped", f"the search failed: {why}", self.options.rest_s, now)

    def status(self) -> TunerStatus:
        """Return all that is known, for people; the newest step last."""
        proposal = name_policy(self.cost, self._proposal) if self._proposal is not None else ""
        return TunerStatus(
            stage=self.stage,
            words=self._words,
            cost=self.cost,
            character=self._now,
            candidate=self.candidate,
            proposal=proposal,
            found=self._found,
            steps=tuple(self._steps),
        )

    def _observe(self, seen: Seen, now: float) -> list[Act]:
        if self._base is None:
            self._base = seen.character
        least = self.options.least_requests
        if self._base is None or seen.rows < least:
            self._words = f"{seen.rows} of {least} requests seen since the load was like this"
            return []
        if now < self.since_s + self.options.observe_s:
            left_s = self.since_s + self.options.observe_s - now
            self._words = f"observes this load for {left_s:.0f} s more"
            return []
        if now < self._not_before_s:
            self._words = f"looks again in {self._not_before_s - now:.0f} s, or for another load"
            return []
        self._base = seen.character or self._base
        self.stage = "searching"
        self._not_before_s = now + self.options.pause_s
        self._step("searches", f"{self.cost} on {seen.rows} requests: {describe(self._base)}", now)
        return [StartSearch(self.since_s)]

    def _judge_shadow(self, seen: Seen, now: float) -> list[Act]:
        assert self.candidate is not None
        options, report, took_s = self.options, seen.shadow, now - self._shadow_from_s
        decisions = 0 if report is None else report.decisions
        if report is None or decisions < options.shadow_decisions or took_s < options.shadow_s:
            self._words = f"{decisions} of {options.shadow_decisions} decisions shadowed"
            if took_s < SHADOW_PATIENCE * options.shadow_s:
                return []
            text = f"only {decisions} decisions were shadowed in {took_s:.0f} s"
            return [*self._rest("dropped", text, options.rest_s, now), StopShadow()]
        text, wrong = judge_shadow(report, seen.block_ms)
        if wrong:
            self._dropped.append((now, self.candidate))
            return [*self._rest("dropped", text, options.rest_s, now), StopShadow()]
        policy = name_policy(self.cost, self.candidate)
        self._proposal = self.candidate
        acts = self._rest("proposes", f"{policy}; {text}", options.retune_s, now)
        return [*acts, StopShadow()]

    def _drift(self, character: Character | None) -> tuple[str, ...]:
        """Return in words why the load is another one by now; nothing while that may be chance."""
        if character is None or self._base is None:
            return ()
        changes = differences(self._base, character)
        self._strange_checks = self._strange_checks + 1 if changes else 0
        return changes if self._strange_checks >= DRIFT_LOOKS else ()

    def _drifted(self, changes: Iterable[str], now: float) -> list[Act]:
        why = f"the load is another one: {', '.join(changes)}"
        acts = self._abandon()
        self._begin_anew(now)
        self._step("drifted", why, now)
        return acts

    def _stand_aside(self, stage: Stage, words: str, now: float) -> list[Act]:
        acts = self._abandon()
        if self.stage != stage or self._words != words:
            self._step("waits", words, now)
        self.stage, self._words = stage, words
        return acts

    def _abandon(self) -> list[Act]:
        """End what is under way."""
        acts: list[Act] = []
        if self.stage == "searching":
            acts.append(GiveUp())
        elif self.stage == "shadowing":
            acts.append(StopShadow())
        self.candidate = None
        return acts

    def _begin_anew(self, now: float) -> None:
        self.stage, self.since_s = "observing", now
        self._base = self._proposal = None
        self._strange_checks = 0
        self._not_before_s = min(self._not_before_s, now + self.options.pause_s)

    def _rest(self, kind: StepKind, text: str, pause_s: float, now: float) -> list[Act]:
        """Conclude, and observe for `pause_s` at least."""
        self.stage, self.candidate = "observing", None
        self._not_before_s = now + pause_s
        self._step(kind, text, now)
        return []

    def _was_dropped(self, weights: Weighting, now: float) -> bool:
        return any(
            alike(one, weights) and now - at_s < self.options.reject_s
            for at_s, one in self._dropped
        )

    def _step(self, kind: StepKind, text: str, now: float) -> None:
        self._number += 1
        self._words = text
        self._steps.append(Step(self._number, now, kind, text))
