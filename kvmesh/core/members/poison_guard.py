"""Requests that end the workers they are sent to: known by their bodies, refused for a while."""

from collections import OrderedDict
from typing import Final

import msgspec
import xxhash

MAX_REMEMBERED: Final = 4096
"""Bodies remembered; beyond it the one whose last worker was lost longest ago is forgotten."""

MOST_SUSPECTS: Final = 8
"""Workers remembered of one body."""

GONE_S: Final = 10.0
"""A worker that is found gone later than this after it broke a connection did not end of that."""


def key_of(body: bytes) -> bytes:
    """Return what a body is known by. About 0.1 us a kilobyte."""
    return xxhash.xxh3_64_digest(body)


class _Loss(msgspec.Struct):
    """A connection that a worker broke on a body; `gone`: the worker was found to have ended."""

    at_s: float
    gone: bool = False


class PoisonGuard:
    """Counts, per body, the workers that ended on it: they broke the connection, unanswered, and
    are gone by their health check.

    One such end may be the worker's own, and one that lives has only closed a connection. A body
    that ended `max_deaths` different workers, in one request or in a client's retries, is refused
    until `window_s` after the last. `deaths` is empty while no connection was broken: then there is
    nothing to ask. `suspects` broke one, and were not asked since whether they are there.
    """

    def __init__(self, *, max_deaths: int = 2, window_s: float = 60.0) -> None:
        self.max_deaths = max_deaths
        self.window_s = window_s
        self.refused = 0
        self.deaths: OrderedDict[bytes, dict[str, _Loss]] = OrderedDict()
        self.suspects: set[str] = set()

    def died(self, key: bytes, worker: str, now: float) -> None:
        """Note that a worker broke the connection on the request with the body of this key."""
        self._forget(now)
        losses = self.deaths.setdefault(key, {})
        if worker in losses or len(losses) < MOST_SUSPECTS:
            known = losses.get(worker)
            losses[worker] = _Loss(now, known is not None and known.gone)
            self.suspects.add(worker)
        self.deaths.move_to_end(key)
        if len(self.deaths) > MAX_REMEMBERED:
            self.deaths.popitem(last=False)

    def gone(self, worker: str, now: float) -> None:
        """Take that a worker is not there: what it last had may have ended it. O(bodies known)."""
        for losses in self.deaths.values():
            loss = losses.get(worker)
            if loss is not None and now - loss.at_s <= GONE_S:
                loss.gone = True

    def refuses(self, key: bytes, now: float) -> bool:
        """Return whether a request with the body of this key must not be sent."""
        self._forget(now)
        if not self.deaths:
            return False
        losses = self.deaths.get(key, {})
        refused = sum(one.gone for one in losses.values()) >= self.max_deaths
        self.refused += refused
        return refused

    def _forget(self, now: float) -> None:
        """Drop the bodies whose last worker was lost more than `window_s` ago."""
        while self.deaths:
            key, losses = next(iter(self.deaths.items()))
            if now - max(one.at_s for one in losses.values()) <= self.window_s:
                return
            del self.deaths[key]
