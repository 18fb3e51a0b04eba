"""Who has its context reserved at which worker, and who comes first where they do not all fit."""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.table import Agent

Standing = tuple[int, int, int]
Rank = tuple[Standing, float, str]
"""Class, when its program began, key: the least comes first. Only a better class takes the place of
others; within one the older keep theirs.
"""


class Seat:
    """A reservation of so many tokens at a worker until a time, `inf` while a turn is taken."""

    __slots__ = ("tenant", "tokens", "until_s", "worker")

    def __init__(self, worker: WorkerId, tokens: int, until_s: float, tenant: str) -> None:
        self.worker = worker
        self.tokens = tokens
        self.until_s = until_s
        self.tenant = tenant


class Seats:
    """Reservations by agent, each at one worker and until a time; sums by worker and tenant are
    kept. Taking and dropping one is O(log n).

    `crowded` are workers more than half full, by `capacity` when their sum last grew or fell.
    """

    def __init__(self, capacity: Callable[[WorkerId], int]) -> None:
        self._capacity = capacity
        self._seats: dict[str, Seat] = {}
        self._at: dict[WorkerId, dict[str, Agent]] = {}
        self._tokens: dict[WorkerId, int] = {}
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
        if seat is not None and seat.worker == worker and seat.tenant == tenant:
            # Most turns are taken where the one before was.
            more = tokens - seat.tokens
            seat.tokens, seat.until_s = tokens, until_s
            self._at[seat.worker][key] = agent
            if more or not tokens:
                self._count(seat.worker, tenant, more)
        else:
            self._drop(key)
            if worker is None:
                return False
            self._seats[key] = Seat(worker, tokens, until_s, tenant)
            self._at.setdefault(worker, {})[key] = agent
            self._count(worker, tenant, tokens)
        if until_s < inf:
            heappush(self._ends, (until_s, key))
            if len(self._ends) > 4 * len(self._seats) + 64:
                self._tidy()
        return True

    def _count(self, worker: WorkerId, tenant: str, more: int) -> None:
        held = self._tokens[worker] = self._tokens.get(worker, 0) + more
        self.tenants[tenant] = self.tenants.get(tenant, 0) + more
        self.total_tokens += more
        if 2 * held > self._capacity(worker):
            self.crowded.add(worker)
        else:
            self.crowded.discard(worker)

    def drop(self, agent: Agent) -> None:
        """Give up an agent's reservation."""
        self._drop(agent.key)

    def expire(self, now: float) -> None:
        """Give up those whose time is over."""
        while self._ends and self._ends[0][0] <= now:
            until_s, key = heappop(self._ends)
            seat = self._seats.get(key)
            if seat is not None and seat.until_s == until_s:
                self._drop(key)

    def next_s(self) -> float:
        """Return when the next one may be over, inf: none."""
        return self._ends[0][0] if self._ends else inf

    def leave(self, worker: WorkerId) -> list[Agent]:
        """Give up all at a worker; return whose they were."""
        agents = list(self._at.get(worker, {}).values())
        for agent in agents:
            self._drop(agent.key)
        return agents

    def find(self, key: str) -> Seat | None:
        """Return an agent's reservation, None where it has none."""
        return self._seats.get(key)

    def tokens_at(self, worker: WorkerId) -> int:
        """Return the tokens reserved at a worker."""
        return self._tokens.get(worker, 0)

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
        seat = self._seats.get(agent.key)
        seated = seat is not None and seat.worker == worker
        others = self.tokens_at(worker) - (seat.tokens if seat is not None and seated else 0)
        if not others or others + agent.tokens <= capacity:
            return True
        own = rank(agent)
        before = 0
        for key, one in self._at[worker].items():
            if key == agent.key:
                continue
            theirs = rank(one)
            if theirs < own if seated else theirs[0] <= own[0]:
                before += self._seats[key].tokens
        return not before or before + agent.tokens <= capacity

    def _drop(self, key: str) -> None:
        seat = self._seats.pop(key, None)
        if seat is None:
            return
        worker, tokens = seat.worker, seat.tokens
        at = self._at[worker]
        del at[key]
        left = self._tokens[worker] = self._tokens[worker] - tokens
        self.total_tokens -= tokens
        self.tenants[seat.tenant] -= tokens
        if not self.tenants[seat.tenant]:
            del self.tenants[seat.tenant]
        if 2 * left <= self._capacity(worker):
            self.crowded.discard(worker)
        if not at:
            del self._at[worker], self._tokens[worker]

    def _tidy(self) -> None:
        """Drop the times of reservations that were renewed or given up."""
        self._ends = sorted(
            (seat.until_s, key) for key, seat in self._seats.items() if seat.until_s < inf
        )
