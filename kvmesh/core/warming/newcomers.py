"""Workers that have just joined with an empty cache: who they are, and how long they wait."""

from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.health_record import Stage
from kvmesh.core.members.worker_info import Trust
from kvmesh.core.routing.scheduler import Scheduler

WARMING: Final = "is given prefixes before it serves"
"""Why a newcomer gets no requests yet."""

EMPTY_SHARE: Final = 0.25
"""A worker with less of what the others have cached on average has an empty cache."""

_OUT: Final = frozenset({Stage.SUSPECT, Stage.DOWN})


class WarmOptions(msgspec.Struct, frozen=True):
    """`share` of the fleet's prefill may go into prefixes of newcomers, and into those that leave
    with a worker; 0: none.

    A newcomer serves after `longest_s` at the latest, as soon as the backlog of all others of its
    models is longer than `crowded_ms`, and once its cache has not grown for `quiet_s`; it has
    `unheard_s` to begin where another replica sends, which may learn of it later. At most `fill`
    of its cache is filled.

    What a worker that leaves alone keeps is computed where the backlog is `idle_ms` at most, if it
    saves `moved_rate` tokens a second for each that is computed.
    """

    share: float = 0.03
    longest_s: float = 10.0
    crowded_ms: float = 200.0
    quiet_s: float = 1.5
    unheard_s: float = 3.0
    fill: float = 0.8
    idle_ms: float = 20.0
    moved_rate: float = 1.0 / 600.0


class _Newcomer(msgspec.Struct, eq=False):
    """Times are -1 until the first look. `looked`: it is known since whether its cache is empty."""

    began_s: float = -1.0
    grown_s: float = -1.0
    cached: int = 0
    looked: bool = False


class Allowance:
    """Tokens that may be computed ahead of requests: a share of those computed for requests."""

    def __init__(self, share: float) -> None:
        self.tokens = 0.0
        self._share = share
        self._computed = 0

    def earn(self, computed: int, replicas: int, most: int) -> None:
        """Note how many tokens requests of this replica, one of so many, had computed until now.
        More than `most` is not saved up.
        """
        fresh, self._computed = max(0, computed - self._computed), computed
        self.tokens = min(float(most), self.tokens + self._share * fresh * replicas)

    def spend(self, tokens: int) -> None:
        """Note that so many were computed, for whichever replica."""
        self.tokens -= tokens


class Newcomers:
    """Leaves workers out that joined, restarted or woke with an empty cache, while others serve.

    `screen` keeps each incarnation of a worker back when its membership first asks; `look` lets
    those in that are not to wait, or no longer. Every replica does so by itself, and hears by a
    newcomer's events whether another one still sends it prefixes. `armed`: there are some to give.
    `sends`: this replica does. `grown_blocks`: by how many the caches of all newcomers grew while
    they waited.
    """

    def __init__(self, options: WarmOptions, scheduler: Scheduler) -> None:
        self.options = options
        self.armed = False
        self.sends = True
        self.grown_blocks = 0
        self.waiting: dict[WorkerId, _Newcomer] = {}
        self._scheduler = scheduler
        self._known: dict[str, int | None] = {}

    def screen(self, name: str) -> str:
        """Return why a worker may not be given work yet, "" if it may."""
        worker, epoch = WorkerId(name), self._scheduler.workers.membership.epoch(name)
        if name not in self._known or self._known[name] != epoch:
            others = any(one != name and one not in self.waiting for one in self._known)
            # Of whom the index has read much, this router is the one that is new.
            new = name not in self._known
            read = new and not self.is_behind(worker) and self._is_full(worker)
            self._known[name] = epoch
            self.waiting.pop(worker, None)
            if self.armed and others and not read:
                self.waiting[worker] = _Newcomer()
        return WARMING if name in self.waiting else ""

    def forget(self, workers: Iterable[str]) -> None:
        """Judge these workers anew when they are next there: their engines sleep, or are down. What
        was sent to them lately is not believed cached there, if events tell what is.
        """
        overlaps = self._scheduler.overlaps
        for name in workers:
            worker = WorkerId(name)
            if name in self._known and (self.is_behind(worker) or overlaps.confirms(worker)):
                overlaps.remove_worker(worker)
            self._known.pop(name, None)
            self.waiting.pop(worker, None)

    def is_out(self, worker: WorkerId) -> bool:
        """Return whether a newcomer cannot serve anyway: its engine does not answer."""
        return self._scheduler.workers.membership.health.stage(worker) in _OUT

    def is_behind(self, worker: WorkerId) -> bool:
        """Return whether what is known of a worker's cache may be of its engine's last life."""
        return self._scheduler.workers.info(worker).trust is Trust.CATCHING_UP

    def done(self, worker: WorkerId) -> None:
        """Let a worker in: it has all that it is to be given."""
        if self.waiting.pop(worker, None) is not None:
            self._scheduler.workers.membership.screen_anew()

    def look(self, now: float, *, held: bool) -> None:
        """Let in whose cache is not empty, or whose time is over. `held`: requests wait for a
        worker. O(newcomers x workers).
        """
        workers = self._scheduler.workers
        self._known = {n: one for n, one in self._known.items() if n in workers.membership}
        if not self.waiting:
            return
        usable = workers.everyone(now)
        for worker, one in tuple(self.waiting.items()):
            if self.is_out(worker):
                self.waiting[worker] = _Newcomer()
                continue
            others = [name for name in usable if self._are_alike(worker, name)]
            if held or worker not in workers.membership or self._is_over(worker, one, others, now):
                self.done(worker)

    def _is_over(
        self, worker: WorkerId, one: _Newcomer, others: Sequence[WorkerId], now: float
    ) -> bool:
        """Return whether a worker is to wait no longer; `others` serve meanwhile."""
        if not self.sends and self._scheduler.sequences.loads(worker).booked_requests:
            return True  # whoever sends has let it in, and its cache grows by requests
        waits_ms = (self._scheduler.wait_ms(name, now) for name in others)
        if min(waits_ms, default=inf) > self.options.crowded_ms:
            return True
        (cached,) = self._scheduler.overlaps.cached_blocks((worker,))
        if one.began_s < 0.0:
            one.began_s, one.grown_s, one.cached = now, now, cached
        if not one.looked and not self.is_behind(worker):
            one.looked, one.cached = True, cached
            if self._is_full(worker, others):
                return True
        if cached > one.cached:
            self.grown_blocks += cached - one.cached
            one.grown_s, one.cached = now, cached
        options, late = self.options, now - one.began_s >= self.options.longest_s
        grows = self.sends or one.grown_s > one.began_s
        return late or now - one.grown_s >= (options.quiet_s if grows else options.unheard_s)

    def _is_full(self, worker: WorkerId, others: Sequence[WorkerId] = ()) -> bool:
        """Return whether a worker has cached enough, compared with others; none: with all known."""
        names = others or [WorkerId(one) for one in self._known if one not in self.waiting]
        cached, *rest = self._scheduler.overlaps.cached_blocks((worker, *names))
        return bool(rest) and cached > EMPTY_SHARE * fmean(rest)

    def _are_alike(self, worker: WorkerId, other: WorkerId) -> bool:
        """Return whether one serves what the other does."""
        one, two = self._scheduler.workers.info(worker), self._scheduler.workers.info(other)
        known = bool(one.models and two.models)
        return not (known and frozenset(one.models).isdisjoint(two.models))
