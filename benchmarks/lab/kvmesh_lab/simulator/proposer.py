"""Searches weights for a live fleet on its own trace: what a tuning router runs as a child."""

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.insight.weight_search import (
    Found,
    Judged,
    SearchTask,
    Weighting,
    name_policy,
    score_of,
)
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.report.outcome import RequestOutcome, distribution
from kvmesh_lab.simulator.calibration import Times, learned_fleet
from kvmesh_lab.simulator.comparison import geometric_mean
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.simulator.tuning import TUNED, Search
from kvmesh_lab.traces.trace import TraceRequest

WARM_SHARE: Final = 0.1
"""The first requests only fill the caches."""

TRAIN_SHARE: Final = 0.6
"""Up to here weights are searched; the rest is held out."""

LOADS: Final = (0.92, 1.0, 1.08)
"""Played at the present load and a little beside it: what wins at one alone won by chance."""

EVENTS: Final = 2_000
LEAST_REQUESTS: Final = 50


class OutOfTime(Exception):  # noqa: N818 - it ends a search, and is no error
    """The time for a search is over."""


class Run(msgspec.Struct, frozen=True):
    """One play: p90 times (ms) and the score of the requests searched on, and of those held out."""

    searched: float
    held_out: float
    ttft_ms_p90: float
    tpot_ms_p90: float
    ttft_ms_p50: float
    itl_ms_p50: float


class Proposer:
    """Plays a task's trace under weights, at its load and a little beside it."""

    def __init__(
        self,
        task: SearchTask,
        requests: Sequence[TraceRequest],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises `ConfigError` for a trace or a fleet that cannot be."""
        self._task = task
        self._clock = clock
        self._until = clock() + task.seconds
        kept = list(requests)[-task.requests :]
        self._requests: tuple[FleetRequest, ...] = make_requests(
            [msgspec.structs.replace(one, index=place) for place, one in enumerate(kept)],
            task.block_tokens,
            task.block_tokens,
        )
        # Only a share of the families was kept: the others' load is made up for by time.
        self._speedup = 1.0 / task.share
        self._trials = 0
        self._played: dict[str, list[Run]] = {}
        self._fleet = FleetOptions()

    def run(self) -> Found:
        """Return the best weights, or the candidate's, judged with the default and the present."""
        task, began = self._task, self._clock()
        self._calibrate()
        present, default = self._runs(task.present), self._runs(task.default)
        best, played = task.present, present
        if task.candidate:
            played = self._runs_of(task.candidate)
        else:
            best = self._search(min(task.present, task.default, key=self._score_of))
            played = self._runs(best)
        first = present[LOADS.index(1.0)]
        return Found(
            default=_judge(task.default, default, default),
            present=_judge(task.present, present, default),
            best=_judge(best, played, default),
            trials=self._trials,
            requests=len(self._requests),
            took_s=self._clock() - began,
            simulated_ttft_ms=first.ttft_ms_p50,
            measured_ttft_ms=task.ttft_ms,
            simulated_itl_ms=first.itl_ms_p50,
            measured_itl_ms=task.itl_ms,
        )

    def _search(self, begin: Weighting) -> Weighting:
        """Return the weights that do best where they are searched, as far as there is time."""
        best = [(float("inf"), begin)]
        specs = PUBLISHED.plain(self._task.cost).cost.weights.specs
        start = TUNED.get(self._task.cost, begin)
        moved = {name: begin.get(name, 0.0) or value for name, value in start.items()}

        def score(weights: Weighting) -> float:
            if self._clock() > self._until:
                raise OutOfTime
            whole = {**begin, **weights}
            found = self._score_of(whole)
            best.append((found, whole))
            return found

        with contextlib.suppress(OutOfTime):
            Search(moved, score, specs).run()
        return min(best, key=lambda one: one[0])[1]

    def _calibrate(self) -> None:
        task = self._task
        measured = Times(task.ttft_ms, task.ttft_ms, task.itl_ms)
        self._fleet = learned_fleet(task.fleet, task.block_tokens, measured, self._medians)

    def _medians(self, fleet: FleetOptions) -> Times:
        self._fleet = fleet
        seen = self._play(name_policy(self._task.cost, self._task.present), 1.0)
        return Times(seen.ttft_ms_p50, seen.ttft_ms_p50, seen.itl_ms_p50)

    def _runs(self, weights: Weighting) -> list[Run]:
        return self._runs_of(name_policy(self._task.cost, dict(sorted(weights.items()))))

    def _runs_of(self, policy: str) -> list[Run]:
        if policy not in self._played:
            self._played[policy] = [self._play(policy, load) for load in LOADS]
        return self._played[policy]

    def _score_of(self, weights: Weighting) -> float:
        return _score(self._runs(weights))

    def _play(self, policy: str, load: float) -> Run:
        self._trials += 1
        block = self._task.block_tokens
        fleet = SimulatedFleet(
            self._fleet,
            parse_policy(policy, block),
            self._requests,
            random.Random(self._task.seed),  # noqa: S311  a simulation, not a secret
            speedup=self._speedup * load,
        )
        while fleet.advance(EVENTS):
            pass
        count = len(self._requests)
        train = _between(fleet.outcomes, WARM_SHARE * count, TRAIN_SHARE * count)
        rest = _between(fleet.outcomes, TRAIN_SHARE * count, count)
        ttft, tpot = p90_times(rest)
        whole = distribution(one.ttft_ms for one in fleet.outcomes if one.ttft_ms is not None)
        itls = distribution(itl for one in fleet.outcomes if (itl := one.mean_itl_ms()) is not None)
        return Run(
            searched=score_of(*p90_times(train)),
            held_out=score_of(ttft, tpot),
            ttft_ms_p90=ttft,
            tpot_ms_p90=tpot,
            ttft_ms_p50=whole.p50 if whole else 0.0,
            itl_ms_p50=itls.p50 if itls else 0.0,
        )


def p90_times(outcomes: Sequence[RequestOutcome]) -> tuple[float, float]:
    """Return p90 TTFT and p90 time per further token, ms; 0 of nothing."""
    ttft = distribution(one.ttft_ms for one in outcomes if one.ttft_ms is not None)
    tpot = distribution(mean for one in outcomes if (mean := one.mean_itl_ms()) is not None)
    return ttft.p90 if ttft else 0.0, tpot.p90 if tpot else 0.0


def _between(outcomes: Sequence[RequestOutcome], begin: float, end: float) -> list[RequestOutcome]:
    return [one for one in outcomes if begin <= one.index < end]


def _score(runs: Sequence[Run]) -> float:
    return geometric_mean([one.searched for one in runs])


def _judge(weights: Weighting, runs: Sequence[Run], default: Sequence[Run]) -> Judged:
    return Judged(
        weights=dict(weights),
        searched=_score(runs) / _score(default),
        held_out=geometric_mean([one.held_out for one in runs])
        / geometric_mean([one.held_out for one in default]),
        ttft_ms_p90=geometric_mean([max(one.ttft_ms_p90, 1.0) for one in runs]),
        tpot_ms_p90=geometric_mean([max(one.tpot_ms_p90, 1.0) for one in runs]),
    )
