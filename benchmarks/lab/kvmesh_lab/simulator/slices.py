"""Plays a slice of a trace under any policy and load."""

import random
from typing import Final

import msgspec

from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.touch import TouchOptions
from kvmesh.core.routing.policy import parse_policy
from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh_lab.replay.plan import TraceSlice
from kvmesh_lab.simulator.bars import Bars, Watch
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.oracle import alone_ttfts_ms
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.simulator.load import backlog_share, find_saturation, largest_backlog
from kvmesh_lab.simulator.options import DEFAULT_LIVE, DEFAULT_LOADS, SimulateOptions

SLICE_EVENTS: Final = 2_000
"""Events between two looks at the progress bar, some 20 ms."""

SATURATING_POLICY: Final = "round-robin"


class Setting(msgspec.Struct, frozen=True):
    """One load: its name, and how many times faster than recorded that is, or with `live` above 0
    how many programs are under way.
    """

    name: str
    speedup: float = 1.0
    live: int = 0


class Variant(msgspec.Struct, frozen=True):
    """A policy as it is compared: under its name, on a fleet with or without turns."""

    name: str
    policy: str
    fleet: FleetOptions


class Simulator:
    """Plays one slice of a trace under any policy and load."""

    def __init__(self, options: SimulateOptions, trace: TraceSlice) -> None:
        self.trace = trace
        self.fleet: FleetOptions = options.fleet(trace.block_size)
        self._options = options
        self.formulas = options.formulas()
        self._requests: tuple[FleetRequest, ...] = make_requests(
            trace.requests, trace.block_size, self.fleet.engine.block_size
        )

    def variants(self) -> tuple[Variant, ...]:
        """Return the policies to compare: those of mode kv as `program_turns` says, and where
        engines join or leave also `warm_share`.
        """
        found: list[Variant] = []
        governor = GovernorOptions()
        touches = TouchOptions() if self._options.re_touch else None
        governed = msgspec.structs.replace(self.fleet, turns=governor, touches=touches)
        for policy in self._options.policy:
            turns = self._options.program_turns if _is_kv(policy) else ("off",)
            for turn in turns:
                if turn == "on":
                    found += self._warmed(Variant(f"{policy}+turns", policy, governed))
                else:
                    found += self._warmed(Variant(policy, policy, self.fleet))
        return tuple(found)

    def _warmed(self, variant: Variant) -> list[Variant]:
        """Return a policy under each share of the prefill that goes into prefixes for engines that
        join, and into those that only one that leaves keeps.
        """
        if not ((self.fleet.joins or self.fleet.leaves) and _is_kv(variant.policy)):
            return [variant]
        found: list[Variant] = []
        shares = self._options.warm_share
        for share in shares:
            name = f"{variant.name}+warm={share:g}" if len(shares) > 1 else variant.name
            warm = WarmOptions(share=share) if share else None
            fleet = msgspec.structs.replace(variant.fleet, warm=warm, hand_over=warm)
            found.append(Variant(name, variant.policy, fleet))
        return found

    @property
    def recorded_rate(self) -> float:
        """Return the requests per second of the recorded slice.

        Of sessions, whose pauses no load shortens, that is by the pace at which they begin.
        """
        requests = self.trace.requests
        arrivals = [one.timestamp_ms for one in requests if one.delay_ms is None]
        return len(requests) / max(max(arrivals, default=0.0) / 1000.0, 0.001)

    def last_sent_s(self, setting: Setting) -> float | None:
        """Return when the last request is sent; None where that depends on answers."""
        requests = self.trace.requests
        if setting.live or any(one.delay_ms is not None for one in requests):
            return None
        return max(one.timestamp_ms for one in requests) / 1000.0 / setting.speedup

    def alone_ttfts_ms(self) -> list[float]:
        """Return the TTFTs below which no routing gets."""
        return alone_ttfts_ms(self.trace.requests, self.trace.block_size, self.fleet.engine)

    def play(
        self, policy: str, setting: Setting, watch: Watch, fleet: FleetOptions | None = None
    ) -> SimulatedFleet:
        """Return the fleet after the run; `watch` hears how many requests have ended."""
        options = fleet or self.fleet
        simulated = SimulatedFleet(
            options,
            parse_policy(policy, options.engine.block_size, self.formulas),
            self._requests,
            random.Random(self._options.seed),  # noqa: S311  a simulation, not a secret
            speedup=setting.speedup,
            live=setting.live,
        )
        while simulated.advance(SLICE_EVENTS):
            watch(len(simulated.outcomes))
        watch(len(simulated.outcomes))
        return simulated

    def saturation_speedup(self, watch: Watch) -> float:
        """Return the speedup at which round robin saturates with one router and no fault, all
        engines there from begin to end.
        """
        alone = msgspec.structs.replace(self.fleet, routers=1, faults=(), joins=(), leaves=())

        def backlog_at(speedup: float) -> float:
            return backlog_share(
                self.play(SATURATING_POLICY, Setting("", speedup), watch, alone).outcomes
            )

        allowed = largest_backlog(len(self._requests), self.fleet.engines)
        return find_saturation(backlog_at, 1.0, allowed)


def _is_kv(policy: str) -> bool:
    return policy.partition(":")[0] == "kv"


def is_closed(options: SimulateOptions, trace: TraceSlice) -> bool:
    """Return whether so many sessions are kept live: asked for, or the trace is one of sessions
    and neither rates nor loads are named.
    """
    named = bool(options.rate) or options.load != DEFAULT_LOADS
    return bool(options.live or (trace.programs and not named))


def find_settings(
    options: SimulateOptions, simulator: Simulator, bars: Bars
) -> tuple[Setting, ...]:
    """Return the loads to play, from --live or --rate, or from --load by finding the saturation
    first. Sessions are played in closed loop unless a rate is named.
    """
    if is_closed(options, simulator.trace):
        engines = simulator.fleet.engines
        return tuple(
            Setting(f"{one:g} live sessions an engine", live=max(1, round(one * engines)))
            for one in options.live or DEFAULT_LIVE
        )
    recorded = simulator.recorded_rate
    if options.rate:
        return tuple(Setting(f"{rate:g} requests/s", rate / recorded) for rate in options.rate)
    watch = bars.watch("finding saturation", len(simulator.trace.requests))
    saturated = simulator.saturation_speedup(watch)
    return tuple(
        Setting(f"load {load:g} ({load * saturated * recorded:.3g}/s)", load * saturated)
        for load in options.load
    )
