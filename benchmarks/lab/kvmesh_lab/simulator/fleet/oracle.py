"""What perfect knowledge would be worth: a router that sees into the engines, and a bound."""

from collections.abc import Iterable, Sequence

from kvmesh._native import Arrivals
from kvmesh.core.cost.weight_sets import PredictedTimeWeights
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest
from kvmesh_lab.mocker.model.timing import StepLoad
from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.request import FleetRequest
from kvmesh_lab.traces.trace import TraceRequest, known_depths


class Oracle:
    """Names each request's engine from the engines' true state: no delay, no estimate.

    It sees the step under way, the queue, the caches and the step times, not the future. It takes
    the engine of least `(W + P) (1 + g n + f r P)`, which is `PREDICTED_TIME` with the truth
    put in: so a measure of what better information is worth, not a bound on better decisions.
    """

    def __init__(self, weights: PredictedTimeWeights | None = None) -> None:
        self._weights = weights or PredictedTimeWeights()
        self._arrivals = Arrivals()

    def choose(self, engines: Sequence[FleetEngine], request: FleetRequest, now: float) -> int:
        """Return the place of the engine; the first of several equal ones. O(queued requests)."""
        self._arrivals.fold(now)
        arrivals_per_ms = self._arrivals.per_ms(now) / len(engines)
        costs = [self._cost(engine, request, now, arrivals_per_ms) for engine in engines]
        return costs.index(min(costs))

    def _cost(
        self, engine: FleetEngine, request: FleetRequest, now: float, arrivals_per_ms: float
    ) -> float:
        model = engine.model
        waiting = list(model.queue)
        prefills = [] if model.prefilling is None else [_left(model.prefilling)]
        for place, one in enumerate(waiting):
            tokens = one.prompt_tokens + one.generated
            cached = _cached_blocks(engine, one.hashes, tokens, waiting[:place])
            prefills.append(tokens - cached * model.options.block_size)
        tokens = request.trace.input_tokens
        cached = _cached_blocks(engine, request.hashes, tokens, waiting)
        own = tokens - cached * model.options.block_size
        rest_ms = max(0.0, engine.ends_s - now) * 1000.0 if engine.awake else 0.0
        load = _decoding(engine)
        wait_ms = rest_ms + _prefill_ms(model.options, prefills, load)
        own_ms = _prefill_ms(model.options, [own], None)
        requests = len(model.decoding) + len(prefills)
        weights = self._weights
        followers = weights.followers * arrivals_per_ms * own_ms
        return (wait_ms + own_ms) * (1.0 + weights.contention * requests + followers)


def alone_ttfts_ms(
    requests: Iterable[TraceRequest], trace_block_size: int, engine: EngineOptions
) -> list[float]:
    """Return each request's TTFT alone on an idle engine that holds all that came before.

    No routing answers sooner: nothing waits, decodes beside it or was ever evicted. (Only smaller
    chunks than an idle engine makes could prefill a long prompt sooner, by about 1 %.)
    """
    found: list[float] = []
    for request, depth in known_depths(requests):
        usable = (request.input_tokens - 1) // engine.block_size * engine.block_size
        own = request.input_tokens - min(depth * trace_block_size, usable)
        found.append(idle_ttft_ms(engine, own))
    return found


def idle_ttft_ms(engine: EngineOptions, uncached_tokens: int) -> float:
    """Return how long an idle engine takes to prefill so many tokens, ms."""
    return _prefill_ms(engine, [uncached_tokens], None)


def _left(request: EngineRequest) -> int:
    return request.prompt_tokens + request.generated - request.computed_tokens


def _decoding(engine: FleetEngine) -> StepLoad | None:
    """Return the decoding part of the engine's next steps, None when there is none."""
    model = engine.model
    if not model.decoding:
        return None
    return StepLoad(
        prefill_tokens=0,
        prefill_attention=0.0,
        decoding=len(model.decoding),
        context_tokens=sum(model.produced_tokens(one) + one.prompt_tokens for one in model.decoding)
        if model.options.timing.decode_per_context
        else 0,
        active_tokens=model.pool.active_blocks * model.options.block_size,
    )


def _cached_blocks(
    engine: FleetEngine, hashes: list[int], tokens: int, before: Sequence[EngineRequest]
) -> int:
    """Return how many blocks it will find: cached now, or by then computed for others."""
    limit = (tokens - 1) // engine.model.options.block_size
    best = len(engine.model.pool.find_cached(hashes, limit))
    if engine.model.groups:
        best = engine.model.groups.longest(hashes, best)
    running = engine.model.prefilling
    others = [*before] if running is None else [running, *before]
    return max([best, *(_shared(hashes, one.hashes, limit) for one in others)])


def _shared(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """Return how many leading hashes are equal, by bisection: each stands for its whole prefix."""
    low, high = 0, min(len(first), len(second), limit)
    while low < high:
        middle = (low + high + 1) >> 1
        if first[middle - 1] == second[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _prefill_ms(engine: EngineOptions, prefills: Sequence[int], decoding: StepLoad | None) -> float:
    """Return how long prefilling so many tokens, one after the other, takes; ms."""
    beside_ms = 0.0 if decoding is None else engine.timing.step_ms(decoding)
    budget = engine.max_num_batched_tokens - (0 if decoding is None else decoding.decoding)
    total_ms, left = 0.0, sum(prefills)
    while left > 0:
        count = min(left, budget)
        left -= count
        load = StepLoad(count, count * count / 2.0, 0, 0, 0)
        total_ms += engine.timing.step_ms(load) + beside_ms
    return total_ms
