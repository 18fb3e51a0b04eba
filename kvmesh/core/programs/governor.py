"""Which programs may take turns now: as many as keep their caches, the others wait at the router.

An engine whose live contexts exceed its cache evicts each before its next turn comes, and computes
it again. Here the oldest programs whose contexts fit take turns; a younger one waits, goes to any
engine with room, and follows when an older one ends or pauses for long. The rule is a function of
the table alone, so that replicas with the same table decide alike; each holds its own requests.
"""

from collections.abc import Collection
from math import inf
from typing import Final, Protocol

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.seats import Seat, Seats
from kvmesh.core.programs.table import Agent, AgentRecord, ProgramTable, check_record
from kvmesh.core.programs.turn import Grant, Turn, TurnEnd

ANYWHERE: Final = Grant()

KEPT_S: Final = {"tool": 120.0, "end": 120.0, "length": 120.0, "": 120.0}
"""How long a pause may be until its reservation is given up, by why the turn ended."""


class GovernorOptions(msgspec.Struct, frozen=True):
    """How programs take turns. No turn is held for longer than `max_wait_s`.

    Contexts of seated agents fill an engine's cache up to `fill` of it. What needs less than
    `small_share` of a cache is never held. An agent unused for `ttl_s` is forgotten. Beyond
    `max_waiting` held turns, `max_waiting_per_tenant` of one tenant, others are not held.
    """

    turns: bool = True
    max_wait_s: float = 30.0
    fill: float = 1.0
    small_share: float = 0.01
    max_agents: int = 1 << 16
    max_agents_per_tenant: int = 1 << 14
    max_waiting: int = 4096
    max_waiting_per_tenant: int = 1024
    ttl_s: float = 7200.0


class Fleet(Protocol):
    """What the governor asks of routing."""

    def workers(self, now: float) -> Collection[WorkerId]:
        """Return the workers that may get requests."""
        ...

    def capacity_tokens(self, worker: WorkerId) -> int:
        """Return how many tokens its cache holds, 0 unknown: such a worker is not governed."""
        ...

    def ms_per_token(self, worker: WorkerId) -> float:
        """Return how long it computes an uncached prompt token."""
        ...


class GovernorStatistics(msgspec.Struct, frozen=True):
    """Sizes now and counts since the start. `late`: held until the bound. `lost_tokens`: of
    contexts of live agents that engines evicted. `waited_s`: by all turns released, together.
    """

    agents: int
    seated: int
    waiting: int
    held: int
    released: int
    late: int
    lost_tokens: int
    reserved_tokens: int
    waited_s: float = 0.0


class _Held(msgspec.Struct):
    turn: Turn
    since_s: float


