"""Which prompts an engine is to compute before it serves, and in what order."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final, Generic, NamedTuple

import msgspec

from kvmesh.core.blocks.graded import graded_depth
from kvmesh.core.warming.kept_prompts import Kept, P

STEP_TOKENS: Final = 64
"""What a request costs beside its tokens, in tokens."""


class WarmBounds(msgspec.Struct, frozen=True):
    """How much may be computed: `tokens` by the budget, `room` tokens of cache. What saves less
    than `least_rate` tokens a second, for each that it computes, is not worth it.
    """

    tokens: int
    room: int
    least_rate: float = 1.0 / 1800.0


class Candidate(NamedTuple, Generic[P]):
    """A prompt of which the engine has `held` blocks, and some other engine has `elsewhere`."""

    prompt: Kept[P]
    held: int
    elsewhere: int


def plan_prompts(
    rates: Mapping[bytes, float],
    candidates: Sequence[Candidate[P]],
    engines: int,
    block_size: int,
    bounds: WarmBounds,
) -> list[tuple[Kept[P], int]]:
    """Return the prompts to send to one of so many engines, in this order, each with the tokens it
    computes.

    Greedy: next is always the prompt that saves most, per token that it computes: how often a
    second, by `rates`, those of its tokens are asked for which the engine will not have by then.
    What others have counts by the share of requests that one engine gets: the rest go there. A
    prompt computes all of itself, so a short one behind a shared beginning comes before a long one.
    O(all their marks), and those of a prompt again whenever it is next and shares some with one
    taken before.
    """
    there, share = set[bytes](), 1.0 / engines

    def worth(number: int) -> tuple[float, int]:
        """Return what a prompt saves per token that it computes, and these tokens."""
        return _worth(candidates[number], rates, there, share, block_size)

    heap = [(-worth(number)[0], number) for number in range(len(candidates))]
    heapify(heap)
    found: list[tuple[Kept[P], int]] = []
    left = min(bounds.tokens, bounds.room)
    while heap and left > 0:
        before, number = heap[0]
        value, tokens = worth(number)
        if value < -before:  # something of it was taken meanwhile
            heapreplace(heap, (-value, number))
            continue
        heappop(heap)
        if value < bounds.least_rate:
            break
        if tokens <= left:
            left -= tokens
            prompt = candidates[number].prompt
            there.update(prompt.marks)
            found.append((prompt, tokens))
    return found


def _worth(
    candidate: Candidate[P],
    rates: Mapping[bytes, float],
    there: set[bytes],
    share: float,
    block_size: int,
) -> tuple[float, int]:
    prompt, held, elsewhere = candidate
    depth, saved = 0, 0.0
    for number, key in enumerate(prompt.marks, start=1):
        below = graded_depth(number)
        if key in there:
            held = max(held, below)
        first = max(depth, held)
        alone = max(0, below - max(first, elsewhere))
        shared = max(0, below - first) - alone
        saved += rates.get(key, 0.0) * (alone + share * shared)
        depth = below
    tokens = max(0, prompt.hashes.blocks - held) * block_size
    return saved * block_size / (tokens + STEP_TOKENS), tokens
