"""Prefix-spill: a prompt's home bucket, unless waiting there costs more than prefill elsewhere."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import xxhash

MAX_FAMILIES: Final = 1 << 16
"""Prompt beginnings whose buckets are remembered; the one longest unused is forgotten first."""

MARGIN_MS: Final = 100.0
"""A home is left only for so much less: reports are a second old, and caches are worth keeping."""

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

    A family of prompts lives in its home, the bucket of highest rendezvous hash. The price of a
    bucket is its backlog, plus prefilling the whole prompt where the family never was: what its
    cached prefix saves is what a move loses. A family that spilled has a second home from then on.
    """

    def __init__(self, *, max_families: int = MAX_FAMILIES) -> None:
        self._homes: OrderedDict[int, frozenset[str]] = OrderedDict()
        self._max_families = max_families
        self._sent_ms: dict[str, float] = {}
        self.spilled = 0

    def choose(
        self, names: Sequence[str], key: bytes, prompt_chars: int, heats: Mapping[str, BucketHeat]
    ) -> str:
        """Return one of `names` (at least one) for a prompt that begins with `key`."""
        family = xxhash.xxh3_64_intdigest(key)
        known = self._homes.get(family, frozenset[str]())
        ranked = sorted(
            names, key=lambda name: (-xxhash.xxh3_64_intdigest(name.encode(), family), name)
        )
        home = ranked[0]
        tokens = prompt_chars / CHARS_PER_TOKEN
        prices = {name: self._price(name, heats[name], tokens, known) for name in ranked}
        best = min(ranked, key=prices.__getitem__)
        chosen = best if prices[home] > prices[best] + MARGIN_MS else home
        self.spilled += chosen != home
        heat = heats[chosen]
        if chosen not in known:
            spent_ms = tokens * heat.ms_per_token / max(1, heat.workers)
            self._sent_ms[chosen] = self._sent_ms.get(chosen, 0.0) + spent_ms
        self._remember(family, known | {chosen})
        return chosen

    def heard(self, bucket: str) -> None:
        """Learn that a bucket's heat is reported anew: it includes what was sent there."""
        self._sent_ms.pop(bucket, None)

    def _price(self, name: str, heat: BucketHeat, tokens: float, known: frozenset[str]) -> float:
        wait_ms = heat.backlog_ms + self._sent_ms.get(name, 0.0)
        return wait_ms if name in known else wait_ms + tokens * heat.ms_per_token

    def _remember(self, family: int, homes: frozenset[str]) -> None:
        self._homes[family] = homes
        self._homes.move_to_end(family)
        if len(self._homes) > self._max_families:
            self._homes.popitem(last=False)
