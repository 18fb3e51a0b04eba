"""Which programs may take turns now: as many as keep their caches, the others wait at the router.

An engine whose live contexts exceed its cache evicts each before its next turn comes, and computes
it again. Here as many programs take turns as fit. A context is reserved while a turn is taken, and
behind it for as long as the room is worth less than computing it again (`pricing`). A turn that
finds no room waits, goes to any engine with room, the oldest program first, and at the latest when
its wait reaches the bound: it then comes before all others for as long as it waited at most.
Where computing all anew takes little of the engines' time nothing is held.

The rule is a function of the table, so that replicas with the same table decide alike; each holds
its own requests.
"""

from collections.abc import Callable, Collection
from copy import copy
from math import inf
from typing import Final, Protocol

import msgspec

from kvmesh.bounds import MAX_TOKENS
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.ends import TurnsLeft
from kvmesh.core.programs.pauses import Pause, PauseModel
from kvmesh.core.programs.pricing import LEAST_TURNOVER, Pace, kept_s
from kvmesh.core.programs.seats import Rank, Seat, Seats
from kvmesh.core.programs.table import (
    MAX_SERVED,
    Agent,
    AgentRecord,
    ProgramTable,
    check_record,
    order_of,
)
from kvmesh.core.programs.turn import Grant, Turn, TurnEnd

ANYWHERE: Final = Grant()

CLAIM_S: Final = 1.0
"""So long room is left for a turn that was let go, here or by another replica, to be placed."""

LAPSE_S: Final = 5.0
"""A turn that another replica holds for so long beyond the bound is held no more."""

LOOKED_AT: Final = 64
"""Turns looked at in one `release` that find no room, before it gives up: each is O(workers)."""

MOST_KEPT_S: Final = 3600.0
"""No pause is so long that a context stays reserved for more, whatever a sibling tells."""


class GovernorOptions(msgspec.Struct, frozen=True):
    """How programs take turns. No turn is held for longer than `max_wait_s`.

    Reserved contexts fill an engine's cache up to `fill` of it. What needs less than `small_share`
    of a cache is never held. An agent unused for `ttl_s` is forgotten. Beyond `max_waiting` held
    turns, `max_waiting_per_tenant` of one tenant, others are not held.
    """

    turns: bool = True
    max_wait_s: float = 120.0
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
    among: Collection[WorkerId] | None


