"""Fair shares among tenants with shared prefixes: by arrival, by tokens, by locality.

    python -m benchmarks.quality.bench_fairness [--seconds S] [--warm-up S] [--seeds N] [--jobs N]

Every tenant always has requests waiting. Service is counted by what the engines did: prompt tokens
they had not cached, and twice the tokens of output; the gap is the largest difference between two
tenants' service at any time, when each answer ends. What ends while the caches fill (`--warm-up`)
does not count. Means over the seeds, with the least and the most requests; minutes of processor
time.
"""

import argparse
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.measure import TABLE_WIDTH
from kvmesh.core.admission.ledger import DEFAULT_QUANTUM
from kvmesh.core.admission.queue import QueueFairness
from kvmesh.core.routing.policy import parse_policy
from kvmesh.core.routing.tenant_cost import OUTPUT_WEIGHT
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.report.outcome import RequestOutcome, percentile
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest

BLOCK: Final = 64
ENGINE_BLOCK: Final = 16
BACKLOG_MS: Final = 200.0


class Load(msgspec.Struct, frozen=True):
    """Tenants that each ask about `prefixes` documents of `prefix_blocks` (64 tokens), `shared` of
    them the same for all tenants; requests of the first come `1 + skew` times as often.
    """

    name: str
    tenants: int = 4
    prefixes: int = 24
    prefix_blocks: int = 64
    shared: int = 0
    question_blocks: int = 2
    output_tokens: int = 32
    skew: float = 0.0
    engines: int = 4
    engine_blocks: int = 4096
    requests_per_s: float = 300.0


LOADS: Final = (
    Load("documents of each tenant's own"),
    Load("a third of the documents shared by all tenants", shared=8),
    Load("one tenant sends as much as the others together", skew=2.0),
    Load("everything fits into the caches", prefixes=4, requests_per_s=500.0),
)


class Way(msgspec.Struct, frozen=True):
    """How requests are ordered; `tenants` False: by arrival alone."""

    name: str
    fairness: QueueFairness = "tokens"
    quantum_tokens: int = DEFAULT_QUANTUM
    tenants: bool = True


WAYS: Final = (
    Way("arrival", tenants=False),
    Way("tokens"),
    Way("locality", fairness="locality"),
)
ROUTERS: Final = (1, 3)


class Measured(msgspec.Struct, frozen=True):
    """What one run gave. Rates are per second, waits and gap seconds and tokens."""

    requests_per_s: float
    tokens_per_s: float
    hit_rate: float
    gap: float
    jain: float
    wait_p90_s: float


def trace_of(load: Load, seconds: float, seed: int) -> list[TraceRequest]:
    """Return the requests of all tenants by arrival, evenly mixed."""
    rng = random.Random(seed)
    fresh = iter(range(1, 1 << 40))
    common = [[next(fresh) for _ in range(load.prefix_blocks)] for _ in range(load.shared)]
    own = [
        common
        + [
            [next(fresh) for _ in range(load.prefix_blocks)]
            for _ in range(load.prefixes - load.shared)
        ]
        for _ in range(load.tenants)
    ]
    rates = [1.0 + load.skew * (number == 0) for number in range(load.tenants)]
    found: list[TraceRequest] = []
    for index in range(round(seconds * load.requests_per_s)):
        tenant = rng.choices(range(load.tenants), rates)[0]
        blocks = [*rng.choice(own[tenant]), *(next(fresh) for _ in range(load.question_blocks))]
        found.append(
            TraceRequest(
                index=index,
                timestamp_ms=index * 1000.0 / load.requests_per_s,
                input_tokens=len(blocks) * BLOCK,
                output_tokens=rng.randint(1, 2 * load.output_tokens),
                block_ids=tuple(blocks),
                tenant=f"tenant-{tenant}",
            )
        )
    return found


class Run(msgspec.Struct, frozen=True):
    """One run of so many virtual seconds, of which those of `warm_up` do not count."""

    load: Load
    way: Way
    routers: int
    seconds: float
    warm_up: float
    seed: int


