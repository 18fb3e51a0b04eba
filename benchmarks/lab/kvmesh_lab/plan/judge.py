"""Whether a fleet holds the targets: the simulator plays the load, several times a little moved."""

import random
from collections.abc import Callable, Mapping, Sequence
from math import ceil, exp, inf, sqrt
from statistics import fmean
from typing import Final

import msgspec

from kvmesh.core.routing.decision import RouterOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.plan.kinds import Kind, Mix
from kvmesh_lab.plan.targets import FIGURES, Figure, Target, figure_ms
from kvmesh_lab.plan.workload import Course, Workload
from kvmesh_lab.report.outcome import RequestOutcome, percentile
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions

EVENTS: Final = 2_000
"""Events between two looks at how many requests have missed."""

HOPELESS: Final = 2.0
"""A play ends where so many times the allowed share of requests has missed."""

PLAIN: Final = 1.25
"""Where the first play is so far from the limit, no other one is needed to decide."""

EIGHT_OF_TEN: Final = 1.2816
"""Standard deviations to both sides between which eight of ten lie."""


class Errors(msgspec.Struct, frozen=True):
    """By figure, how many times as long as simulated things took, and the standard deviation of its
    logarithm.
    """

    factor: Mapping[Figure, float]
    spread: Mapping[Figure, float]


class Run(msgspec.Struct, frozen=True):
    """One play: a time for each target, ms, inf: so many requests got no answer; `given_up`: it was
    ended, as the targets were missed.

    `times` has p50, p90 and p99 of each figure; `busy` is the engines' mean share of time in steps.
    """

    values: tuple[float, ...]
    times: Mapping[Figure, tuple[float, float, float]]
    hit_rate: float
    busy: float
    failed: int
    given_up: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """What was predicted of a fleet for one target: the time, ms, and the bar that it is within on
    eight of ten days.
    """

    target: Target
    ms: float
    low_ms: float
    high_ms: float

    @property
    def holds(self) -> bool:
        """Return whether the target holds by the prediction."""
        return self.ms <= self.target.limit_ms

    @property
    def surely(self) -> bool:
        """Return whether all of the bar is within the target."""
        return self.high_ms <= self.target.limit_ms


class Load(msgspec.Struct, frozen=True):
    """How the requests are played: `growth` times as fast, or with `live` above 0 so many programs
    under way, each of `seeds` times a little otherwise.
    """

    growth: float = 1.0
    live: int = 0
    seeds: int = 3