class Governor:
    """Grants turns, or holds them: `waiting`, by request id.

    Tell it of every placement (`chosen`) and end of a turn (`ended`), whether it was held or not.
    `news` are agents that siblings should hear of; whoever tells them empties it.
    """

    def __init__(self, options: GovernorOptions, fleet: Fleet) -> None:
        self.options = options
        self.table = ProgramTable(options.max_agents, options.max_agents_per_tenant)
        self.waiting: dict[str, Turn] = {}
        self.news: dict[str, AgentRecord] = {}
        self._fleet = fleet
        self._seats = Seats()
        self._held: dict[str, _Held] = {}
        self._of_tenant: dict[str, int] = {}
        self._counts = {"held": 0, "released": 0, "late": 0, "lost_tokens": 0}
        self._waited_s = 0.0
        self._stale = True

    def ask(self, turn: Turn, now: float) -> Grant | None:
        """Return where the turn may be taken; None: it waits, `release` will name it."""
        agent, gone = self.table.note(turn, now)
        if gone is not None:
            self._forget(gone)
        if agent is None or not self.options.turns:
            return ANYWHERE
        agent.tokens = max(agent.tokens, turn.prompt_tokens + turn.expected_output_tokens)
        grant = self._seat(agent, now)
        if grant is not None or not self._may_wait(turn):
            return grant or ANYWHERE
        agent.enter("waiting", now)
        self._tell(agent, now)
        self.waiting[turn.request_id] = turn
        self._held[turn.request_id] = _Held(turn, now)
        self._of_tenant[turn.tenant] = self._of_tenant.get(turn.tenant, 0) + 1
        self._counts["held"] += 1
        return None

    def passes(self, key: str, tokens: int, now: float) -> bool:
        """Return whether an agent with a context of so many tokens may take a turn wherever routing
        sends it, as `ask` would grant; nothing is noted. False: it has to be asked. O(workers).
        """
        if not self.options.turns:
            return True
        if self._held:
            return False
        self._seats.expire(now)
        agent, seats, fleet = self.table.find(key), self._seats, self._fleet
        own = seats.find(key)
        if agent is not None:
            tokens = max(tokens, agent.tokens)
        for worker in fleet.workers(now):
            capacity = int(fleet.capacity_tokens(worker) * self.options.fill)
            if not capacity or tokens <= self.options.small_share * capacity:
                return True
            reserved = seats.tokens_at(worker)
            if own is not None and own.worker == worker:
                reserved -= own.tokens
            if reserved + tokens > capacity:
                return False
        return True

    def look(self, turn: Turn, now: float) -> Grant | None:
        """Return what `ask` would; nothing is noted, and nobody waits."""
        if not self.options.turns or not self._may_wait(turn):
            return ANYWHERE
        agent = self.table.find(turn.agent)
        if agent is None:
            agent = Agent(turn.agent, turn.program, turn.tenant, now)
        known = agent.tokens
        agent.tokens = max(known, turn.prompt_tokens + turn.expected_output_tokens)
        grant = self._seat(agent, now)
        agent.tokens = known
        return grant

    def chosen(self, turn: Turn, worker: WorkerId, now: float) -> None:
        """Note that a turn was booked at `worker`, held before or not."""
        agent, gone = self.table.note(turn, now)
        if gone is not None:
            self._forget(gone)
        if agent is None:
            return
        agent.running += 1
        agent.turns += 1
        agent.tokens = max(agent.tokens, turn.prompt_tokens)
        agent.worker = worker
        agent.enter("running", now)
        self._seats.take(agent, inf)
        self._tell(agent, now)

    def ended(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note that a turn that was `chosen` is over."""
        agent = self.table.find(turn.agent)
        if agent is None:
            return
        agent.running = max(0, agent.running - 1)
        if end.served:
            agent.tokens = turn.prompt_tokens + end.output_tokens
            agent.served_tokens += end.computed_tokens + end.output_tokens
            agent.stop, agent.tool = end.stop, end.tool
        self._stale = True
        if agent.running:
            self._seats.take(agent, inf)
            return
        agent.enter("ended" if turn.final else "paused", now)
        self._seats.take(agent, now if turn.final else now + KEPT_S[end.stop])
        self._tell(agent, now)

    def cancel(self, request_id: str) -> bool:
        """Forget a held turn whose client left; False when it is not held here."""
        held = self._let_go(request_id)
        if held is None:
            return False
        agent = self.table.find(held.turn.agent)
        if agent is not None and agent.phase == "waiting":
            agent.enter("paused", held.since_s)
            self._tell(agent, held.since_s)
        return True

    def release(self, now: float) -> list[tuple[str, Grant]]:
        """Return the held turns whose time has come, the oldest programs first."""
        if not self._held:
            return []
        self._stale = False
        released: list[tuple[str, Grant]] = []
        for request_id, held in sorted(self._held.items(), key=self._rank_of):
            agent = self.table.find(held.turn.agent)
            late = now >= self._bound_s(held)
            grant = ANYWHERE if agent is None else self._seat(agent, now)
            if grant is None and late:
                grant = ANYWHERE
                self._counts["late"] += 1
            if grant is None:
                continue
            self._let_go(request_id)
            self._counts["released"] += 1
            self._waited_s += now - held.since_s
            released.append((request_id, grant))
            if agent is not None and grant.workers is not None:
                agent.worker = min(grant.workers, key=self._seats.tokens_at)
                self._seats.take(agent, inf)
        return released

    def next_s(self, now: float) -> float:
        """Return when `release` must be called at the latest, inf: when something happens."""
        if not self._held:
            return inf
        if self._stale:
            return now
        bound_s = min(map(self._bound_s, self._held.values()))
        return min(bound_s, self._seats.next_s())

    def _bound_s(self, held: _Held) -> float:
        """Return when a held turn goes whatever it evicts."""
        return held.since_s + min(self.options.max_wait_s, held.turn.patience_s)

    def removed(self, worker: WorkerId, now: float) -> None:
        """Note that a worker left, and the caches there with it."""
        for agent in self._seats.leave(worker):
            agent.worker = None
            self._tell(agent, now)
        self._stale = True

    def lost(self, worker: WorkerId, agent_key: str, tokens: int, now: float) -> None:
        """Note that an engine evicted so many tokens of an agent's context: thrash."""
        del now
        agent = self.table.find(agent_key)
        if agent is not None and agent.worker == worker and agent.phase != "ended":
            self._counts["lost_tokens"] += max(0, tokens)

    def hear(self, key: str, record: AgentRecord, now: float) -> str:
        """Take a sibling's record; return what is wrong with it, "" for nothing."""
        wrong = check_record(key, record)
        if wrong:
            return wrong
        agent = self.table.find(key)
        if agent is None:
            agent, gone = self.table.enter(key, record.program, record.tenant, now)
            if gone is not None:
                self._forget(gone)
            if agent is None:
                return ""
        elif _order(record) <= (agent.revision, agent.phase, agent.worker or "", agent.tokens):
            return ""
        agent.client, agent.priority = record.client, record.priority
        agent.phase, agent.worker = record.phase, WorkerId(record.worker) or None
        agent.tokens, agent.turns = record.tokens, record.turns
        agent.served_tokens = record.served_tokens
        agent.stop, agent.tool = record.stop, record.tool
        agent.revision = record.revision
        agent.began_s = min(agent.began_s, now - record.age_s)
        agent.since_s = now - record.since_s
        if agent.phase == "running" or agent.running:
            self._seats.take(agent, inf)
        elif agent.phase == "paused" and agent.worker is not None:
            self._seats.take(agent, agent.since_s + KEPT_S[agent.stop])
        else:
            self._seats.drop(agent)
        self._stale = True
        return ""

    def seat_of(self, key: str, now: float) -> Seat | None:
        """Return an agent's reservation, None where it has none."""
        self._seats.expire(now)
        return self._seats.find(key)

    def held_since(self) -> dict[str, float]:
        """Return since when agents wait for their turn here, by key: of several turns the first."""
        since: dict[str, float] = {}
        for held in self._held.values():
            first_s = since.get(held.turn.agent, inf)
            since[held.turn.agent] = min(first_s, held.since_s)
        return since

    def workers(self, now: float) -> Collection[WorkerId]:
        """Return the workers that may get requests."""
        return self._fleet.workers(now)

    def capacity_tokens(self, worker: WorkerId) -> int:
        """Return how many tokens a worker's cache holds, 0 unknown."""
        return self._fleet.capacity_tokens(worker)

    def reserved_tokens(self, worker: WorkerId, now: float) -> int:
        """Return how many tokens of it are reserved for agents."""
        self._seats.expire(now)
        return self._seats.tokens_at(worker)

    def statistics(self) -> GovernorStatistics:
        """Return sizes and counts."""
        return GovernorStatistics(
            agents=len(self.table),
            seated=len(self._seats),
            waiting=len(self.waiting),
            reserved_tokens=self._seats.total_tokens,
            waited_s=self._waited_s,
            **self._counts,
        )

    def _seat(self, agent: Agent, now: float) -> Grant | None:
        """Return where an agent may take its turn by the rule, None: nowhere."""
        self._seats.expire(now)
        options, seats = self.options, self._seats
        room: list[WorkerId] = []
        full = False
        for worker in self._fleet.workers(now):
            capacity = int(self._fleet.capacity_tokens(worker) * options.fill)
            if not capacity or agent.tokens <= options.small_share * capacity:
                return ANYWHERE
            others = seats.tokens_at(worker) - (agent.tokens if seats.has(agent, worker) else 0)
            if others + agent.tokens <= capacity:
                room.append(worker)
                continue
            full = True
            if seats.has(agent, worker) or not others:
                senior = seats.senior_tokens(worker, agent)
                if senior + agent.tokens <= capacity or not senior:
                    room.append(worker)
        if not full and not self._held:
            return ANYWHERE
        if agent.worker is not None and agent.worker in room:
            return Grant(frozenset((agent.worker,)))
        return Grant(frozenset(room)) if room else None

    def _rank_of(self, item: tuple[str, _Held]) -> tuple[float, str]:
        agent = self.table.find(item[1].turn.agent)
        return (agent.began_s if agent is not None else -inf), item[0]

    def _may_wait(self, turn: Turn) -> bool:
        options = self.options
        return (
            min(options.max_wait_s, turn.patience_s) > 0.0
            and len(self._held) < options.max_waiting
            and self._of_tenant.get(turn.tenant, 0) < options.max_waiting_per_tenant
            and turn.request_id not in self._held
        )

    def _let_go(self, request_id: str) -> _Held | None:
        held = self._held.pop(request_id, None)
        if held is None:
            return None
        del self.waiting[request_id]
        tenant = held.turn.tenant
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        return held

    def _forget(self, agent: Agent) -> None:
        self._seats.drop(agent)
        self.news.pop(agent.key, None)

    def _tell(self, agent: Agent, now: float) -> None:
        agent.revision += 1
        agent.seated = self._seats.has(agent, agent.worker)
        self.news[agent.key] = agent.record(now)
        self._stale = True


def _order(record: AgentRecord) -> tuple[int, str, str, int]:
    return record.revision, record.phase, record.worker, record.tokens
