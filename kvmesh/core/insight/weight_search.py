"""What a search for weights is told and what it finds, between a router and its child process."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

TPOT_EXPONENT: Final = 0.25
"""How much time per token counts beside the time to the first."""

Weighting = Mapping[str, float]
"""Weights by name."""


def name_policy(cost: str, weights: Weighting) -> str:
    """Return the policy as --policy and --shadow-policy take it."""
    return ":".join(["kv", cost, *(f"{name}={value:g}" for name, value in weights.items())])


def score_of(ttft_ms_p90: float, tpot_ms_p90: float) -> float:
    """Return the score of p90 times, ms, as `kvmesh simulate --tune` has it: less is better."""
    return max(ttft_ms_p90, 1.0) * float(max(tpot_ms_p90, 1.0) ** TPOT_EXPONENT)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of `values` lie; None of nothing."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else None


def alike(one: Weighting, other: Weighting) -> bool:
    """Return whether two are the same to a part in a hundred."""
    names = one.keys() | other.keys()
    return all(
        abs(one.get(name, 0.0) - other.get(name, 0.0))
        <= 0.01 * max(abs(one.get(name, 0.0)), abs(other.get(name, 0.0)))
        for name in names
    )


class SimulatedFleetFacts(msgspec.Struct, frozen=True):
    """A live fleet as far as a simulator can be told. Times in ms.

    `speeds` are relative, one a worker. A prefill takes `prefill_fixed_ms` a step and
    `prefill_token_ms` an uncached token, an output token `output_token_ms` under the present load
    (0: none was seen). `blocks` are a worker's KV blocks, 0 when unknown.
    """

    speeds: tuple[float, ...]
    block_size: int
    prefill_fixed_ms: float
    prefill_token_ms: float
    output_token_ms: float = 0.0
    blocks: int = 0
    replicas: int = 1
    kv_events: bool = True
    max_backlog_ms: float = 0.0


class LoggedFleet(msgspec.Struct, frozen=True):
    """What a log of requests tells of the fleet that served them: the `policy` in force, and which
    part of all prompt tokens of the bucket the log has, 0 < `share` <= 1. `obstacle` says in words
    why no simulator can play this fleet; "" when one can.
    """

    policy: str
    share: float
    fleet: SimulatedFleetFacts
    obstacle: str = ""


class SearchTask(msgspec.Struct, frozen=True):
    """Find weights for `cost` on a trace of `block_tokens` a hash id, or judge the policy
    `candidate` where one is named.

    `present` are those in force, `default` the formula's. The trace has `share` of all prompt
    tokens. `ttft_ms` and `itl_ms` are its measured medians, None: not seen. The search ends after
    `seconds`; only the last `requests` are played.
    """

    cost: str
    default: Weighting
    present: Weighting
    fleet: SimulatedFleetFacts
    block_tokens: int
    share: float = 1.0
    ttft_ms: float | None = None
    itl_ms: float | None = None
    seconds: float = 60.0
    requests: int = 3000
    seed: int = 0
    candidate: str = ""


class Judged(msgspec.Struct, frozen=True):
    """Weights with what they score where they were searched and on requests held out, against the
    default's scores: below 1 is better. p90 times are of the requests held out, ms.
    """

    weights: Weighting
    searched: float
    held_out: float
    ttft_ms_p90: float
    tpot_ms_p90: float


class Found(msgspec.Struct, frozen=True):
    """What a search found. `best` did best where it was searched, or is the candidate that was
    named; `trials` were played.

    `simulated_ttft_ms` is the median under the present weights, to be held against the measured.
    """

    default: Judged
    present: Judged
    best: Judged
    trials: int
    requests: int
    took_s: float
    simulated_ttft_ms: float
    measured_ttft_ms: float | None
    simulated_itl_ms: float
    measured_itl_ms: float | None
