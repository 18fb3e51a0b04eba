"""Naive model of kvmesh/native/decide/homes.c: the home of a prompt cache key."""

from collections.abc import Sequence
from typing import Final

import xxhash

from kvmesh.core.routing.scheduler import Scheduler

BEGINNING: Final = 256
REQUESTS_A_MINUTE: Final = 15.0
RATES: Final = 1024

Rates = dict[int, tuple[int, float, float]]
"""Seed, level and time by place."""


def rates_of(scheduler: Scheduler) -> Rates:
    """Return what was counted of a scheduler's requests."""
    rates: Rates = vars(scheduler).setdefault("naive_rates", {})
    return rates


def seed_of(affinity: int, blocks: Sequence[int], block_size: int) -> int:
    """Return what the home of a key is found by; `blocks` are all of the prompt."""
    at = BEGINNING // block_size
    if not 1 <= at <= len(blocks):
        return affinity
    return xxhash.xxh3_64_intdigest(blocks[at - 1].to_bytes(8, "little"), affinity) or 1


def level_of(rates: Rates, seed: int, now: float) -> float:
    """Return how many of the requests of a seed count by now."""
    known, level, at_s = rates.get(seed % RATES, (0, 0.0, 0.0))
    return max(0.0, level - (now - at_s) * REQUESTS_A_MINUTE / 60.0) if known == seed else 0.0


def home_seed(rates: Rates, seed: int, now: float) -> int:
    """Return `seed` while few enough came, else 0."""
    return seed if seed and level_of(rates, seed, now) + 1.0 <= REQUESTS_A_MINUTE else 0


def count_home(rates: Rates, seed: int, now: float) -> None:
    """Count a request that was booked."""
    if seed:
        rates[seed % RATES] = seed, level_of(rates, seed, now) + 1.0, now
