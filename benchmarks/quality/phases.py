"""A load that changes its character: long prompts, then long answers, then one hot prefix."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

import msgspec

from kvmesh_lab.traces.trace import TraceRequest

BLOCK: Final = 128


def prefill_heavy(requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """Return questions on documents of 4 to 12 k tokens, each asked about four times, with answers
    of 16 to 64 tokens.
    """
    rng, blocks = random.Random(f"prefill {seed}"), _ids(seed, 1)
    waiting: list[list[int]] = []
    found: list[TraceRequest] = []
    for now in _times(requests, rate, rng):
        if len(waiting) < 60:
            document = [next(blocks) for _ in range(rng.randint(32, 96))]
            waiting += [document] * 4
        ids = [*waiting.pop(rng.randrange(len(waiting))), next(blocks)]
        found.append(_request(len(found), now, ids, rng.randint(16, 64)))
    return found


def decode_heavy(requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """Return prompts of 256 to 1,024 tokens behind ten system prompts, answers of 200 to 800."""
    rng, blocks = random.Random(f"decode {seed}"), _ids(seed, 2)
    systems = [[next(blocks) for _ in range(2)] for _ in range(10)]
    found: list[TraceRequest] = []
    for now in _times(requests, rate, rng):
        ids = [*rng.choice(systems), *(next(blocks) for _ in range(rng.randint(0, 6)))]
        found.append(_request(len(found), now, ids, rng.randint(200, 800)))
    return found


def hot_prefix(requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """Return 80 % of prompts behind one prefix of 8 k tokens, the rest with 3 k of their own;
    answers of 50 to 250.
    """
    rng, blocks = random.Random(f"hot {seed}"), _ids(seed, 3)
    hot = [next(blocks) for _ in range(64)]
    found: list[TraceRequest] = []
    for now in _times(requests, rate, rng):
        own = rng.randint(2, 8) if rng.random() < 0.8 else 0
        ids = [*(hot if own else ()), *(next(blocks) for _ in range(own or 24))]
        found.append(_request(len(found), now, ids, rng.randint(50, 250)))
    return found


PHASES: Final[Mapping[str, Callable[[int, float, int], list[TraceRequest]]]] = {
    "prefill-heavy": prefill_heavy,
    "decode-heavy": decode_heavy,
    "hot-prefix": hot_prefix,
}


def join(parts: Sequence[Sequence[TraceRequest]]) -> list[TraceRequest]:
    """Return the parts one after the other, as one trace."""
    found: list[TraceRequest] = []
    for part in parts:
        begin = found[-1].timestamp_ms if found else 0.0
        found += [
            msgspec.structs.replace(
                one, index=len(found) + place, timestamp_ms=begin + one.timestamp_ms
            )
            for place, one in enumerate(part)
        ]
    return found


def _times(requests: int, rate: float, rng: random.Random) -> list[float]:
    """Return arrivals at random, `rate` a second on average, ms."""
    now, found = 0.0, list[float]()
    for _ in range(requests):
        now += rng.expovariate(rate) * 1000.0
        found.append(now)
    return found


def _ids(seed: int, phase: int) -> "count[int]":
    """Return block ids that no other phase or seed has."""
    return count((seed << 40) + (phase << 32) + 1)


def _request(index: int, now: float, ids: Sequence[int], output_tokens: int) -> TraceRequest:
    return TraceRequest(
        index=index,
        timestamp_ms=now,
        input_tokens=len(ids) * BLOCK,
        output_tokens=output_tokens,
        block_ids=tuple(ids),
    )
