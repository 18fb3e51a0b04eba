"""From a workload to a plan: engines as they are known, the search, the rows to show."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import msgspec

from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import StepLoad
from kvmesh_lab.plan.judge import Errors, Judge, Load, quantile
from kvmesh_lab.plan.kinds import LEARNED, Kind, Mix, price_of, read_kinds
from kvmesh_lab.plan.options import PlanOptions
from kvmesh_lab.plan.record import FleetPlan, named, row_of
from kvmesh_lab.plan.search import cheapest
from kvmesh_lab.plan.targets import Target, parse_targets
from kvmesh_lab.plan.workload import Course, Workload
from kvmesh_lab.simulator.calibration import Times, learned_fleet
from kvmesh_lab.simulator.comparison import geometric_mean
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.oracle import alone_ttfts_ms
from kvmesh_lab.traces.trace import new_tokens

ROOM: Final = 1.3
"""The search starts at so many times the engines that the work alone would keep busy."""

ROWS: Final = 2
"""Larger fleets shown beside the answer, where they were played."""


@dataclass(frozen=True)
class Basis:
    """What a plan is made on: a fleet but for its engines, their kinds, and how routers decide."""

    fleet: FleetOptions
    kinds: tuple[Kind, ...]
    policy: str


def find_basis(options: PlanOptions, workload: Workload) -> Basis:
    """Return what is known of engines and routers, from the log or from profiles.

    Raises `ConfigError`.
    """
    trace, logged = workload.trace, workload.fleet
    given = options.model_profile or options.timing_profile
    policy = options.policy or (logged.policy if logged is not None else "kv")
    fleet = options.fleet(trace.block_size)
    parse_policy(policy, fleet.engine.block_size)
    name, learned = "engines", logged is not None and not given
    if logged is not None:
        facts = logged.fleet
        fleet = msgspec.structs.replace(
            fleet,
            routers=options.routers or facts.replicas,
            kv_events=facts.kv_events,
            max_backlog_ms=facts.max_backlog_ms,
        )
    if learned:
        engine = learn_engine(workload, policy)
        blocks = options.blocks or engine.num_gpu_blocks
        engine = msgspec.structs.replace(
            engine,
            num_gpu_blocks=blocks,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
        )
        name, fleet = LEARNED, msgspec.structs.replace(fleet, engine=engine)
    if options.prices is None:
        kinds: tuple[Kind, ...] = (Kind(name, fleet.engine, 1.0, options.most),)
    else:
        found = read_kinds(options.prices, fleet.engine, learned=learned)
        kinds = tuple(
            msgspec.structs.replace(one, most=min(one.most, options.most)) for one in found
        )
    return Basis(fleet, kinds, policy)


def learn_engine(workload: Workload, policy: str) -> EngineOptions:
    """Return the engine of a log's fleet, of its mean speed, with which the simulator comes nearest
    the times that were measured.
    """
    logged, trace = workload.fleet, workload.trace
    assert logged is not None
    course = Course(workload, trace.block_size)
    many = _most_computed(workload)

    def play(options: FleetOptions) -> Times:
        warm_s, _ = course.warm_s([options.engine] * options.engines)
        speedup = 1.0 / workload.share
        fleet = SimulatedFleet(
            options,
            parse_policy(policy, trace.block_size),
            course.requests(0, warm_s, speedup),
            random.Random(0),  # noqa: S311  a simulation, not a secret
            speedup=speedup,
        )
        found = [one for one in fleet.run() if one.index in course.counted]
        return _usual_times([(one.index, one.ttft_ms, one.mean_itl_ms()) for one in found], many)

    went = [(index, one.ttft_ms, one.tpot_ms) for index, one in workload.went.items()]
    return learned_fleet(logged.fleet, trace.block_size, _usual_times(went, many), play).engine


def _most_computed(workload: Workload) -> frozenset[int]:
    """Return the requests with most tokens to compute, to which half of all of these belong."""
    computed = {
        one.index: one.input_tokens - workload.went[one.index].cached_tokens
        for one in workload.trace.requests
        if one.index in workload.went
    }
    left = sum(computed.values()) / 2.0
    found: set[int] = set()
    for index in sorted(computed, key=lambda one: -computed[one]):
        if left <= 0.0:
            break
        left -= computed[index]
        found.add(index)
    return frozenset(found)


def _usual_times(
    rows: Sequence[tuple[int, float | None, float | None]], many: frozenset[int]
) -> Times:
    """Return the usual times of requests, each with its index, TTFT and time per further token.

    Means, as one percentile may lie where hits end and misses begin, and jump from play to play.
    """
    per_token = sorted(tpot for _, _, tpot in rows if tpot)
    return Times(
        few=_mean(ttft for index, ttft, _ in rows if index not in many),
        many=_mean(ttft for index, ttft, _ in rows if index in many),
        per_token=_mean(per_token[len(per_token) // 2 :]),
    )


def _mean(times: Iterable[float | None]) -> float | None:
    found = [ms for ms in times if ms]
    return geometric_mean(found) if found else None


def make_plan(
    options: PlanOptions,
    workload: Workload,
    errors: Errors,
    made: str,
    watch: Callable[[Mix], None],
) -> FleetPlan:
    """Search the cheapest fleet; `watch` hears of each play. Raises `ConfigError`."""
    targets = parse_targets(options.slo)
    basis = find_basis(options, workload)
    load = Load(options.load, options.live, options.seeds)
    judge = new_judge(workload, basis, targets, load)
    judge.errors, judge.watch = errors, watch
    kinds = basis.kinds
    answer, sure = find_fleets(judge, workload, load)
    shown = _neighbours(kinds, answer, sure)
    return FleetPlan(
        made=made,
        source=str(options.log),
        targets=list(targets),
        growth=options.load,
        tokens_per_s=round(workload.tokens_per_s * options.load, 3),
        policy=basis.policy,
        routers=basis.fleet.routers,
        kv_events=basis.fleet.kv_events,
        max_backlog_ms=basis.fleet.max_backlog_ms,
        kinds=list(kinds),
        answer=named(kinds, answer),
        sure=named(kinds, sure),
        rows=[row_of(judge, mix) for mix in shown],
    )


def new_judge(workload: Workload, basis: Basis, targets: Sequence[Target], load: Load) -> Judge:
    """Return a judge of fleets. Raises `ConfigError`."""
    policy = parse_policy(basis.policy, basis.fleet.engine.block_size)
    return Judge(workload, basis.kinds, basis.fleet, policy, targets, load)


def find_fleets(judge: Judge, workload: Workload, load: Load) -> tuple[Mix | None, Mix | None]:
    """Return the cheapest fleet that holds, and the cheapest that does with its error bar."""
    kinds = judge.kinds
    _check_reachable(judge, workload)
    starts = [
        min(kind.most, ceil(ROOM * least_engines(workload, kind.engine, load))) for kind in kinds
    ]
    answer = cheapest(kinds, judge.holds, starts)
    if answer is None:
        return None, None
    counts = [count or start for count, start in zip(answer, starts, strict=True)]
    sure = cheapest(kinds, lambda mix: judge.holds(mix) and judge.holds(mix, surely=True), counts)
    return answer, sure


def least_engines(workload: Workload, engine: EngineOptions, load: Load) -> float:
    """Return how many engines the work would keep busy, were all of it in full batches and all that
    came before cached.
    """
    trace = workload.trace
    prompt = sum(new_tokens(trace.requests, trace.block_size))
    output = sum(one.output_tokens for one in trace.requests)
    batch, seqs = engine.max_num_batched_tokens, engine.max_num_seqs
    prefill_ms = engine.timing.step_ms(StepLoad(batch, batch * batch / 2.0, 0, 0, 0)) / batch
    decode_ms = engine.timing.step_ms(StepLoad(0, 0.0, seqs, 0, 0)) / seqs
    work_s = (prompt * prefill_ms + output * decode_ms) / 1000.0 / engine.speedup_ratio
    return work_s * load.growth / workload.share / workload.seconds


def _check_reachable(judge: Judge, workload: Workload) -> None:
    """Raise `ConfigError` for a target that the prompts alone miss on idle engines of any kind.

    Of a log it is not known what older requests left in the caches: nothing is said.
    """
    if workload.went:
        return
    alone = [_alone_ms(judge, workload, kind) for kind in judge.kinds]
    for target in judge.targets:
        least_ms = min(quantile(ms, target.share) for ms in alone)
        least_ms *= judge.errors.factor.get(target.figure, 1.0)
        if target.figure != "tpot" and least_ms > target.limit_ms:
            raise ConfigError(
                f"--slo: {target.name} of {target.limit_ms:g} ms: the prompts alone take "
                f"{least_ms:,.0f} ms on an idle engine, so no number of engines holds it; allow "
                "more, or plan quicker engines"
            )


def _alone_ms(judge: Judge, workload: Workload, kind: Kind) -> list[float]:
    """Return the times to the first token on an idle engine that holds all before, ascending."""
    trace = workload.trace
    times = alone_ttfts_ms(trace.requests, trace.block_size, kind.engine)
    return sorted(
        ms / kind.engine.speedup_ratio
        for one, ms in zip(trace.requests, times, strict=True)
        if one.index in judge.counted
    )


def _neighbours(kinds: Sequence[Kind], answer: Mix | None, sure: Mix | None) -> list[Mix]:
    """Return the fleets to show, cheapest first: the answer, what one engine fewer of each kind
    gives, and up to the sure one; where nothing holds, the largest of each kind.
    """
    if answer is None:
        return [tuple(kind.most if one is kind else 0 for one in kinds) for kind in kinds]
    found = {answer}
    for place, count in enumerate(answer):
        if count and sum(answer) > 1:
            found.add((*answer[:place], count - 1, *answer[place + 1 :]))
    if sure is not None:
        found.add(sure)
    if len(kinds) == 1:
        last = min(kinds[0].most, max(answer[0] + 1, *(sure or (0,))))
        found.update((n,) for n in range(answer[0], min(last, answer[0] + ROWS) + 1))
    return sorted(found, key=lambda mix: (price_of(kinds, mix), sum(mix)))
