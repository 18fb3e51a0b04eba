"""Prefix-spill: a prompt's home bucket, unless waiting there costs more than prefill elsewhere."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec
import xxhash

from kvmesh.bounds import Count, Figure, Names

MARGIN_MS: Final = 100.0
"""A home is left only for so much less: reports are a second old, and caches are worth keeping."""

CHARS_PER_TOKEN: Final = 4
"""What a meta-router, which tokenises nothing, takes for a token."""


class BucketHeat(msgspec.Struct, frozen=True):
    """How busy a bucket is: the least predicted backlog of its workers, ms, and what it takes
    them to prefill a token, ms; 0: unknown.
    """

    backlog_ms: Figure = 0.0
    ms_per_token: Figure = 0.0
    workers: Count = 1


class BucketLoad(msgspec.Struct, frozen=True):
    """What buckets that serve the same models have for a request; no `models`: they serve any."""

    models: Names
    heat: BucketHeat


def lightest(loads: Iterable[BucketLoad], model: str) -> BucketHeat | None:
    """Return the heat of the least busy bucket that serves `model`, None where none does.

    A request that names no model is anybody's.
    """
    heats = [one.heat for one in loads if not (model and one.models) or model in one.models]
    return min(heats, key=lambda heat: heat.backlog_ms, default=None)


class PrefixSpill:
    """Chooses buckets by what they got of a prompt before, and by how busy they are.

    A prompt's home is the bucket that got most of it; the first time, the bucket of highest
    rendezvous hash. The price of a bucket is its backlog, plus prefilling what it never got: what
    that saves at home is what a move loses.
    """

    def __init__(self) -> None:
        self._sent_ms: dict[str, float] = {}

    def choose(
        self, known: Mapping[str, int], prompt_chars: int, heats: Mapping[str, BucketHeat], key: int
    ) -> str:
        """Return the bucket for a prompt, of which those of `known` got so many characters.

        `key` settles equal ones: equal keys go to the same. `count` what is then sent there.
        """
        ranked = sorted(
            known,
            key=lambda name: (-known[name], -xxhash.xxh3_64_intdigest(name.encode(), key), name),
        )
        home = ranked[0]
        tokens = {name: max(0, prompt_chars - known[name]) / CHARS_PER_TOKEN for name in known}
        prices = {name: self._price(name, heats[name], tokens[name]) for name in ranked}
        best = min(ranked, key=prices.__getitem__)
        return best if prices[home] > prices[best] + MARGIN_MS else home

    def count(self, bucket: str, chars: int, heat: BucketHeat) -> None:
        """Add `chars` of a prompt that the bucket has to prefill, until its heat is reported."""
        spent_ms = chars / CHARS_PER_TOKEN * heat.ms_per_token / max(1, heat.workers)
        self._sent_ms[bucket] = self._sent_ms.get(bucket, 0.0) + spent_ms

    def note_alive(self, bucket: str) -> None:
        """Learn that a bucket's heat is reported anew: it includes what was sent there."""
        self._sent_ms.pop(bucket, None)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget buckets that are gone."""
        self._sent_ms = {name: sent for name, sent in self._sent_ms.items() if name in names}

    def _price(self, name: str, heat: BucketHeat, tokens: float) -> float:
        return heat.backlog_ms + self._sent_ms.get(name, 0.0) + tokens * heat.ms_per_token
