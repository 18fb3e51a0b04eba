"""Naive model of kvmesh/native/decide/choose.c and decide.c: weighs each candidate in full, picks
one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import ALL_BLOCKS
from kvmesh.core.cost.arms import Arm
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.formulas import scores_of
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.cost.program import compile_formula
from kvmesh.core.cost.selection import Random, choose_softmax
from kvmesh.core.cost.terms import NO_FLEET, Brought, survey
from kvmesh.core.index.overlaps import Found
from kvmesh.core.members.loads import MOST_TOKENS
from kvmesh.core.routing.choice.courses import has_no_own
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterMode, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError
from tests.reference.routing.foretelling import foretell, in_time
from tests.reference.routing.homes import home_seed, rates_of, seed_of
from tests.reference.routing.second_home import find_second_home
from tests.reference.routing.selection import (
    choose_least,
    find_home,
    find_ties,
    pick,
    two_of,
)
from tests.reference.routing.weighing import Weighed, Weighing, by_default, weigh_all
from tests.reference.workers.turns import WorkerTurns

OUTPUT_CAP: Final = 4.0
"""An expected output counts up to this many times the mean: clients name limits, not lengths."""

NEW_SHARE: Final = 0.5
"""A prompt of which less is cached is new. Source: Preble, arXiv 2407.00023."""


class FirstOf:
    """The rng of a dry run: draws nothing, so that asking changes no later decision."""

    def random(self) -> float:
        return 0.0


class Chooser:
    """Turns what is known of the workers into a `Decision` as `core.routing.choice.chooser` does;
    books nothing. Every candidate is weighed in full.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._workers = scheduler.workers
        self._overlaps = scheduler.overlaps
        self._sequences = scheduler.sequences
        self._speeds = scheduler.speeds

    @property
    def _options(self) -> RouterOptions:
        return self._scheduler.options

    def choose(
        self, request: RouteRequest, now: float, *, whole: bool = False, likeliest: bool = False
    ) -> Decision:
        """Return the decision for `request`; `whole` keeps every candidate."""
        rng = FirstOf() if likeliest else self._scheduler.rng
        self._sequences.settle(now, self._speeds.ms_per_token)
        names = self._workers.eligible(request, now)
        mode = request.mode or self._options.mode
        courses = self._scheduler.courses
        policy, arm = courses.policy, None
        if courses.arms is not None and mode == "kv" and has_no_own(request):
            arm = courses.arms.find()
            policy = policy if arm is None else arm.policy
        weighing = self._weigh(request, now, mode, len(names), policy)
        formula = weighing.cost.formula
        if isinstance(formula, OwnFormula) and formula.off:
            weighing = by_default(weighing, formula)
        temperature = request.temperature
        if temperature is None:
            temperature = self._options.temperature
        if request.targets is not None and mode == "kv":
            return self._choose_in_time(request, names, weighing, arm, temperature, rng)
        if mode != "kv":
            worker = self._choose_blind(mode, request, names, rng)
            shown = names if whole else (worker,)
            weighing, weighed = self._weigh_in_full(shown, weighing)
            chosen = shown.index(worker)
        else:
            whole = whole or compile_formula(weighing.cost) is None
            weighing, weighed = self._weigh_in_full(names, weighing)
            chosen = self._choose_weighed(weighed, weighing, temperature, rng)
            if temperature <= 0.0:
                chosen = names.index(self._spread(names[chosen], names, weighing))
                if not whole:
                    alone = weighed.candidates[chosen], weighed.scores[chosen]
                    weighed, chosen = Weighed((alone[0],), (alone[1],), NO_FLEET), 0
        return _decision(request, weighing, weighed, chosen, names, arm)

    def _choose_in_time(
        self,
        request: RouteRequest,
        names: Sequence[WorkerId],
        weighing: Weighing,
        arm: Arm | None,
        temperature: float,
        rng: Random,
    ) -> Decision:
        """Do as `choose` for a request with targets: each candidate is weighed, the formula decides
        among those that hardly miss them.
        """
        weighing, weighed = self._weigh_in_full(names, weighing)
        tpot_ms = self._speeds.ms_per_output_token
        slo, targets = self._scheduler.slo, request.targets
        assert targets is not None, "its caller looked"
        waited_ms = slo.waited_ms(request.request_id, weighing.now)
        forecasts = foretell(slo, targets, waited_ms, weighed.candidates, tpot_ms)
        places = in_time(forecasts, request.priority)
        among = Weighed(
            tuple(weighed.candidates[place] for place in places),
            tuple(weighed.scores[place] for place in places),
            weighed.fleet,
        )
        chosen = places[self._choose_weighed(among, weighing, temperature, rng)]
        decision = _decision(request, weighing, weighed, chosen, names, arm)
        return msgspec.structs.replace(
            decision,
            forecast=forecasts[chosen],
            best_forecast=min(forecasts, key=lambda one: one.chance),
            forecasts=forecasts,
        )

    def _weigh(
        self, request: RouteRequest, now: float, mode: RouterMode, workers: int, policy: Pricing
    ) -> Weighing:
        options, sequences = self._options, self._sequences
        pricing = policy if has_no_own(request) else self._scheduler.pricing(request)
        cost = pricing.cost
        uses_caches = "kv" in (mode, options.mode)
        found = self._overlaps.find(request.hashes, now) if uses_caches else Found({}, [], [])
        overlaps, groups = found.overlaps, found.groups
        brought: Mapping[WorkerId, Brought] = {}
        if found.slower or self._workers.fetchers:
            brought = self._scheduler.planner.plan(found, request, options.block_size, now)
        deepest = max(overlaps.values()) if found.slower else groups[0][0] if groups else 0
        blocks = request.hashes.upto(deepest + 1) if uses_caches else ()
        speeds = self._speeds
        seed = 0
        if request.affinity:
            all_blocks = request.hashes.upto(ALL_BLOCKS if uses_caches else 0)
            seed = seed_of(request.affinity, all_blocks, options.block_size)
            seed = home_seed(rates_of(self._scheduler), seed, now)
        usual = int(OUTPUT_CAP * speeds.output_tokens) or MOST_TOKENS
        expected = min(request.expected_output_tokens, usual)
        size = options.block_size
        cold: Mapping[WorkerId, float] = {}
        if request.adapter:
            cold = self._workers.adapters.cold(request.adapter, self._workers.known)
        return Weighing(
            now=now,
            policy=cost.name if mode == "kv" else mode,
            cost=cost,
            block_size=size,
            prompt_tokens=request.prompt_tokens,
            request_blocks=-(-request.prompt_tokens // size),
            output_blocks=-(-expected // size),
            overlaps=overlaps,
            keys=sharing_keys(blocks) if deepest else (),
            weights=pricing.weights,
            speeds=speeds,
            blocks=blocks,
            arrivals_per_ms=sequences.arrivals.per_ms(now) / workers,
            answer_tokens=speeds.answer_tokens(expected),
            brought=brought,
            prefilled=request.prefilled,
            reported=found.reported,
            routed=found.routed,
            cold=cold,
            seed=seed,
        )

    def _weigh_in_full(
        self, names: Sequence[WorkerId], weighing: Weighing
    ) -> tuple[Weighing, Weighed]:
        """Weigh each candidate; by the default formula where one of one's own fails."""
        known, state = self._workers.known, self._workers.state
        candidates = tuple(
            [
                weighing.candidate(known.get(name) or state(name), cached)
                for name, cached in zip(names, self._overlaps.cached_blocks(names), strict=True)
            ]
        )
        formula = weighing.cost.formula
        if isinstance(formula, OwnFormula):
            fleet = survey(candidates, weighing.weights)
            scores = scores_of(weighing.cost, candidates, fleet, weighing.weights)
            if scores is not None:
                return weighing, Weighed(candidates, tuple(scores), fleet)
            weighing = by_default(weighing, formula)
        return weighing, weigh_all(candidates, weighing)

    def _choose_weighed(
        self, weighed: Weighed, weighing: Weighing, temperature: float, rng: Random
    ) -> int:
        cost = weighing.cost
        costs = [-score for score in weighed.scores] if cost.maximise else weighed.scores
        if temperature > 0.0:
            return choose_softmax(costs, temperature, rng)
        sizes: list[int] | None = None
        if self._options.smallest_tree_ties:
            sizes = [one.cached_blocks for one in weighed.candidates]
        ties = find_ties(costs, sizes, cost.margin)
        if len(ties) == 1:
            return ties[0]
        names = [weighed.candidates[index].worker for index in ties]
        return ties[self._settle(names, [costs[index] for index in ties], weighing, rng)]

    def _spread(self, name: WorkerId, names: tuple[WorkerId, ...], weighing: Weighing) -> WorkerId:
        """Return the worker at rest that becomes one more home of the prefix, else `name`."""
        best = self._workers.state(name)
        if not best.loads.active_requests or not weighing.cost.margin:
            return name
        if weighing.prefilled or weighing.brought or weighing.cold:
            return name
        return find_second_home(best, self._workers.states(names), weighing).worker

    def _settle(
        self, names: Sequence[WorkerId], costs: Sequence[float], weighing: Weighing, rng: Random
    ) -> int:
        """Return the index of one of equally good workers.

        What hardly begins like anything cached goes to the idle worker whose prefill has rested
        longest. Else whoever served the first prompt, and so holds the beginning that all have in
        common, would get every other one, and the rest of an idle fleet none. Where none is idle it
        goes to the cheapest: a home is of no use to it.
        """
        overlaps = weighing.overlaps
        if (
            not weighing.cost.margin
            or weighing.seed
            or NEW_SHARE * weighing.request_blocks <= max([overlaps.get(name, 0) for name in names])
        ):
            return _settle_tie(names, weighing, rng)
        loads = [self._sequences.loads(name) for name in names]
        rested = [one.progress_s for one in loads if not one.active_requests]
        if rested:
            longest = min(rested)
            equal = [
                index
                for index, one in enumerate(loads)
                if one.progress_s == longest and not one.active_requests
            ]
        else:
            equal = [index for index, one in enumerate(costs) if one == min(costs)]
        return equal[_settle_tie([names[index] for index in equal], weighing, rng)]

    def _choose_blind(
        self, mode: RouterMode, request: RouteRequest, names: Sequence[WorkerId], rng: Random
    ) -> WorkerId:
        if mode == "round-robin":
            return WorkerTurns(self._sequences.turns).next(names, self._options.replica)
        if mode == "random":
            return names[pick(len(names), rng)]
        if mode == "direct" and request.pinned_worker is None:
            raise NoWorkerError(
                f"request {request.request_id}: mode direct needs a worker to be named: send "
                "x-kvmesh-worker-id, or kvmesh.worker in the body",
                unnamed=True,
            )
        if mode == "power-of-two" and len(names) > 1:
            first, second = two_of(len(names), rng)
            names = (names[first], names[second])
        state = self._workers.state
        requests = [state(name).loads.active_requests for name in names]
        return names[choose_least(requests, rng)]


def _settle_tie(names: Sequence[WorkerId], weighing: Weighing, rng: Random) -> int:
    """Return the index of one of equally good workers: one that holds most of the prompt, and of
    those the home of the first block that they lack.

    So replicas that do not know of each other's latest choices send the same new prefix to the
    same worker, and a hot one, whose holders are overloaded, to the same next: homes follow each
    other in rendezvous order. Formulas without a margin draw, as they are published.
    """
    if not weighing.cost.margin:
        return pick(len(names), rng)
    home = find_home(names, weighing.overlaps, weighing.blocks, weighing.seed)
    if home >= 0:
        return home
    held = [weighing.overlaps.get(name, 0) for name in names]
    most = max(held)
    best = [index for index, blocks in enumerate(held) if blocks == most]
    return best[pick(len(best), rng)]


def _decision(
    request: RouteRequest,
    weighing: Weighing,
    weighed: Weighed,
    chosen: int,
    names: Sequence[WorkerId],
    arm: Arm | None,
) -> Decision:
    candidate, told_blocks = weighed.candidates[chosen], 0
    for depth, workers in weighing.reported:
        if candidate.worker in workers:
            told_blocks = depth
            break
    return Decision(
        request_id=request.request_id,
        worker=candidate.worker,
        overlap_blocks=candidate.overlap_blocks,
        total_blocks=candidate.request_blocks,
        policy=weighing.policy,
        score=weighed.scores[chosen],
        considered=len(names),
        chosen=candidate,
        candidates=weighed.candidates,
        scores=weighed.scores,
        cost=weighing.cost,
        fleet=weighed.fleet,
        weights=weighing.weights,
        by_cache=weighing.policy == weighing.cost.name,
        best_overlap_blocks=max([weighing.overlaps.get(one, 0) for one in names]),
        told_blocks=told_blocks,
        instead_of=weighing.instead_of,
        arm=arm,
        brought=weighing.brought.get(candidate.worker) if weighing.brought else None,
    )
