"""Prefix-spill: a prompt's home bucket, unless waiting there costs more than prefill elsewhere."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import xxhash

from kvmesh.core.buckets.rules import PREFIX_CHARS

MAX_FAMILIES: Final = 1 << 16
"""Prompt beginnings whose buckets are remembered; the one longest unused is forgotten first."""

MARGIN_MS: Final = 100.0
"""A home is left only for so much less: reports are a second old, and caches are worth keeping."""

DEPTHS: Final = tuple(PREFIX_CHARS << doubled for doubled in range(7))
"""Lengths of the beginnings that are remembered, characters: 256 to 16,384."""

CHARS_PER_TOKEN: Final = 4
"""What a meta-router, which tokenises nothing, takes for a token."""


class BucketHeat(msgspec.Struct, frozen=True):
    """How busy a bucket is: the least predicted backlog of its workers, ms, and what it takes
    them to prefill a token, ms; 0: unknown.
    """

    backlog_ms: float = 0.0
    ms_per_token: float = 0.0
    workers: int = 1


class PrefixSpill:
    """Chooses buckets by the beginning of prompts.

    Beginnings are remembered at several depths: prompts that share a system prompt and nothing
    more are told from turns of one conversation. A prompt's home is the bucket that got most of
    it before; the first time, the bucket of highest rendezvous hash. The price of a bucket is its
    backlog, plus prefilling what it never got: what that saves at home is what a move loses.
    """

    def __init__(self, *, max_families: int = MAX_FAMILIES) -> None:
        self._homes: OrderedDict[int, frozenset[str]] = OrderedDict()
        self._max_families = max_families
        self._sent_ms: dict[str, float] = {}

    def choose(
        self, names: Sequence[str], start: str, prompt_chars: int, heats: Mapping[str, BucketHeat]
    ) -> str:
        """Return one of `names` (at least one) for a prompt that begins with `start`."""
        keys = _keys(start)
        known = {name: self._known_chars(name, keys, prompt_chars) for name in names}
        seed = keys[-1 if any(known.values()) else 0][1]
        ranked = sorted(
            names,
            key=lambda name: (-known[name], -xxhash.xxh3_64_intdigest(name.encode(), seed), name),
        )
        home = ranked[0]
        tokens = {name: max(0, prompt_chars - known[name]) / CHARS_PER_TOKEN for name in names}
        prices = {name: self._price(name, heats[name], tokens[name]) for name in ranked}
        best = min(ranked, key=prices.__getitem__)
        chosen = best if prices[home] > prices[best] + MARGIN_MS else home
        heat = heats[chosen]
        spent_ms = tokens[chosen] * heat.ms_per_token / max(1, heat.workers)
        self._sent_ms[chosen] = self._sent_ms.get(chosen, 0.0) + spent_ms
        for _, key in keys:
            self._remember(key, chosen)
        return chosen

    def heard(self, bucket: str) -> None:
        """Learn that a bucket's heat is reported anew: it includes what was sent there."""
        self._sent_ms.pop(bucket, None)

    def _known_chars(self, name: str, keys: Sequence[tuple[int, int]], prompt_chars: int) -> int:
        """Return how much of a prompt the bucket got before: all, if its deepest beginning."""
        for depth, (chars, key) in enumerate(reversed(keys)):
            if name in self._homes.get(key, ()):
                return chars if depth else max(chars, prompt_chars)
        return 0

    def _price(self, name: str, heat: BucketHeat, tokens: float) -> float:
        return heat.backlog_ms + self._sent_ms.get(name, 0.0) + tokens * heat.ms_per_token

    def _remember(self, key: int, bucket: str) -> None:
        self._homes[key] = self._homes.get(key, frozenset()) | {bucket}
        self._homes.move_to_end(key)
        if len(self._homes) > self._max_families:
            self._homes.popitem(last=False)


def _keys(start: str) -> list[tuple[int, int]]:
    """Return length and hash of the beginnings of a prompt, at least one, the shortest first."""
    ends = [depth for depth in DEPTHS if depth <= len(start)] or [len(start)]
    starts = [start[:end].encode(errors="surrogatepass") for end in ends]
    return [(end, xxhash.xxh3_64_intdigest(one)) for end, one in zip(ends, starts, strict=True)]
