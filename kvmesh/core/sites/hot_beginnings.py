"""Which beginnings of prompts a site is asked for most, told to other sites a few at a time."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import nlargest
from math import exp2
from typing import Final

import msgspec

from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import as_key, pack_hashes
from kvmesh.core.buckets.beginnings import Beginning

MOST_COUNTED: Final = 8192
"""Beginnings that are counted; beyond it the one longest unused is forgotten."""

HALF_LIFE_S: Final = 120.0
HOT: Final = 1.5
"""A beginning is told of once it is asked for by so many requests, old ones counting less: what one
request had alone no other site is asked for.
"""

TELL_AGAIN_S: Final = 120.0
"""What is still hot is told again so much later: messages get lost, and sites start."""


class _Counted(msgspec.Struct, gc=False):
    """How often a beginning was asked for, decayed to `at_s`."""

    key: int
    chars: int
    count: float
    at_s: float
    told_s: float

    def value(self, now: float) -> float:
        """Return what knowing it saves: its characters, as often as it is asked for."""
        return self.count_at(now) * self.chars

    def count_at(self, now: float) -> float:
        return self.count * exp2(-max(0.0, now - self.at_s) / HALF_LIFE_S)


class HotBeginnings:
    """Counts the beginnings of prompts that a site serves."""

    def __init__(self) -> None:
        self._counted: OrderedDict[bytes, _Counted] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counted)

    def note(self, beginnings: Iterable[Beginning], now: float) -> None:
        """Count a request's beginnings."""
        counted = self._counted
        for one in beginnings:
            place = as_key(one.key)
            known = counted.get(place)
            if known is None:
                counted[place] = _Counted(one.key, one.chars, 1.0, now, -TELL_AGAIN_S)
                if len(counted) > MOST_COUNTED:
                    counted.popitem(last=False)
                continue
            known.count, known.at_s = known.count_at(now) + 1.0, now
            counted.move_to_end(place)

    def take(self, most_bytes: int, now: float) -> bytes:
        """Return the hottest that were not told of late, 8 bytes each, and count them as told.

        O(beginnings).
        """
        hottest = nlargest(
            most_bytes // HASH_BYTES, self._due(now), key=lambda one: (one.value(now), one.key)
        )
        for one in hottest:
            one.told_s = now
        return pack_hashes([one.key for one in hottest])

    def _due(self, now: float) -> Iterator[_Counted]:
        for one in self._counted.values():
            if now - one.told_s >= TELL_AGAIN_S and one.count_at(now) >= HOT:
                yield one