def play(run: Run) -> Measured:
    """Play one run."""
    load, way, routers, seconds, seed = run.load, run.way, run.routers, run.seconds, run.seed
    trace = trace_of(load, seconds, seed)
    tenants = {one.index: one.tenant for one in trace}
    if not way.tenants:
        trace = [msgspec.structs.replace(one, tenant="") for one in trace]
    options = FleetOptions(
        engines=load.engines,
        routers=routers,
        engine=EngineOptions(block_size=ENGINE_BLOCK, num_gpu_blocks=load.engine_blocks),
        max_backlog_ms=BACKLOG_MS,
        queue_fairness=way.fairness,
        quantum_tokens=way.quantum_tokens,
        seed=seed,
    )
    policy = parse_policy("kv:predicted-time", ENGINE_BLOCK)
    fleet = SimulatedFleet(
        options, policy, make_requests(trace, BLOCK, ENGINE_BLOCK), random.Random(seed)
    )
    while fleet.now < seconds and fleet.advance(256):
        pass
    return measure(fleet.outcomes, tenants, run.warm_up, seconds)


def measure(
    outcomes: Sequence[RequestOutcome], tenants: dict[int, str], begin_s: float, end_s: float
) -> Measured:
    """Return what the requests that ended between the two times tell."""
    by_end = sorted((one.sent_ms + one.latency_ms, one.index, one) for one in outcomes)
    ended = [one for ms, _, one in by_end if begin_s <= ms / 1000.0 <= end_s]
    seconds = end_s - begin_s
    service = dict.fromkeys(sorted(set(tenants.values())), 0.0)
    gap = 0.0
    for one in ended:
        uncached = one.prompt_tokens - one.cached_tokens
        service[tenants[one.index]] += uncached + OUTPUT_WEIGHT * one.output_tokens
        gap = max(gap, max(service.values()) - min(service.values()))
    prompts = sum(one.prompt_tokens for one in ended)
    total, squares = sum(service.values()), sum(value**2 for value in service.values())
    return Measured(
        requests_per_s=len(ended) / seconds,
        tokens_per_s=(prompts + sum(one.output_tokens for one in ended)) / seconds,
        hit_rate=sum(one.cached_tokens for one in ended) / max(1, prompts),
        gap=gap,
        jain=total**2 / (len(service) * squares) if squares else 1.0,
        wait_p90_s=percentile(sorted((one.ttft_ms or 0.0) / 1000.0 for one in ended), 0.9),
    )


def mean(found: Sequence[Measured]) -> Measured:
    """Return the mean of several runs."""
    fields = Measured.__struct_fields__
    return Measured(**{name: fmean(getattr(one, name) for one in found) for name in fields})


def table_of(load: Load, found: Sequence[tuple[int, Way, Sequence[Measured]]]) -> Table:
    """Return the figures of one load; `x` is the throughput of sharing by tokens."""
    table = Table(title=load.name)
    columns = ("routers", "order", "requests/s", "x", "hit rate", "gap", "Jain", "p90 TTFT s")
    for column in columns:
        table.add_column(column)
    rows = [(routers, way, mean(runs), runs) for routers, way, runs in found]
    plain = {routers: one.requests_per_s for routers, way, one, _ in rows if way.name == "tokens"}
    for routers, way, one, runs in rows:
        rates = [run.requests_per_s for run in runs]
        table.add_row(
            str(routers),
            way.name,
            f"{one.requests_per_s:.1f} ({min(rates):.0f}..{max(rates):.0f})",
            f"{one.requests_per_s / plain[routers]:.2f}",
            f"{one.hit_rate:.2f}",
            f"{one.gap:,.0f}",
            f"{one.jain:.4f}",
            f"{one.wait_p90_s:.1f}",
        )
    return table


def main() -> None:
    """Play every load in every order and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=16.0, help="virtual seconds of each run")
    parser.add_argument("--warm-up", type=float, default=6.0, help="of them not counted")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    console = Console(width=TABLE_WIDTH)
    with ProcessPoolExecutor(options.jobs) as pool:
        for load in LOADS:
            cells = [(routers, way) for routers in ROUTERS for way in WAYS]
            runs = [
                Run(load, way, routers, options.seconds, options.warm_up, 1 + seed)
                for routers, way in cells
                for seed in range(options.seeds)
            ]
            played, seeds = list(pool.map(play, runs)), options.seeds
            rows = [
                (routers, way, played[place * seeds : (place + 1) * seeds])
                for place, (routers, way) in enumerate(cells)
            ]
            console.print(table_of(load, rows))


if __name__ == "__main__":
    main()
