"""A live fleet as its routers learned it, as the simulator plays it."""

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Final

import msgspec

from kvmesh.core.insight.weight_search import SimulatedFleetFacts
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import DYNAMO_CAPACITY_TOKENS, PROFILES, TimingProfile
from kvmesh_lab.simulator.fleet.options import FleetOptions

CALIBRATIONS: Final = 5
"""Plays to bring the simulated times near the measured ones."""


def fleet_options(facts: SimulatedFleetFacts, trace_block: int, decode_ms: float) -> FleetOptions:
    """Return a fleet as live as can be told; a step that only decodes takes `decode_ms`.

    Assumed: a step grows with the KV cache in use as in Dynamo's polynomials, batches of 256
    requests and 8,192 tokens, a million KV tokens where an engine does not tell.
    """
    shape = PROFILES["dynamo"]
    scale = decode_ms / shape.decode_base
    timing = TimingProfile(
        prefill_base=facts.prefill_fixed_ms,
        prefill_per_token=facts.prefill_token_ms,
        decode_base=decode_ms,
        decode_per_active=shape.decode_per_active * scale,
        decode_per_active_square=shape.decode_per_active_square * scale,
    )
    tokens = facts.blocks * facts.block_size or DYNAMO_CAPACITY_TOKENS
    engine = EngineOptions(
        block_size=trace_block, num_gpu_blocks=max(1, tokens // trace_block), timing=timing
    )
    return FleetOptions(
        engines=len(facts.speeds),
        routers=facts.replicas,
        engine=engine,
        speed_ratios=facts.speeds,
        kv_events=facts.kv_events,
        max_backlog_ms=facts.max_backlog_ms,
    )


def learned_fleet(
    facts: SimulatedFleetFacts,
    trace_block: int,
    measured: tuple[float | None, float | None],
    play: Callable[[FleetOptions], tuple[float, float]],
) -> FleetOptions:
    """Return the fleet whose simulated times come nearest the measured ones: what routers learn of
    an engine's speed holds what prefill and decode cost each other there, too.

    Times are usual ones (medians) of TTFT and per further token, ms; `play` returns those of a
    fleet. Where none was measured nothing is played.
    """
    ttft_ms, itl_ms = measured
    decode_ms = facts.output_token_ms or itl_ms or PROFILES["dynamo"].decode_base
    fixed_ms = facts.prefill_fixed_ms
    tried = [(math.inf, fleet_options(facts, trace_block, decode_ms))]
    for _ in range(CALIBRATIONS if ttft_ms or itl_ms else 0):
        changed = msgspec.structs.replace(facts, prefill_fixed_ms=fixed_ms)
        options = fleet_options(changed, trace_block, decode_ms)
        seen = play(options)
        ttft, itl = _correction(ttft_ms, seen[0]), _correction(itl_ms, seen[1])
        tried.append((abs(math.log(ttft)) + abs(math.log(itl)), options))
        fixed_ms, decode_ms = fixed_ms * ttft, decode_ms * itl
    return min(tried, key=itemgetter(0))[1]


def _correction(measured: float | None, simulated: float) -> float:
    """Return by what to multiply a time for the simulated median to come near the measured one."""
    return min(2.0, max(0.25, measured / max(simulated, 0.01))) if measured else 1.0
