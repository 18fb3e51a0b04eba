"""Who has its context reserved at which worker."""

from heapq import heappop, heappush
from math import inf

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.table import Agent


class Seat:
    """A reservation of so many tokens at a worker until a time, `inf` while a turn is taken."""

    __slots__ = ("tokens", "until_s", "worker")

    def __init__(self, worker: WorkerId, tokens: int, until_s: float) -> None:
        self.worker = worker
        self.tokens = tokens
        self.until_s = until_s


class Seats:
    """Reservations by agent, each at one worker and until a time; sums by worker are kept. Taking
    and dropping one is O(log n).
    """

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._at: dict[WorkerId, dict[str, Agent]] = {}
        self._tokens: dict[WorkerId, int] = {}
        self._ends: list[tuple[float, str]] = []
        self.total_tokens = 0

    def __len__(self) -> int:
        return len(self._seats)

    def take(self, agent: Agent, until_s: float) -> None:
        """Reserve an agent's tokens at its worker, instead of what it had."""
        self.drop(agent)
        worker = agent.worker
        if worker is None:
            return
        self._seats[agent.key] = Seat(worker, agent.tokens, until_s)
        self._at.setdefault(worker, {})[agent.key] = agent
        self._tokens[worker] = self._tokens.get(worker, 0) + agent.tokens
        self.total_tokens += agent.tokens
        if until_s < inf:
            heappush(self._ends, (until_s, agent.key))

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

    def has(self, agent: Agent, worker: WorkerId | None) -> bool:
        """Return whether an agent has one at a worker."""
        seat = self._seats.get(agent.key)
        return seat is not None and seat.worker == worker

    def find(self, key: str) -> Seat | None:
        """Return an agent's reservation, None where it has none."""
        return self._seats.get(key)

    def tokens_at(self, worker: WorkerId) -> int:
        """Return the tokens reserved at a worker."""
        return self._tokens.get(worker, 0)

    def senior_tokens(self, worker: WorkerId, agent: Agent) -> int:
        """Return the tokens reserved at a worker by agents of older programs. O(agents there)."""
        rank = agent.began_s, agent.key
        return sum(
            self._seats[key].tokens
            for key, one in self._at.get(worker, {}).items()
            if (one.began_s, one.key) < rank
        )

    def _drop(self, key: str) -> None:
        seat = self._seats.pop(key, None)
        if seat is None:
            return
        at = self._at[seat.worker]
        del at[key]
        self._tokens[seat.worker] -= seat.tokens
        self.total_tokens -= seat.tokens
        if not at:
            del self._at[seat.worker], self._tokens[seat.worker]
