"""Which programs may take turns now: as many as keep their caches, the others wait at the router.

An engine whose live contexts exceed its cache evicts each before its next turn comes, and computes
it again. Here as many programs take turns as fit beside what requests of no program hold. A context
is reserved while a turn is taken, and behind it for as long as the room is worth less than
computing it again (`pricing`). A turn that finds no room waits, and goes to any engine with room,
the oldest program first. So that nobody waits without end, the turn that waits longest goes
whatever it evicts, but each engine is given such a turn only after `SWAP` times what computing its
context takes: swaps cost engines a fixed small share of their time. It then comes before all others
for as long. Where computing all anew takes little of the engines' time nothing is held; if turns
find their contexts evicted there, moving one to an idle engine costs more than its own prefill, and
is priced so.

The rule is a function of the table, so that replicas with the same table decide alike; each holds
its own requests.
"""

from collections.abc import Callable, Collection
from math import inf
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.bookkeeper import CLAIM_S, Bookkeeper, Fleet
from kvmesh.core.programs.held import GovernorOptions, HeldTurns
from kvmesh.core.programs.pricing import LEAST_TURNOVER
from kvmesh.core.programs.seats import Rank
from kvmesh.core.programs.table import Agent, ProgramTable
from kvmesh.core.programs.turn import Grant, Turn

ANYWHERE: Final = Grant()

SMALL_SHARE: Final = 0.01
"""What needs less of a cache is never held."""

LAPSE_S: Final = 5.0
"""A turn that another replica holds, and did not let go for so long when it should have, is held no
more.
"""

LOOKED_AT: Final = 64
"""Turns looked at in one `release` that find no room, before it gives up: each is O(workers)."""

LOSS_PRICE: Final = 16
MOST_PREFILL: Final = 32
"""A token that is computed anew counts so many times where turns find more than 1 / `LOSS_PRICE` of
their contexts evicted. What a moved context evicts is computed again, and evicts in its turn; what
it leaves behind is in the way until it is the oldest there; and if the next worker is no better, it
moves again. In the simulator (benchmarks/programs/weka.py) 32 reads more than 4, as much as agents
that never move, whose first tokens come 1.4 times as late at p90.
"""

SIZED_S: Final = 1.0
"""So long what was asked of the fleet's caches counts for whoever fits every one."""


