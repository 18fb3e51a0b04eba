"""Whose each id of a file, batch, answer or conversation is, and which worker keeps it."""

import re
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import msgspec

from kvmesh.bounds import MAX_MEMBER
from kvmesh.core.blocks.events import WorkerId

_FRESH_SHARE: Final = 0.5
"""An id in use is told anew after this share of its time to live."""

_KEY: Final = re.compile(r"[0-9a-f]{32}")
_VALUE: Final = re.compile(rf"([0-9a-f]{{16}}) (.{{1,{MAX_MEMBER}}})", re.DOTALL)
_POOL_DIGITS: Final = 2


class KeptIdOptions(msgspec.Struct, frozen=True):
    """An id unused for `ttl_s` is forgotten. Beyond `max_ids` the longest unused one goes of those
    tenants that have most: ids that one makes push out no other's.
    """

    ttl_s: float = 7 * 86_400.0
    max_ids: int = 1 << 16


class _Kept(msgspec.Struct, eq=False):
    owner: str
    worker: WorkerId
    used_s: float
    told_s: float


class KeptIds:
    """Owner and worker by the path at which an id is looked up; of this replica and, by `learn`,
    of its siblings. Neither paths nor names of tenants are kept, only their hashes.

    `updates` are what siblings should hear of, in the form of `SharedTable`; whoever tells them
    takes them out, and sets `on_news`, which is called at each.
    """

    def __init__(self, options: KeptIdOptions | None = None) -> None:
        self.options = options or KeptIdOptions()
        self.updates: dict[str, str] = {}
        self.on_news: Callable[[], None] | None = None
        self._kept: dict[str, _Kept] = {}
        self._pools: dict[str, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, lookup: str, now: float) -> WorkerId | None:
        """Return the worker that keeps what is at that path; None where that is unknown."""
        kept = self._find(_hash(lookup, 16), now)
        return None if kept is None else kept.worker

    def is_owner(self, lookup: str, tenant: str, now: float) -> bool | None:
        """Return whether it was made for that tenant; None where that is unknown."""
        kept = self._find(_hash(lookup, 16), now)
        return None if kept is None or not kept.owner else kept.owner == _hash(tenant, 8)

    def made(self, lookup: str, tenant: str, worker: WorkerId, now: float) -> None:
        """Note that something was made for a tenant. An id stays whose it was: engines let clients
        choose some of them.
        """
        key, owner = _hash(lookup, 16), _hash(tenant, 8)
        kept = self._find(key, now)
        if kept is None or kept.owner in {"", owner}:
            self._enter(key, owner, worker, now)
            self._tell(key, self._kept[key], now)

    def found(self, lookup: str, worker: WorkerId, now: float) -> None:
        """Note who keeps it, whoever made it."""
        key = _hash(lookup, 16)
        kept = self._find(key, now)
        self._enter(key, "" if kept is None else kept.owner, worker, now)

    def used(self, lookup: str, now: float) -> None:
        """Note that somebody asked for it: it is kept, and told siblings when that is due."""
        key = _hash(lookup, 16)
        kept = self._find(key, now)
        if kept is None:
            return
        self._enter(key, kept.owner, kept.worker, now, kept.told_s)
        if kept.owner and now - kept.told_s >= _FRESH_SHARE * self.options.ttl_s:
            self._tell(key, self._kept[key], now)

    def learn(self, key: str, value: str, now: float) -> None:
        """Take what a sibling told. What is no such entry is passed over, and what another tenant
        is known to own.
        """
        told = _VALUE.fullmatch(value)
        if told is None or not _KEY.fullmatch(key) or key in self.updates:
            return
        kept = self._find(key, now)
        if kept is None or kept.owner in {"", told[1]}:
            self._enter(key, told[1], WorkerId(told[2]), now)

    def _find(self, key: str, now: float) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is not None and now - kept.used_s > self.options.ttl_s:
            self._forget(key)
            return None
        return kept

    def _enter(
        self, key: str, owner: str, worker: WorkerId, now: float, told_s: float | None = None
    ) -> None:
        if key in self._kept:
            self._forget(key, told=True)
        self._kept[key] = _Kept(owner, worker, now, now if told_s is None else told_s)
        self._pools.setdefault(owner[:_POOL_DIGITS], OrderedDict())[key] = None
        if len(self._kept) > self.options.max_ids:
            most = max(self._pools, key=lambda pool: len(self._pools[pool]))
            self._forget(next(iter(self._pools[most])))

    def _forget(self, key: str, *, told: bool = False) -> None:
        pool = self._kept.pop(key).owner[:_POOL_DIGITS]
        del self._pools[pool][key]
        if not self._pools[pool]:
            del self._pools[pool]
        if not told:
            self.updates.pop(key, None)

    def _tell(self, key: str, kept: _Kept, now: float) -> None:
        kept.told_s = now
        self.updates[key] = f"{kept.owner} {kept.worker}"
        if self.on_news is not None:
            self.on_news()


def _hash(text: str, size: int) -> str:
    """Return `size` bytes of a hash for which nobody finds a second text, as hex."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()
