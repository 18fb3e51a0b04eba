"""An engine that leaves a busy fleet: what is computed again, and who waits for it.

For each trace and rate: a fleet in virtual time of which an engine drains, at several times of the
run, with and without its prefixes handed over; beside them one that had an engine less all along.
Run as `python -m benchmarks.fleet.bench_leaving --trace A.jsonl.gz --rate 8`.
"""

import random
from typing import Final

import msgspec

from benchmarks.fleet.bench_joining import arguments, load, times
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.routing.policy import parse_policy
from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh_lab.report.outcome import percentile
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.simulator.membership import sent_within
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Simulator

AFTER_MS: Final = 600_000.0
FIRST_MS: Final = 60_000.0
BEFORE_S: Final = 0.001
NEVER: Final = 1e12

_HEAD: Final = (
    "| trace | requests/s | fleet | handed over tokens | prefill of 600 s, M tokens | of steady |"
    " requests whose prefix left | their hits | TTFT p50 ms | p99 | fleet's p50 | p99 |\n"
    "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


class After(msgspec.Struct):
    """Sums over times to leave of one fleet: tokens of prompts, and first tokens, ms."""

    handed: int = 0
    computed: int = 0
    own: int = 0
    own_cached: int = 0
    own_firsts: list[float] = []
    firsts: list[float] = []

    def add(self, fleet: SimulatedFleet, leave_s: float, left: set[int]) -> None:
        """Take in what followed; `left`: the requests of which only the leaver had a prefix."""
        self.handed += fleet.joining.leaving.tokens
        for one in sent_within(fleet.outcomes, leave_s * 1000.0, AFTER_MS):
            self.computed += one.prompt_tokens - one.cached_tokens
        for one in sent_within(fleet.outcomes, leave_s * 1000.0, FIRST_MS):
            self.firsts.append(one.ttft_ms or 0.0)
            if one.index in left:
                self.own += one.prompt_tokens
                self.own_cached += one.cached_tokens
                self.own_firsts.append(one.ttft_ms or 0.0)

    def row(self, steady: "After", times: int) -> str:
        """Return the cells behind the fleet's name."""
        firsts = [
            f"{percentile(sorted(of), share):,.0f}"
            for of in (self.own_firsts or [0.0], self.firsts)
            for share in (0.5, 0.99)
        ]
        return (
            f"{self.handed // times:,} | {self.computed / times / 1e6:.2f} | "
            f"{self.computed / max(1, steady.computed):.3f} | {len(self.own_firsts)} | "
            f"{self.own_cached / max(1, self.own):.3f} | {' | '.join(firsts)}"
        )


class Players:
    """Plays a trace at a rate with fleets that differ in who leaves."""

    def __init__(self, options: SimulateOptions, rate: float) -> None:
        trace = load(options.trace, options.requests)
        simulator = Simulator(options, trace)
        self.base = simulator.fleet
        self.length_s = len(trace.requests) / rate
        self._size = self.base.engine.block_size
        self._policy = parse_policy("kv", self._size)
        self._speedup = rate / simulator.recorded_rate
        self._requests = make_requests(trace.requests, trace.block_size, self._size)

    def play(self, options: FleetOptions, look_s: float = NEVER) -> tuple[SimulatedFleet, set[int]]:
        """Return a fleet after the run, and the requests that only the first leaver had a prefix of
        at that time.
        """
        rng = random.Random(0)
        fleet = SimulatedFleet(options, self._policy, self._requests, rng, speedup=self._speedup)
        left = set[int]()

        def look(now: float) -> None:
            leaver = fleet.engines[options.leaves[0][0]].worker
            left.update(
                one.trace.index for one in self._requests if self._is_alone(fleet, one, leaver, now)
            )

        fleet.agenda.enter(look_s, look)
        fleet.run()
        return fleet, left

    def _is_alone(
        self, fleet: SimulatedFleet, request: FleetRequest, leaver: str, now: float
    ) -> bool:
        hashes = BlockHashes.of(request.hashes, self._size)
        held = dict(fleet.routers[0].scheduler.overlaps.find(hashes, now).overlaps)
        own = next((held.pop(one) for one in [*held] if one == leaver), 0)
        return own > max(held.values(), default=0)


def compare(options: SimulateOptions, rate: float, leaves: int, warm: WarmOptions) -> list[str]:
    """Return the rows of the three fleets."""
    players, leaver = Players(options, rate), options.engines // 2
    rows = {"none handed over": After(), "handed over": After(), "one engine less": After()}
    less = msgspec.structs.replace(players.base, engines=options.engines - 1)
    steady, _ = players.play(less)
    for leave_s in times(players.length_s, leaves):
        fleet = msgspec.structs.replace(players.base, leaves=((leaver, leave_s),))
        cold, left = players.play(fleet, leave_s - BEFORE_S)
        handed, _ = players.play(msgspec.structs.replace(fleet, hand_over=warm))
        for row, played in zip(rows.values(), (cold, handed, steady), strict=True):
            row.add(played, leave_s, left)
    return [f"{name} | {row.row(rows['one engine less'], leaves)}" for name, row in rows.items()]


def main() -> None:
    """Print three rows for each trace and rate."""
    parser = arguments(__doc__, "with the one that leaves")
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--idle-ms", type=float, default=WarmOptions().idle_ms)
    parser.add_argument("--moved-rate", type=float, default=WarmOptions().moved_rate)
    asked = parser.parse_args()
    warm = WarmOptions(share=asked.share, idle_ms=asked.idle_ms, moved_rate=asked.moved_rate)
    print(_HEAD, flush=True)
    for trace in asked.trace:
        options = SimulateOptions(trace, engines=asked.engines, requests=asked.requests)
        for rate in map(float, asked.rate.split(",")):
            for row in compare(options, rate, asked.times, warm):
                print(f"| {trace.name.split('.')[0]} | {rate:g} | {row} |", flush=True)


if __name__ == "__main__":
    main()
