"""Which buckets got a beginning before: learned here, told to the other meta-routers."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.core.blocks.events import HASH_BYTES

DEFAULT_MAX_HOMES: Final = 1 << 17

MOST_HOMES: Final = 8
"""Buckets remembered of one beginning, those used last."""

_FRESH_SHARE: Final = 0.5
"""A home in use is told anew after this share of its time to live."""

_KEY_DIGITS: Final = 16
_LONGEST_VALUE: Final = 1024
_ENDED: Final = "+"


class HomeOptions(msgspec.Struct, frozen=True):
    """How long a beginning's homes are remembered after their last use, and how many beginnings:
    beyond `max_homes` the one longest unused is forgotten.

    `shared` False: nobody tells other meta-routers or the next start, so that what can be decided
    by hash alone is.
    """

    ttl_s: float = 3600.0
    max_homes: int = DEFAULT_MAX_HOMES
    shared: bool = True


class _Home(msgspec.Struct, gc=False):
    """Where one beginning is at home; the collector need not walk a hundred thousand of them."""

    buckets: tuple[str, ...]
    used_s: float
    reported_s: float
    ended: bool
    reported: bool = False
    passed: int = 0


class Homes:
    """Buckets by key, those used last at the end; of this meta-router and, by `learn`, of others.

    `updates` are what others should hear of, in the form of `SharedTable`; whoever tells them takes
    them out, and sets `on_news`, which is called at each. Where nobody does it has no more than
    `max_homes` either.
    """

    def __init__(self, options: HomeOptions) -> None:
        self.options = options
        self.updates: dict[str, str] = {}
        self.on_news: Callable[[], None] | None = None
        self._homes: OrderedDict[bytes, _Home] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def buckets(self) -> frozenset[str]:
        """Return every bucket that is the home of something. O(homes)."""
        return frozenset(name for home in self._homes.values() for name in home.buckets)

    def find(self, key: int, now: float) -> tuple[str, ...]:
        """Return the buckets that got what `key` stands for, the newest last; () for none."""
        home = self._find(_place(key), now)
        return () if home is None else home.buckets

    def find_end(self, key: int, now: float) -> tuple[str, ...]:
        """Do as `find`, if a whole request ended where `key` does."""
        home = self._find(_place(key), now)
        return home.buckets if home is not None and home.ended else ()

    def passed(self, key: int) -> int:
        """Return how many requests `count_passed` counted."""
        home = self._homes.get(_place(key))
        return 0 if home is None else home.passed

    def count_passed(self, key: int) -> None:
        """Count a request that goes on from `key`, if that is known, and knows no later end."""
        home = self._homes.get(_place(key))
        if home is not None:
            home.passed += 1

    def note(
        self, key: int, bucket: str, now: float, *, ended: bool = False, reported: bool = True
    ) -> None:
        """Remember that `bucket` got it. `reported` False keeps it from the others."""
        place = _place(key)
        home = self._find(place, now)
        if home is None:
            home = self._enter(place, (bucket,), now, ended=ended)
            fresh = False
        else:
            home.used_s = now
            self._homes.move_to_end(place)
            fresh = bucket in home.buckets and home.ended >= ended
            home.ended = home.ended or ended
            if home.buckets[-1] != bucket:
                kept = tuple(one for one in home.buckets if one != bucket)
                home.buckets = (*kept[1 - MOST_HOMES :], bucket)
        self._publish(place, home, now, fresh=fresh, reported=reported)

    def bind(self, key: int, bucket: str, now: float) -> None:
        """Remember `bucket` alone: what a session left does not draw it back."""
        place = _place(key)
        home = self._find(place, now)
        if home is None or home.buckets != (bucket,):
            home = self._enter(place, (bucket,), now, ended=True)
            self._publish(place, home, now, fresh=False, reported=True)
            return
        home.used_s = now
        self._homes.move_to_end(place)
        self._publish(place, home, now, fresh=True, reported=True)

    def learn(self, key: str, value: str, now: float) -> None:
        """Take what a meta-router told: the last one written counts, for all. What is no such
        entry is passed over.

        One of this meta-router that is still to be written comes later in the table, and stays.
        """
        if key in self.updates or len(key) != _KEY_DIGITS or len(value) > _LONGEST_VALUE:
            return
        buckets = tuple(one for one in value.lstrip(_ENDED).split(",") if one)[-MOST_HOMES:]
        try:
            place = bytes.fromhex(key)
        except ValueError:
            return
        if not buckets or len(place) != HASH_BYTES:
            return
        before = self._homes.get(place)
        home = self._enter(place, buckets, now, ended=value.startswith(_ENDED))
        home.reported = True
        if before is not None:
            home.passed = before.passed

    def _find(self, place: bytes, now: float) -> _Home | None:
        home = self._homes.get(place)
        if home is not None and now - home.used_s > self.options.ttl_s:
            self._forget(place)
            return None
        return home

    def _enter(self, place: bytes, buckets: tuple[str, ...], now: float, *, ended: bool) -> _Home:
        home = self._homes[place] = _Home(buckets, now, now, ended)
        self._homes.move_to_end(place)
        stale_s, most = now - self.options.ttl_s, self.options.max_homes
        while True:
            oldest = next(iter(self._homes))
            if len(self._homes) <= most and self._homes[oldest].used_s >= stale_s:
                return home
            self._forget(oldest)

    def _forget(self, place: bytes) -> None:
        del self._homes[place]
        self.updates.pop(place.hex(), None)

    def _publish(
        self, place: bytes, home: _Home, now: float, *, fresh: bool, reported: bool
    ) -> None:
        if not (reported and self.options.shared):
            return
        if home.reported and fresh and now - home.reported_s < _FRESH_SHARE * self.options.ttl_s:
            return
        home.reported, home.reported_s = True, now
        self.updates[place.hex()] = _ENDED * home.ended + ",".join(home.buckets)
        if self.on_news is not None:
            self.on_news()


def _place(key: int) -> bytes:
    """Return a key as one of a dict (`core.blocks.hashing.as_key`); its hex digits are a name."""
    return key.to_bytes(HASH_BYTES, "big")