class GovernorStatistics(msgspec.Struct, frozen=True):
    """Sizes now and counts since the start. `late`: let go without room. `lost_tokens`: of
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


class Governor(Bookkeeper):
    """Grants turns, or holds them: `waiting`, by request id.

    Told of every placement and end, whether a turn was held or not, it knows what is reserved.
    """

    def __init__(self, options: GovernorOptions, fleet: Fleet) -> None:
        table = ProgramTable(options.max_agents, options.max_agents_per_tenant)
        super().__init__(fleet, table, options.ttl_s)
        self.options = options
        self.waiting = HeldTurns(options)
        self._counts = {"held": 0, "released": 0, "late": 0}
        self._waited_s = 0.0
        self._swap_due_s = inf
        self._sized_s = -inf
        self._easy_tokens = 0.0

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
        if grant is not None or not self.waiting.may_hold(turn):
            return self._priced(grant or ANYWHERE, agent, now, among)
        agent.enter("waiting", now)
        self._publish(agent)
        workers = self._fleet.workers(now) if among is None else among
        before = self.waiting.tokens + self._elsewhere_tokens
        bound_s = self._swaps.bound_s(before, turn.prompt_tokens, workers)
        self.waiting.hold(turn, bound_s, among, now)
        self._counts["held"] += 1
        return None

    def passes(self, key: str, tokens: int, now: float) -> bool:
        """Return whether an agent with a context of so many tokens may take a turn wherever routing
        sends it, as `ask` would grant; nothing is noted. False: it has to be asked. O(1) at ease.
        """
        if not self.options.turns:
            return True
        if self.waiting or self.lost_share * LOSS_PRICE >= 1.0:
            return False
        agent, seats = self.table.agents.get(key), self._seats
        if agent is not None and agent.tokens > tokens:
            tokens = agent.tokens
        if self._is_easy(tokens, now):
            return True
        seats.expire(now)
        for worker in self._fleet.workers(now):
            if self._is_free(worker, tokens):
                return True
            if not seats.fits(key, worker, tokens, self._limit(worker)):
                return False
        return True

    def check(self, turn: Turn, now: float) -> Grant | None:
        """Return what `ask` would return, without a change of state."""
        if not self.options.turns:
            return ANYWHERE
        if not self.waiting.may_hold(turn):
            return self._priced(ANYWHERE, None, now)
        agent = self.table.find(turn.agent)
        if agent is None:
            agent = Agent(turn.agent, turn.program, turn.tenant, now, now)
        known = agent.tokens
        agent.tokens = max(known, turn.prompt_tokens + turn.expected_output_tokens)
        grant = self._find_place(agent, now)
        priced = None if grant is None else self._priced(grant, agent, now)
        agent.tokens = known
        return priced

    def cancel(self, request_id: str) -> bool:
        """Forget a held turn whose client left; False when it is not held here."""
        held = self.waiting.let_go(request_id)
        if held is None:
            return False
        agent = self.table.find(held.turn.agent)
        if agent is not None and agent.phase == "waiting":
            agent.enter("paused", held.since_s)
            self._publish(agent)
        return True

    def release(self, now: float) -> list[tuple[str, Grant]]:
        """Return the held turns whose time has come: those that go whatever they evict, then those
        of the tenant with the least reserved, by priority, the oldest programs first.
        """
        if not self.waiting:
            return []
        self._changed = False
        self.measure_others(now)
        self._seats.expire(now)  # a claim that ends now is made anew, before others look
        released: list[tuple[str, Grant]] = []
        vain = 0
        elsewhere = self._waiting_elsewhere()
        swapped, place = self._swap(elsewhere, now)
        for request_id, agent in self._queue(elsewhere, swapped, now):
            held = self.waiting.get(request_id)
            if held is None:
                self._claim(agent, now)
                continue
            late = request_id == swapped or now >= self.waiting.until_s(held)
            if vain >= LOOKED_AT and not late:
                continue
            if late:
                agent.late_s = now
            # A swap goes where it is noted: siblings know of it by where the turn is then.
            grant = place if request_id == swapped else self._find_place(agent, now, held.among)
            if grant is None and not late:
                vain += 1
                continue
            if late:
                self._counts["late"] += 1
            grant = grant or ANYWHERE
            self.waiting.let_go(request_id)
            self._counts["released"] += 1
            self._waited_s += now - held.since_s
            released.append((request_id, grant))
            if grant.workers is not None:
                self._reserve(agent, grant.workers, now)
        return released

    def next_s(self, now: float) -> float:
        """Return when `release` must be called at the latest, inf: when something happens."""
        if not self.waiting:
            return inf
        if self._changed:
            return now
        return min(self.waiting.due_s(), self._swap_due_s, self._seats.next_s())

    def most_s(self, request_id: str) -> float:
        """Return how long a held turn waits at most, all in all. Raises `KeyError` for another."""
        held = self.waiting[request_id]
        return self.waiting.until_s(held) - held.since_s

    def change(self, options: GovernorOptions) -> None:
        """Go by other options from now on; what is held goes by them, but waits no longer."""
        self.options = options
        self.waiting.change(options)
        self._ttl_s = options.ttl_s
        self._sized_s = -inf
        self._changed = True

    def statistics(self) -> GovernorStatistics:
        """Return sizes and counts."""
        return GovernorStatistics(
            agents=len(self.table),
            seated=len(self._seats),
            waiting=len(self.waiting),
            reserved_tokens=self._seats.total_tokens,
            waited_s=self._waited_s,
            lost_tokens=self.lost_tokens,
            **self._counts,
        )

    def _priced(
        self,
        grant: Grant,
        agent: Agent | None,
        now: float,
        among: Collection[WorkerId] | None = None,
    ) -> Grant:
        """Return a grant with what a token computed anew counts for now. What an agent lost as a
        whole is computed where others' contexts are the least, which that would evict.
        """
        if self.lost_share * LOSS_PRICE < 1.0:
            return grant
        workers = grant.workers
        if workers is None and agent is not None and self._is_gone(agent):
            workers = self.emptiest(agent, now, among)
        return Grant(workers, MOST_PREFILL)

    def _is_gone(self, agent: Agent) -> bool:
        """Return whether turns wrote a whole cache since an agent's last one there."""
        worker = agent.prompt_worker
        if worker is None or worker != agent.worker:
            return False
        written = self._written.get(worker, 0) - agent.written_tokens
        return 0 < self._fleet.capacity_tokens(worker) <= written

    def _find_place(
        self, agent: Agent, now: float, among: Collection[WorkerId] | None = None
    ) -> Grant | None:
        """Return where an agent may take its turn by the rule, None: nowhere."""
        if not self.waiting and self._is_easy(agent.tokens, now):
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
                full = full or not seats.fits("", worker, agent.tokens, self._limit(worker))
            else:
                full = True
        if not full and not self.waiting:
            return ANYWHERE
        if agent.worker is not None and agent.worker in room:
            return Grant(frozenset((agent.worker,)))
        return Grant(frozenset(room)) if room else None

    def _is_easy(self, tokens: int, now: float) -> bool:
        """Return whether so many tokens fit every cache, at a glance: none is half full, or how
        large they are is known of none.
        """
        if now - self._sized_s > SIZED_S:
            self._sized_s = now
            limits = [*map(self._limit, self._fleet.workers(now))]
            self._easy_tokens = min(limits, default=0) / 2 if any(limits) else inf
            self._seats.measure()
        return tokens <= self._easy_tokens and not self._seats.crowded

    def _is_free(self, worker: WorkerId, tokens: int) -> bool:
        """Return whether nothing is held for a worker's sake: unknown cache, small, cheap."""
        holds, contexts = self._fleet.capacity_tokens(worker), self._fleet.contexts(worker)
        if contexts:
            holds = min(holds, contexts * tokens)
        if not holds or tokens <= SMALL_SHARE * holds:
            return True
        return self.pace.turnover(holds, self._prefill_ms(worker)) < LEAST_TURNOVER

    def _ranks(self, asking: Agent, now: float) -> Callable[[Agent], Rank]:
        """Return the order among agents: those let go late, then by their tenants' shares, then
        priority, then age of the program. `asking` counts with what it asks for.
        """
        tenants, share = self._seats.tenants, inf
        others = len(tenants) + (asking.tenant not in tenants)
        if others > 1:
            share = sum(map(self._limit, self._fleet.workers(now))) / others

        def rank(agent: Agent) -> Rank:
            reserved = tenants.get(agent.tenant, 0)
            if agent is asking:
                seat = self._seats.find(agent.key)
                reserved += agent.tokens - (0 if seat is None else seat.tokens)
            late = now - agent.late_s <= self._swaps.span_s(agent.tokens, agent.worker)
            standing = (not late, reserved > share, -agent.priority)
            return standing, agent.began_s, agent.key

        return rank

    def _swap(self, elsewhere: list[Agent], now: float) -> tuple[str, Grant]:
        """Return which held turn goes now whatever it evicts, and where, "" for none: of all that
        wait, here and `elsewhere`, the one that waits longest, if it waits here.
        """
        self._swap_due_s = inf
        request_id, held = self.waiting.longest()
        turn, workers = held.turn, self._fleet.workers(now)
        agent = self.table.find(turn.agent)
        home = None if agent is None else agent.worker
        among = workers if held.among is None else held.among
        due_s, worker = self._swaps.due(turn.prompt_tokens, held.since_s, among, home)
        for other in elsewhere:
            if (other.since_s, other.key) >= (held.since_s, turn.agent):
                continue
            lapses_s, _ = self._swaps.due(other.tokens, other.since_s, workers, None)
            if now < lapses_s + LAPSE_S:
                due_s = max(due_s, lapses_s + LAPSE_S)
            else:
                self._drop_elsewhere(other.key)
        if worker is None or now < due_s:
            self._swap_due_s = due_s
            return "", ANYWHERE
        self._swaps.note(worker, now)
        return request_id, Grant(frozenset((worker,)))

    def _waiting_elsewhere(self) -> list[Agent]:
        """Return the agents whose turns siblings hold, as far as is known."""
        waiting: list[Agent] = []
        for key in list(self._elsewhere):
            agent = self.table.find(key)
            if agent is None or agent.phase != "waiting":
                self._drop_elsewhere(key)
            else:
                waiting.append(agent)
        return waiting

    def _queue(self, elsewhere: list[Agent], swapped: str, now: float) -> list[tuple[str, Agent]]:
        """Return who waits, here ("" for the id of a sibling's request) and `elsewhere`, in order:
        agents of one place by their keys, so that all replicas agree.
        """
        tenants = self._seats.tenants
        queue: list[tuple[tuple[float, ...], str, Agent]] = []
        for request_id, held in list(self.waiting.items()):
            turn = held.turn
            agent = self.table.find(turn.agent)
            if agent is None:  # its place in the table went to another
                since_s = held.since_s
                agent = Agent(turn.agent, turn.program, turn.tenant, since_s, since_s)
                agent.tokens = turn.prompt_tokens
            late = request_id == swapped or now >= self.waiting.until_s(held)
            queue.append((self._place_of(agent, tenants, late=late), request_id, agent))
        queue += (
            (self._place_of(agent, tenants, late=False), "", agent)
            for agent in elsewhere
            if agent.key in self._elsewhere  # else it has lapsed
        )
        queue.sort(key=lambda one: (one[0], one[2].key, one[1]))
        return [(request_id, agent) for _, request_id, agent in queue]

    def _place_of(self, agent: Agent, tenants: dict[str, int], *, late: bool) -> tuple[float, ...]:
        return not late, tenants.get(agent.tenant, 0), -agent.priority, agent.began_s

    def _claim(self, agent: Agent, now: float) -> None:
        """Leave room for a turn that a sibling holds, which it lets go by the same rule. Where the
        agent is says the sibling.
        """
        if self._seats.find(agent.key) is None:
            grant, known = self._find_place(agent, now), agent.worker
            if grant is not None and grant.workers is not None:
                self._reserve(agent, grant.workers, now)
                agent.worker = known

    def _reserve(self, agent: Agent, workers: frozenset[WorkerId], now: float) -> None:
        """Take a seat at the emptiest of some workers for a moment, until routing has chosen."""
        agent.worker = min(workers, key=lambda one: (self._seats.tokens_at(one), one))
        self._seats.take(agent, now + CLAIM_S)