class Judge:
    """Plays fleets of `kinds`, each at most once a seed; `fleet` says all but their engines."""

    def __init__(
        self,
        workload: Workload,
        kinds: Sequence[Kind],
        fleet: FleetOptions,
        policy: RouterOptions,
        targets: Sequence[Target],
        load: Load,
    ) -> None:
        self.kinds = kinds
        self.targets = targets
        self.errors = Errors({}, {})
        self.plays = 0
        self.watch: Callable[[Mix], None] = _ignore
        self._fleet, self._policy, self._load = fleet, policy, load
        self._speedup = load.growth / workload.share
        self._course = Course(workload, policy.block_size)
        self.counted = self._course.counted
        self._runs: dict[tuple[Mix, int], Run] = {}

    def holds(self, mix: Mix, *, surely: bool = False) -> bool:
        """Return whether a fleet holds all targets; `surely`: with all of the error bar."""
        for seed in range(self._load.seeds):
            run = self._run(mix, seed, whole=False)
            if run.given_up:
                return False
            if not seed and (plain := self._plain(run)) is not None and not surely:
                return plain
        verdicts = self.verdicts(mix)
        return all(one.surely if surely else one.holds for one in verdicts)

    def verdicts(self, mix: Mix) -> tuple[Verdict, ...]:
        """Return what is predicted for each target."""
        runs = self.runs(mix)
        return tuple(
            self._verdict(target, [run.values[place] for run in runs])
            for place, target in enumerate(self.targets)
        )

    def runs(self, mix: Mix) -> list[Run]:
        """Return all plays of a fleet, none of which was given up."""
        return [self._run(mix, seed, whole=True) for seed in range(self._load.seeds)]

    def _verdict(self, target: Target, values: Sequence[float]) -> Verdict:
        factor = self.errors.factor.get(target.figure, 1.0)
        mean = factor * fmean(values)
        if mean == inf or not mean:
            return Verdict(target, mean, mean, mean)
        chance = max(abs(factor * value / mean - 1.0) for value in values)
        learned = EIGHT_OF_TEN * self.errors.spread.get(target.figure, 0.0)
        wide = exp(sqrt(chance**2 + learned**2))
        return Verdict(target, mean, mean / wide, mean * wide)

    def _plain(self, run: Run) -> bool | None:
        """Return what one play says, None where it is too close."""
        ratios = [
            self.errors.factor.get(target.figure, 1.0) * value / target.limit_ms
            for target, value in zip(self.targets, run.values, strict=True)
        ]
        worst = max(ratios)
        return None if 1.0 / PLAIN < worst < PLAIN else worst <= 1.0

    def _run(self, mix: Mix, seed: int, *, whole: bool) -> Run:
        known = self._runs.get((mix, seed))
        if known is None or (whole and known.given_up):
            known = self._runs[mix, seed] = self._play(mix, seed, whole=whole)
        return known

    def _play(self, mix: Mix, seed: int, *, whole: bool) -> Run:
        self.plays += 1
        self.watch(mix)
        engines = [one.engine for one, n in zip(self.kinds, mix, strict=True) for _ in range(n)]
        warm_s, warm_work_s = self._course.warm_s(engines)
        fleet = SimulatedFleet(
            fleet_of(self._fleet, engines, seed),
            self._policy,
            self._course.requests(seed, warm_s, self._speedup),
            random.Random(seed),  # noqa: S311  a simulation, not a secret
            speedup=self._speedup,
            live=round(self._load.live * self._load.growth),
        )
        missed, seen = [0] * len(self.targets), 0
        while fleet.advance(EVENTS):
            for one in fleet.outcomes[seen:]:
                for place, target in enumerate(self.targets):
                    missed[place] += one.index in self.counted and self._misses(one, target)
            seen = len(fleet.outcomes)
            if not whole and self._hopeless(missed):
                return Run((inf,) * len(missed), {}, 0.0, 1.0, 0, given_up=True)
        return self._measure(fleet, warm_s, warm_work_s)

    def _misses(self, outcome: RequestOutcome, target: Target) -> bool:
        ms = inf if outcome.error else figure_ms(outcome, target.figure)
        factor = self.errors.factor.get(target.figure, 1.0)
        return ms is not None and ms * factor > target.limit_ms

    def _hopeless(self, missed: Sequence[int]) -> bool:
        count = len(self.counted)
        return any(
            one > HOPELESS * (1.0 - target.share) * count + 1.0
            for one, target in zip(missed, self.targets, strict=True)
        )

    def _measure(self, fleet: SimulatedFleet, warm_s: float, warm_work_s: float) -> Run:
        found = [one for one in fleet.outcomes if one.index in self.counted]
        prompts = sum(one.prompt_tokens for one in found)
        lasted_s = max(one.sent_ms for one in found) / 1000.0 - warm_s
        busy_s = (sum(fleet.busy_s) - warm_work_s) / len(fleet.engines)
        ordered = {name: _ordered(found, name) for name in FIGURES}
        return Run(
            values=tuple(quantile(ordered[one.figure], one.share) for one in self.targets),
            times={
                name: (quantile(ms, 0.5), quantile(ms, 0.9), quantile(ms, 0.99))
                for name, ms in ordered.items()
            },
            hit_rate=sum(one.cached_tokens for one in found) / max(1, prompts),
            busy=min(1.0, max(0.0, busy_s / max(lasted_s, 0.001))),
            failed=sum(bool(one.error) for one in found),
        )


def fleet_of(fleet: FleetOptions, engines: Sequence[EngineOptions], seed: int) -> FleetOptions:
    """Return the fleet with these engines."""
    return msgspec.structs.replace(
        fleet,
        engines=len(engines),
        engine=engines[0],
        kinds=tuple(engines),
        speed_ratios=(1.0,),
        seed=seed,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the `share` (0..1) quantile of ascending values, inf where it is among these; 0 of
    none.
    """
    if not ordered:
        return 0.0
    above = ordered[ceil(share * (len(ordered) - 1))]
    return above if above == inf else percentile(ordered, share)


def _ordered(outcomes: Sequence[RequestOutcome], figure: Figure) -> list[float]:
    """Return their times, ascending; that of a failed request is inf."""
    found = (inf if one.error else figure_ms(one, figure) for one in outcomes)
    return sorted(ms for ms in found if ms is not None)


def _ignore(mix: Mix) -> None:
    del mix
