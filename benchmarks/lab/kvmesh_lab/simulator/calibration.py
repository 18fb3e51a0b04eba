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

CALIBRATIONS: Final = 8
"""Plays at most to bring the simulated times near the measured ones."""

CLOSE: Final = 0.06
"""The sum of all errors at which they are near enough."""

STEP: Final = 0.6
"""Exponent of a correction: under load times grow faster than the speed falls."""


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


class Times(msgspec.Struct, frozen=True):
    """Usual times, ms: to the first token of requests with few and with many tokens to compute,
    and per further token. None: not known.
    """

    few: float | None
    many: float | None
    per_token: float | None


def learned_fleet(
    facts: SimulatedFleetFacts,
    trace_block: int,
    measured: Times,
    play: Callable[[FleetOptions], Times],
) -> FleetOptions:
    """Return the fleet whose simulated times come nearest the measured ones: what routers learn of
    an engine's speed holds what prefill and decode cost each other there, too.

    The first two times tell of the fixed time of a prefill and of its time per token; `play`
    returns those of a fleet. Where none was measured nothing is played.
    """
    decode_ms = facts.output_token_ms or measured.per_token or PROFILES["dynamo"].decode_base
    tried = [(math.inf, fleet_options(facts, trace_block, decode_ms))]
    known = measured.few or measured.many or measured.per_token
    for _ in range(CALIBRATIONS if known else 0):
        options = fleet_options(facts, trace_block, decode_ms)
        seen = play(options)
        few = _correction(measured.few, seen.few)
        many = _correction(measured.many, seen.many)
        per_token = _correction(measured.per_token, seen.per_token)
        error = sum(abs(math.log(one)) for one in (few, many, per_token))
        tried.append((error, options))
        if error < CLOSE:
            break
        facts = msgspec.structs.replace(
            facts,
            prefill_fixed_ms=facts.prefill_fixed_ms * few**STEP,
            prefill_token_ms=facts.prefill_token_ms * many**STEP,
        )
        decode_ms *= per_token**STEP
    return min(tried, key=itemgetter(0))[1]


def _correction(measured: float | None, simulated: float | None) -> float:
    """Return by what to multiply a time for the simulated one to come near the measured one."""
    return min(2.0, max(0.25, measured / max(simulated or 0.0, 0.01))) if measured else 1.0