class Governor:
    """Grants turns, or holds them: `waiting`, by request id.

    Tell it of every placement (`chosen`) and end of a turn (`ended`), whether it was held or not.
    `updates` are agents that siblings should hear of, where it is `shared` with some; whoever tells
    them empties it, and sets `on_news`, which is called at each.
    """

    def __init__(self, options: GovernorOptions, fleet: Fleet) -> None:
        self.options = options
        self.table = ProgramTable(options.max_agents, options.max_agents_per_tenant)
        self.shared = True
        self.waiting: dict[str, Turn] = {}
        self.updates: dict[str, AgentRecord] = {}
        self.on_news: Callable[[], None] | None = None
        self.pace = Pace()
        self.pauses = PauseModel()
        self.ends = TurnsLeft()
        self._fleet = fleet
        self._seats = Seats(self._limit)
        self._held: dict[str, _Held] = {}
        self._of_tenant: dict[str, int] = {}
        self._elsewhere: dict[str, None] = {}
        self._counts = {"held": 0, "released": 0, "late": 0, "lost_tokens": 0}
        self._waited_s = 0.0
        self._stale = True
        self._due_s: float | None = None
        self._sized: tuple[object, float, int, int] = (None, -inf, 0, 0)

    def ask(
        self, turn: Turn, now: float, among: Collection[WorkerId] | None = None
    ) -> Grant | None:
        """Return where the turn may be taken; None: it waits, `release` will name it.

        Only those `among` may take it, None: every worker.
        """
        agent = self._note(turn, now)
        if agent is None or not self.options.turns:
            return ANYWHERE
        agent.tokens = max(agent.tokens, turn.prompt_tokens + turn.expected_output_tokens)
        grant = ANYWHERE if agent.failed else self._find_place(agent, now, among)
        agent.failed = False
        if grant is not None or not self._may_wait(turn):
            return grant or ANYWHERE
        agent.enter("waiting", now)
        self._publish(agent, now)
        self.waiting[turn.request_id] = turn
        self._held[turn.request_id] = _Held(turn, now, among)
        self._of_tenant[turn.tenant] = self._of_tenant.get(turn.tenant, 0) + 1
        self._counts["held"] += 1
        self._due_s = None
        return None

    def passes(self, key: str, tokens: int, now: float) -> bool:
        """Return whether an agent with a context of so many tokens may take a turn wherever routing
        sends it, as `ask` would grant; nothing is noted. False: it has to be asked. O(1) at ease.
        """
        if not self.options.turns:
            return True
        if self._held:
            return False
        agent, seats = self.table.agents.get(key), self._seats
        if agent is not None:
            tokens = max(tokens, agent.tokens)
        if self._is_easy(tokens, now):
            return True
        seats.expire(now)
        own = seats.find(key)
        for worker in self._fleet.workers(now):
            if self._is_free(worker, tokens):
                return True
            reserved = seats.tokens_at(worker)
            if own is not None and own.worker == worker:
                reserved -= own.tokens
            if reserved + tokens > self._limit(worker):
                return False
        return True

    def check(self, turn: Turn, now: float) -> Grant | None:
        """Return what `ask` would return, without a change of state."""
        if not self.options.turns or not self._may_wait(turn):
            return ANYWHERE
        agent = self.table.find(turn.agent)
        if agent is None:
            agent = Agent(turn.agent, turn.program, turn.tenant, now)
        known = agent.tokens
        agent.tokens = max(known, turn.prompt_tokens + turn.expected_output_tokens)
        grant = self._find_place(agent, now)
        agent.tokens = known
        return grant

    def chosen(self, turn: Turn, worker: WorkerId, now: float) -> None:
        """Note that a turn was booked at `worker`, held before or not."""
        agent = self._note(turn, now)
        if agent is None:
            return
        agent.running += 1
        agent.turns += 1
        agent.tokens = max(agent.tokens, turn.prompt_tokens)
        agent.worker = worker
        agent.phase, agent.since_s = "running", now
        agent.seated = self._seats.take(agent, inf)
        self._mark_changed(agent, now)

    def ended(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note that a turn that was `chosen` is over."""
        agent = self.table.agents.get(turn.agent)
        if agent is None:
            return
        agent.running = max(0, agent.running - 1)
        if end.served:
            per_token_ms = self._fleet.ms_per_token(end.worker)
            took_s = now - agent.since_s
            self.pace.answered(end.worker, per_token_ms, end.output_tokens, took_s)
            agent.tokens = min(MAX_TOKENS, turn.prompt_tokens + end.output_tokens)
            prefill_ms = self.pace.prefill_ms(end.worker, per_token_ms)
            agent.keep_s = kept_s(agent.tokens, prefill_ms)
            served = agent.served_tokens + end.computed_tokens + end.output_tokens
            agent.served_tokens = min(MAX_SERVED, served)
            agent.stop, agent.tool = end.stop, end.tool
            agent.answer_tokens = end.output_tokens
        agent.failed = not end.served
        if agent.running:
            agent.seated = self._seats.take(agent, inf)
        else:
            agent.paced = not end.served
            agent.phase, agent.since_s = "ended" if turn.final else "paused", now
            agent.seated = self._keep(agent)
        self._mark_changed(agent, now)

    def cancel(self, request_id: str) -> bool:
        """Forget a held turn whose client left; False when it is not held here."""
        held = self._let_go(request_id)
        if held is None:
            return False
        agent = self.table.find(held.turn.agent)
        if agent is not None and agent.phase == "waiting":
            agent.enter("paused", held.since_s)
            self._publish(agent, held.since_s)
        return True

    def release(self, now: float) -> list[tuple[str, Grant]]:
        """Return the held turns whose time has come: those at the bound, then those of the tenant
        with the least reserved, by priority, the oldest programs first.
        """
        if not self._held:
            return []
        self._stale = False
        released: list[tuple[str, Grant]] = []
        vain = 0
        # Agents of one moment are told apart by their keys, so that all replicas agree.
        queue = sorted(self._queue(now), key=lambda one: (one[0], one[2].key, one[1]))
        for _, request_id, agent in queue:
            held = self._held.get(request_id)
            if held is None:
                self._claim(agent, now)
                continue
            late = now >= self._bound_s(held)
            if vain >= LOOKED_AT and not late:
                continue
            if late:
                agent.late_s = now
            grant = self._find_place(agent, now, held.among)
            if grant is None and not late:
                vain += 1
                continue
            if late:
                self._counts["late"] += 1
            grant = grant or ANYWHERE
            self._let_go(request_id)
            self._counts["released"] += 1
            self._waited_s += now - held.since_s
            released.append((request_id, grant))
            if grant.workers is not None:
                self._reserve(agent, grant.workers, now)
        return released

    def next_s(self, now: float) -> float:
        """Return when `release` must be called at the latest, inf: when something happens."""
        if not self._held:
            return inf
        if self._stale:
            return now
        if self._due_s is None:
            self._due_s = min(map(self._bound_s, self._held.values()))
        return min(self._due_s, self._seats.next_s())

    def change(self, options: GovernorOptions) -> None:
        """Go by other options from now on; what is held goes by the new bound."""
        self.options = options
        self._due_s = None
        self._stale = True

    def removed(self, worker: WorkerId, now: float) -> None:
        """Note that a worker left, and the caches there with it."""
        for agent in self._seats.leave(worker):
            agent.worker = None
            self._publish(agent, now)
        self.pace.forget(worker)
        self._stale = True

    def lost(self, worker: WorkerId, agent_key: str, tokens: int, now: float) -> None:
        """Note that an engine evicted so many tokens of an agent's context: thrash."""
        del now
        agent = self.table.find(agent_key)
        if agent is not None and agent.worker == worker and agent.phase != "ended":
            self._counts["lost_tokens"] += max(0, tokens)

    def receive(self, key: str, record: AgentRecord, now: float) -> str:
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
        elif order_of(record) <= order_of(agent):
            return ""
        agent.client, agent.priority = record.client, record.priority
        agent.phase, agent.worker = record.phase, WorkerId(record.worker) or None
        agent.tokens, agent.turns = record.tokens, record.turns
        agent.served_tokens = record.served_tokens
        agent.stop, agent.tool = record.stop, record.tool
        agent.revision = record.revision
        agent.began_s = min(agent.began_s, now - record.age_s)
        agent.since_s = now - record.since_s
        agent.keep_s = record.keep_s
        agent.late_s = now - record.late_s if record.late_s >= 0.0 else -inf
        self._elsewhere.pop(key, None)
        if agent.phase == "running" or agent.running:
            self._seats.take(agent, inf)
        elif agent.phase == "paused" and agent.worker is not None:
            self._keep(agent)
        else:
            self._seats.drop(agent)
            if agent.phase == "waiting":
                self._elsewhere[key] = None
        self._stale = True
        return ""

    def seat_of(self, key: str, now: float) -> Seat | None:
        """Return an agent's reservation as it is now, None where it has none."""
        self._seats.expire(now)
        seat = self._seats.find(key)
        return None if seat is None else copy(seat)

    def expect(self, agent: Agent, now: float) -> Pause | None:
        """Return when an agent's next turn will come, None where it does not pause."""
        if agent.phase != "paused":
            return None
        return self.pauses.expect(agent.client, agent.stop, agent.tool, now - agent.since_s)

    def turns_left(self, agent: Agent) -> float:
        """Return how many turns an agent is expected to take still, by how many it has taken."""
        return self.ends.expect(agent.client, agent.turns, final=agent.phase == "ended")

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

    def _note(self, turn: Turn, now: float) -> Agent | None:
        """Return the agent whose turn it is, and learn how long it paused."""
        self.table.forget_before(now - self.options.ttl_s, self._forget)
        agent, gone = self.table.note(turn, now)
        if gone is not None:
            self._forget(gone)
        if agent is not None and not agent.paced:
            agent.paced = True
            pause_s = now - agent.since_s
            self.pace.returned(agent.answer_tokens, pause_s)
            self.pauses.learn(agent.client, agent.stop, agent.tool, pause_s, now)
        return agent

    def _find_place(
        self, agent: Agent, now: float, among: Collection[WorkerId] | None = None
    ) -> Grant | None:
        """Return where an agent may take its turn by the rule, None: nowhere."""
        if not self._held and self._is_easy(agent.tokens, now):
            return ANYWHERE
        self._seats.expire(now)
        seats, rank = self._seats, self._ranks(agent, now)
        room: list[WorkerId] = []
        full = False
        for worker in self._fleet.workers(now) if among is None else among:
            if self._is_free(worker, agent.tokens):
                return ANYWHERE
            if seats.has_room(agent, worker, self._limit(worker), rank):
                room.append(worker)
                full = full or seats.tokens_at(worker) + agent.tokens > self._limit(worker)
            else:
                full = True
        if not full and not self._held:
            return ANYWHERE
        if agent.worker is not None and agent.worker in room:
            return Grant(frozenset((agent.worker,)))
        return Grant(frozenset(room)) if room else None

    def _is_easy(self, tokens: int, now: float) -> bool:
        """Return whether so many tokens fit every cache, at a glance: none is half full, or how
        large they are is known of none.
        """
        workers, sized_s, least, most = self._sized
        found = self._fleet.workers(now)
        if found is not workers or now - sized_s > 1.0:
            limits = [*map(self._limit, found)]
            least, most = min(limits, default=0), max(limits, default=0)
            self._sized = found, now, least, most
        return not most or (2 * tokens <= least and not self._seats.crowded)

    def _limit(self, worker: WorkerId) -> int:
        """Return how many tokens may be reserved at a worker."""
        return int(self._fleet.capacity_tokens(worker) * self.options.fill)

    def _is_free(self, worker: WorkerId, tokens: int) -> bool:
        """Return whether nothing is held for a worker's sake: unknown cache, small, cheap."""
        limit = self._limit(worker)
        if not limit or tokens <= self.options.small_share * limit:
            return True
        return self.pace.turnover(limit, self._prefill_ms(worker)) < LEAST_TURNOVER

    def _prefill_ms(self, worker: WorkerId) -> float:
        return self.pace.prefill_ms(worker, self._fleet.ms_per_token(worker))

    def _ranks(self, asking: Agent, now: float) -> Callable[[Agent], Rank]:
        """Return the order among agents: those let go late, then by their tenants' shares, then
        priority, then age of the program. `asking` counts with what it asks for.
        """
        tenants, share = self._seats.tenants, inf
        others = len(tenants) + (asking.tenant not in tenants)
        if others > 1:
            share = sum(map(self._limit, self._fleet.workers(now))) / others
        favour_s = self.options.max_wait_s

        def rank(agent: Agent) -> Rank:
            reserved = tenants.get(agent.tenant, 0)
            if agent is asking:
                seat = self._seats.find(agent.key)
                reserved += agent.tokens - (0 if seat is None else seat.tokens)
            late = now - agent.late_s <= favour_s
            standing = (not late, reserved > share, -agent.priority)
            return standing, agent.began_s, agent.key

        return rank

    def _queue(self, now: float) -> list[tuple[tuple[float, ...], str, Agent]]:
        """Return who waits, here and at siblings, with its place in the order."""
        tenants = self._seats.tenants
        queue: list[tuple[tuple[float, ...], str, Agent]] = []
        for request_id, held in list(self._held.items()):
            turn = held.turn
            agent = self.table.find(turn.agent)
            if agent is None:  # its place in the table went to another
                agent = Agent(turn.agent, turn.program, turn.tenant, held.since_s)
                agent.tokens = turn.prompt_tokens
            late = now >= self._bound_s(held)
            queue.append((self._place_of(agent, tenants, late=late), request_id, agent))
        for key in list(self._elsewhere):
            agent = self.table.find(key)
            lapsed = agent is None or now - agent.since_s > self.options.max_wait_s + LAPSE_S
            if agent is None or lapsed or agent.phase != "waiting":
                del self._elsewhere[key]
            else:
                queue.append((self._place_of(agent, tenants, late=False), "", agent))
        return queue

    def _place_of(self, agent: Agent, tenants: dict[str, int], *, late: bool) -> tuple[float, ...]:
        return not late, tenants.get(agent.tenant, 0), -agent.priority, agent.began_s

    def _claim(self, agent: Agent, now: float) -> None:
        """Leave room for a turn that a sibling holds, which it lets go by the same rule."""
        if self._seats.find(agent.key) is None:
            grant = self._find_place(agent, now)
            if grant is not None and grant.workers is not None:
                self._reserve(agent, grant.workers, now)

    def _reserve(self, agent: Agent, workers: frozenset[WorkerId], now: float) -> None:
        """Take a seat at the emptiest of some workers for a moment, until routing has chosen."""
        agent.worker = min(workers, key=lambda one: (self._seats.tokens_at(one), one))
        self._seats.take(agent, now + CLAIM_S)

    def _keep(self, agent: Agent) -> bool:
        """Reserve what an agent that pauses will need, for as long as that is worth it: by who
        served its turn, whose speeds are learned, so that all replicas keep it equally long. False:
        nothing is reserved.
        """
        if agent.phase == "ended" or agent.worker is None:
            self._seats.drop(agent)
            return False
        keep_s = agent.keep_s
        if keep_s < 0.0:
            keep_s = kept_s(agent.tokens, self._prefill_ms(agent.worker))
        return self._seats.take(agent, agent.since_s + min(keep_s, MOST_KEPT_S))

    def _bound_s(self, held: _Held) -> float:
        """Return when a held turn goes whatever it evicts."""
        return held.since_s + min(self.options.max_wait_s, held.turn.patience_s)

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
        self._due_s = None
        tenant = held.turn.tenant
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        return held

    def share(self, key: str, record: AgentRecord) -> None:
        """Have the siblings hear of an agent."""
        self.updates[key] = record
        if self.on_news is not None:
            self.on_news()

    def _forget(self, agent: Agent) -> None:
        self.ends.learn(agent.client, agent.turns)
        self._seats.drop(agent)
        self._elsewhere.pop(agent.key, None)
        self.updates.pop(agent.key, None)

    def _publish(self, agent: Agent, now: float) -> None:
        seat = self._seats.find(agent.key)
        agent.seated = seat is not None and seat.worker == agent.worker
        self._mark_changed(agent, now)

    def _mark_changed(self, agent: Agent, now: float) -> None:
        """Have the siblings hear of an agent that changed."""
        agent.revision += 1
        if self._elsewhere:
            self._elsewhere.pop(agent.key, None)
        if self.shared:
            self.share(agent.key, agent.record(now))
        self._stale = True
