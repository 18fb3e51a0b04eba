"""Which prompts an engine is to compute before it serves, and in what order."""

from collections.abc import Iterable, Mapping, Sequence
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
    No tenant takes more than an equal share of what may be computed, until all others have what is
    worth it: then what is left goes by value alone.
    O(all their marks), and those of a prompt again whenever it is next and shares some with one
    taken before.
    """
    planning = _Planning(rates, candidates, 1.0 / engines, block_size, bounds.least_rate)
    left = min(bounds.tokens, bounds.room)
    owners = [one.prompt.sent.tenant for one in candidates]
    each = dict.fromkeys(owners, left // max(1, len(set(owners))))
    waiting = planning.take(range(len(candidates)), owners, each)
    left -= sum(tokens for _, tokens in planning.found)
    planning.take(waiting, [""] * len(candidates), {"": left})
    return planning.found


class _Planning(Generic[P]):
    """What is `found` to send, and the blocks that are `there` with it."""

    def __init__(
        self,
        rates: Mapping[bytes, float],
        candidates: Sequence[Candidate[P]],
        share: float,
        block_size: int,
        least_rate: float,
    ) -> None:
        self.found: list[tuple[Kept[P], int]] = []
        self._there: set[bytes] = set()
        self._rates = rates
        self._candidates = candidates
        self._share = share
        self._block_size = block_size
        self._least_rate = least_rate

    def take(
        self, numbers: Iterable[int], owners: Sequence[str], lefts: dict[str, int]
    ) -> list[int]:
        """Take those of the candidates that are worth it, as long as their owners' tokens last;
        return whose did not.
        """
        heap, waiting = [(-self._worth(number)[0], number) for number in numbers], list[int]()
        heapify(heap)
        while heap:
            before, number = heap[0]
            value, tokens = self._worth(number)
            if value < -before:  # something of it was taken meanwhile
                heapreplace(heap, (-value, number))
                continue
            heappop(heap)
            if value < self._least_rate:
                break
            owner = owners[number]
            if tokens > lefts[owner]:
                waiting.append(number)
                continue
            lefts[owner] -= tokens
            prompt = self._candidates[number].prompt
            self._there.update(prompt.marks)
            self.found.append((prompt, tokens))
        return waiting

    def _worth(self, number: int) -> tuple[float, int]:
        """Return what a prompt saves per token that it computes, and these tokens."""
        prompt, held, elsewhere = self._candidates[number]
        depth, saved = 0, 0.0
        for place, key in enumerate(prompt.marks, start=1):
            below = graded_depth(place)
            if key in self._there:
                held = max(held, below)
            first = max(depth, held)
            alone = max(0, below - max(first, elsewhere))
            shared = max(0, below - first) - alone
            saved += self._rates.get(key, 0.0) * (alone + self._share * shared)
            depth = below
        tokens = max(0, prompt.hashes.blocks - held) * self._block_size
        return saved * self._block_size / (tokens + STEP_TOKENS), tokens
