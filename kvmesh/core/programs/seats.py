"""Who has its context reserved at which worker, and who comes first where they do not all fit."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.table import Agent

Standing = tuple[int, int, int]
Rank = tuple[Standing, float, str]
"""Class, when its program began, key: the least comes first. Only a better class takes the place of
others; within one the older keep theirs.
"""


class _Cache(msgspec.Struct, eq=False):
    """A worker's cache as far as it is reserved: `tokens` of `limit`, for agents by key, of `most`;
    0 each: any number.
    """

    limit: int
    most: int = 0
    tokens: int = 0
    agents: dict[str, Agent] = {}


class Seat(msgspec.Struct, eq=False):
    """A reservation of so many tokens at a worker until a time, `inf` while a turn is taken.

    `look_s` is when it is looked at next whether its time is over, `inf`: never.
    """

    worker: WorkerId
    cache: _Cache
    tenant: str
    agent: Agent | None = None
    tokens: int = 0
    until_s: float = inf
    look_s: float = inf


class Seats:
    """Reservations by agent, each at one worker and until a time; sums by worker and tenant are
    kept. Taking and dropping one is O(log n).

    `crowded` are workers known to be more than half full, by `capacity` in tokens and by `contexts`
    when they were asked last (`measure`); 0 is unknown.
    """

    def __init__(
        self, capacity: Callable[[WorkerId], int], contexts: Callable[[WorkerId], int]
    ) -> None:
        self._capacity = capacity
        self._contexts = contexts
        self._seats: dict[str, Seat] = {}
        self._caches: dict[WorkerId, _Cache] = {}
        self._ends: list[tuple[float, str]] = []
        self.tenants: dict[str, int] = {}
        self.crowded: set[WorkerId] = set()
        self.total_tokens = 0

    def __len__(self) -> int:
        return len(self._seats)

    def take(self, agent: Agent, until_s: float) -> bool:
        """Reserve an agent's tokens at its worker, instead of what it had; False: it has none."""
        key, worker, tokens, tenant = agent.key, agent.worker, agent.tokens, agent.tenant
        seat = self._seats.get(key)
        if seat is None or seat.worker != worker or seat.tenant != tenant:
            self._drop(key)
            if worker is None:
                return False
            cache = self._caches.get(worker)
            if cache is None:
                limits = self._capacity(worker), self._contexts(worker)
                cache = self._caches[worker] = _Cache(*limits)
            seat = self._seats[key] = Seat(worker, cache, tenant)
            self.tenants.setdefault(tenant, 0)
        if seat.agent is not agent:
            seat.agent = seat.cache.agents[key] = agent
        # Most turns are taken where the one before was.
        seat.until_s = until_s
        if tokens != seat.tokens:
            self._count(seat, tokens - seat.tokens)
        if until_s < seat.look_s:
            seat.look_s = until_s
            heappush(self._ends, (until_s, key))
            if len(self._ends) > 4 * len(self._seats) + 64:
                self._tidy()
        return True

    def _count(self, seat: Seat, more: int) -> None:
        cache = seat.cache
        seat.tokens += more
        cache.tokens += more
        self.tenants[seat.tenant] = self.tenants.get(seat.tenant, 0) + more
        self.total_tokens += more
        self._judge(seat.worker, cache)

    def _judge(self, worker: WorkerId, cache: _Cache) -> None:
        if 2 * cache.tokens > cache.limit > 0 or 2 * len(cache.agents) > cache.most > 0:
            self.crowded.add(worker)
        else:
            self.crowded.discard(worker)

    def measure(self) -> None:
        """Ask anew how much each worker's cache holds. O(workers)."""
        for worker, cache in self._caches.items():
            cache.limit, cache.most = self._capacity(worker), self._contexts(worker)
            self._judge(worker, cache)

    def drop(self, agent: Agent) -> None:
        """Give up an agent's reservation."""
        self._drop(agent.key)

    def expire(self, now: float) -> None:
        """Give up those whose time is over."""
        while self._ends and self._ends[0][0] <= now:
            look_s, key = heappop(self._ends)
            seat = self._seats.get(key)
            if seat is None or seat.look_s != look_s:
                continue
            if seat.until_s <= now:
                self._drop(key)
                continue
            seat.look_s = seat.until_s
            if seat.until_s < inf:
                heappush(self._ends, (seat.until_s, key))

    def next_s(self) -> float:
        """Return when the next one may be over, inf: none."""
        return self._ends[0][0] if self._ends else inf

    def leave(self, worker: WorkerId) -> list[Agent]:
        """Give up all at a worker; return whose they were."""
        cache = self._caches.get(worker)
        agents = [] if cache is None else list(cache.agents.values())
        for agent in agents:
            self._drop(agent.key)
        return agents

    def find(self, key: str) -> Seat | None:
        """Return an agent's reservation, None where it has none."""
        return self._seats.get(key)

    def tokens_at(self, worker: WorkerId) -> int:
        """Return the tokens reserved at a worker."""
        cache = self._caches.get(worker)
        return 0 if cache is None else cache.tokens

    def running_at(self, worker: WorkerId) -> int:
        """Return the tokens of those reserved there whose turns are taken now. O(agents there)."""
        cache = self._caches.get(worker)
        agents = () if cache is None else cache.agents.values()
        return sum(one.tokens for one in agents if one.phase == "running")

    def fits(self, key: str, worker: WorkerId, tokens: int, capacity: int) -> bool:
        """Return whether an agent's tokens fit a worker beside all that others have reserved."""
        cache = self._caches.get(worker)
        if cache is None:
            return tokens <= capacity
        seat = cache.agents.get(key) and self._seats[key]
        others = cache.tokens - (seat.tokens if seat else 0)
        contexts = len(cache.agents) - bool(seat)
        return others + tokens <= capacity and (not cache.most or contexts < cache.most)

    def has_room(
        self,
        agent: Agent,
        worker: WorkerId,
        capacity: int,
        rank: Callable[[Agent], Rank],
    ) -> bool:
        """Return whether an agent's context fits a worker beside those that come before it: all of
        them, but where it has a seat those behind it do not count, and nowhere those of a class
        behind its own. What fits no cache fits an empty one. O(agents there) where it is full.
        """
        cache = self._caches.get(worker)
        if cache is None or self.fits(agent.key, worker, agent.tokens, capacity):
            return True
        seated, own = agent.key in cache.agents, rank(agent)
        before = contexts = 0
        for key, one in cache.agents.items():
            if key == agent.key:
                continue
            theirs = rank(one)
            if theirs < own if seated else theirs[0] <= own[0]:
                before += self._seats[key].tokens
                contexts += 1
        if cache.most and contexts >= cache.most:
            return False
        return not before or before + agent.tokens <= capacity

    def _drop(self, key: str) -> None:
        seat = self._seats.pop(key, None)
        if seat is None:
            return
        cache, tenant = seat.cache, seat.tenant
        del cache.agents[key]
        self._count(seat, -seat.tokens)
        if not self.tenants[tenant]:
            del self.tenants[tenant]
        if not cache.agents:
            del self._caches[seat.worker]

    def _tidy(self) -> None:
        """Drop the times of reservations that were given up, or moved to earlier ones."""
        self._ends = sorted(
            (seat.look_s, key) for key, seat in self._seats.items() if seat.look_s < inf
        )
