"""The settings in which routing policies are compared, and how one of them is played."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.quality.workloads import WORKLOADS
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import DYNAMO_CAPACITY_TOKENS
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import load_slice
from kvmesh_lab.report.outcome import percentile
from kvmesh_lab.report.statistics import Slo, summarize
from kvmesh_lab.simulator.comparison import Cell, measure
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.oracle import alone_ttfts_ms, idle_ttft_ms
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.simulator.load import backlog_share, find_saturation, largest_backlog, spread
from kvmesh_lab.traces.trace import TraceRequest, infinite_cache_hit_rate

OURS: Final = "kv:predicted-time"
RIVALS: Final = (
    "kv:prefill-decode",
    "kv:overlap-load",
    "kv:overlap-usage-waiting",
    "kv:dynamo",
    "kv:lmetric",
    "kv:preble",
    "kv:sglang",
)
"""The seeds' three formulas, Dynamo 1.6's, and the published ones, with default weights."""

BLIND: Final = "round-robin"
POLICIES: Final = (OURS, *RIVALS, BLIND, "oracle")
SIMPLE: Final = (
    "kv:prefill-decode",
    "kv:lmetric",
    "kv:preble",
    "kv:sglang",
    BLIND,
    "random",
    "least-loaded",
)
"""What the default is held against in its worst settings; Dynamo's with its default weights chooses
as prefill-decode does.
"""

ENGINES: Final = (4, 8, 16)
LOADS: Final = (0.5, 0.7, 0.9)
ROUTERS: Final = (1, 2, 4)
DELAYS_MS: Final = (0.0, 5.0, 50.0)
_ARRAY: Final = ("0000", "0111", "0222", "1012", "1120", "1201", "2021", "2102", "2210")
_TOLERANCE: Final = 0.05

JITTER_MS: Final = 10.0
"""Requests of a perturbed run come up to so much later, in the time they are played in."""


class Setting(msgspec.Struct, frozen=True):
    """One fleet under one load. `load` is relative to where round robin saturates.

    `speeds` are the engines' in turn, `report_s` comes between two load reports of an engine,
    `cache` is the share of a million KV tokens an engine has. Seed 0 sends at the recorded times;
    any other delays each request a little, and spreads them otherwise over the replicas.
    """

    trace: str
    requests: int
    engines: int
    load: float
    routers: int
    event_delay_ms: float
    speeds: tuple[float, ...] = (1.0,)
    report_s: float = 1.0
    cache: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        """Return it as one word per part."""
        trace = Path(self.trace).name.partition(".")[0]
        special = (
            "" if len(self.speeds) == 1 else f" speeds {max(self.speeds) / min(self.speeds):g}"
        )
        special += "" if self.report_s == 1.0 else f" reports {self.report_s:g}s"
        special += "" if self.cache == 1.0 else f" cache {self.cache:g}"
        special += f" seed {self.seed}" if self.seed else ""
        usual = f"x{self.engines} {self.load:g} R{self.routers} {self.event_delay_ms:g}ms"
        return f"{trace} {usual}{special}"


class Played(msgspec.Struct, frozen=True):
    """What came of one policy in one setting, and what bounds all policies there.

    `waitless_p90_ms`: p90 TTFT with the same hits, had every request met an idle engine.
    `least_share`: requests of the worker that got fewest, over an even share.
    """

    setting: Setting
    cell: Cell
    alone_p90_ms: float
    infinite_hit_rate: float
    waitless_p90_ms: float = 0.0
    least_share: float = 0.0


class Slice(msgspec.Struct, frozen=True):
    """Requests ready to be played."""

    block_size: int
    trace: tuple[TraceRequest, ...]
    requests: tuple[FleetRequest, ...]


def fraction(traces: Sequence[str], requests: int) -> list[Setting]:
    """Return 15 of the 81 settings of each trace.

    Nine in which each pair of levels of any two of the four dimensions meets once (an orthogonal
    array), and what these with several replicas are with one.
    """
    nine = [
        Setting(trace, requests, ENGINES[a], LOADS[b], ROUTERS[c], DELAYS_MS[d])
        for a, b, c, d in ([int(level) for level in row] for row in _ARRAY)
        for trace in traces
    ]
    alone = [msgspec.structs.replace(one, routers=1) for one in nine]
    return list(dict.fromkeys([*nine, *alone]))


def troubled(traces: Sequence[str], requests: int) -> list[Setting]:
    """Return settings with engines of two speeds, with late and no load reports, small caches."""
    steps: list[dict[str, object]] = [
        {"speeds": (1.0, 1.0, 1.0, 0.5)},
        {"report_s": 30.0},
        {"report_s": 1e6},
        {"cache": 1.0 / 16.0},
    ]
    usual = [Setting(trace, requests, 8, 0.7, 1, 5.0) for trace in traces]
    return [msgspec.structs.replace(one, **step) for step in ({}, *steps) for one in usual]


def stressed(traces: Sequence[str], requests: int) -> list[Setting]:
    """Return the settings in which a default may lose most: usual load, overload, small caches, two
    engines of eight at quarter speed.
    """
    steps: list[dict[str, object]] = [
        {"load": 0.7},
        {"load": 1.2},
        {"load": 1.5},
        {"cache": 1.0 / 16.0},
        {"speeds": (1.0, 1.0, 1.0, 0.25)},
    ]
    usual = [Setting(trace, requests, 8, 0.8, 1, 5.0) for trace in traces]
    return [msgspec.structs.replace(one, **step) for one in usual for step in steps]


def grid(traces: Sequence[str], requests: int) -> list[Setting]:
    """Return all 81 settings of each trace."""
    return [
        Setting(trace, requests, engines, load, routers, delay)
        for trace in traces
        for engines in ENGINES
        for load in LOADS
        for routers in ROUTERS
        for delay in DELAYS_MS
    ]


@cache
def load(trace: str, requests: int) -> Slice:
    """Return the first `requests` of a trace file, or of a generated workload by name."""
    if trace in WORKLOADS:
        block_size, made = 64, WORKLOADS[trace](requests)
    else:
        sliced = load_slice(ReplayOptions(Path(trace), requests=requests))
        block_size, made = sliced.block_size, list(sliced.requests)
    return Slice(block_size, tuple(made), make_requests(made, block_size, block_size))


def fleet_of(setting: Setting, block_size: int) -> FleetOptions:
    """Return the fleet; bookings are shared within 5 ms."""
    return FleetOptions(
        engines=setting.engines,
        routers=setting.routers,
        engine=EngineOptions(
            block_size=block_size,
            num_gpu_blocks=int(DYNAMO_CAPACITY_TOKENS * setting.cache) // block_size,
        ),
        event_delay_s=setting.event_delay_ms / 1000.0,
        speed_ratios=setting.speeds,
        report_interval_s=setting.report_s,
        seed=setting.seed,
    )


def perturb(
    requests: Sequence[FleetRequest], seed: int, speedup: float
) -> tuple[FleetRequest, ...]:
    """Return the requests, each up to `JITTER_MS` later once sent at `speedup`; seed 0: as given.

    The same seed delays the same request by the same time under every policy.
    """
    if not seed:
        return tuple(requests)
    rng = random.Random(seed)
    return tuple(
        msgspec.structs.replace(
            one,
            trace=msgspec.structs.replace(
                one.trace,
                timestamp_ms=one.trace.timestamp_ms + rng.random() * JITTER_MS * speedup,
            ),
        )
        for one in requests
    )


def saturate(trace: str, requests: int, engines: int, policy: str) -> float:
    """Return the speedup at which `policy` saturates. Some eight runs."""
    sliced = load(trace, requests)
    alone = fleet_of(Setting(trace, requests, engines, 1.0, 1, 5.0), sliced.block_size)

    def backlog_at(speedup: float) -> float:
        return backlog_share(_run(alone, policy, sliced, speedup).outcomes)

    allowed = largest_backlog(len(sliced.requests), engines)
    return find_saturation(backlog_at, 1.0, allowed, tolerance=_TOLERANCE)


def play(setting: Setting, policy: str, saturation: float) -> Played:
    """Play one policy in one setting."""
    sliced = load(setting.trace, setting.requests)
    options = fleet_of(setting, sliced.block_size)
    fleet = _run(options, policy, sliced, setting.load * saturation)
    workers = [engine.worker for engine in fleet.engines]
    summary = summarize(fleet.outcomes, Slo(), workers)
    busy = spread(fleet.busy_s)
    alone = sorted(alone_ttfts_ms(sliced.trace, sliced.block_size, options.engine))
    waitless = sorted(
        idle_ttft_ms(options.engine, one.prompt_tokens - one.cached_tokens)
        for one in fleet.outcomes
    )
    taken = Counter(one.worker for one in fleet.outcomes)
    return Played(
        setting=setting,
        cell=measure(setting.name, policy, summary, fleet.outcomes, busy),
        alone_p90_ms=percentile(alone, 0.9),
        infinite_hit_rate=infinite_cache_hit_rate(sliced.trace, sliced.block_size),
        waitless_p90_ms=percentile(waitless, 0.9),
        least_share=min(taken[one] for one in workers) * len(workers) / len(fleet.outcomes),
    )


def _run(options: FleetOptions, policy: str, sliced: Slice, speedup: float) -> SimulatedFleet:
    fleet = SimulatedFleet(
        options,
        parse_policy(policy, sliced.block_size),
        perturb(sliced.requests, options.seed, speedup),
        random.Random(options.seed),
        speedup=speedup,
    )
    fleet.run()
    return fleet
