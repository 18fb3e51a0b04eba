"""Requests that end the workers they are sent to: known by their bodies, refused for a while."""

from collections import OrderedDict
from typing import Final

import xxhash

MAX_REMEMBERED: Final = 4096

RESTART_S: Final = 5.0
"""An engine takes longer than this to come back: until then it is one and the same end."""


class PoisonGuard:
    """Counts, per body, the workers that closed the connection on it unanswered.

    One such end may be the worker's own, and takes all it was at work on along: the same worker
    counts again only after `RESTART_S`. A body that saw `max_deaths` ends, in one request or in a
    client's retries, is refused until `window_s` after the last. `deaths` is empty while nobody has
    died: then there is nothing to ask.
    """

    def __init__(self, *, max_deaths: int = 2, window_s: float = 60.0) -> None:
        self.max_deaths = max_deaths
        self.window_s = window_s
        self.refused = 0
        self.deaths: OrderedDict[int, tuple[int, float, str]] = OrderedDict()

    def died(self, body: bytes, worker: str, now: float) -> None:
        """Note that a worker ended while it had this request. About 0.1 us a kilobyte."""
        key = xxhash.xxh3_64_intdigest(body)
        before = self._count(key, now)
        if before:
            _, last_s, last = self.deaths[key]
            if worker == last and now - last_s < RESTART_S:
                return
        self.deaths[key] = (before + 1, now, worker)
        self.deaths.move_to_end(key)
        if len(self.deaths) > MAX_REMEMBERED:
            self.deaths.popitem(last=False)

    def refuses(self, body: bytes, now: float) -> bool:
        """Return whether the request must not be sent; costs nothing while nobody has died."""
        if not self.deaths:
            return False
        refused = self._count(xxhash.xxh3_64_intdigest(body), now) >= self.max_deaths
        self.refused += refused
        return refused

    def _count(self, key: int, now: float) -> int:
        deaths, last_s, _ = self.deaths.get(key, (0, now, ""))
        if now - last_s > self.window_s:
            del self.deaths[key]
            return 0
        return deaths
