"""What is known of agents: their turns, their contexts, where room is reserved for these.

No rule stands here: who waits says `governor`, from what is noted here.
"""

from collections import Counter
from collections.abc import Callable, Collection
from copy import copy
from math import inf
from typing import Final, Protocol

from kvmesh.bounds import MAX_TOKENS
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.ends import TurnsLeft
from kvmesh.core.programs.pauses import Pause, PauseModel
from kvmesh.core.programs.pricing import Pace, kept_s
from kvmesh.core.programs.seats import Seat, Seats
from kvmesh.core.programs.swaps import Swaps
from kvmesh.core.programs.table import (
    MAX_SERVED,
    Agent,
    AgentRecord,
    ProgramTable,
    check_record,
    order_of,
)
from kvmesh.core.programs.turn import Client, Stop, Turn, TurnEnd

CLAIM_S: Final = 1.0
"""So long room is left for a turn that was let go, here or by another replica, to be placed."""

MOST_KEPT_S: Final = 3600.0
"""No pause is so long that a context stays reserved for more, whatever a sibling tells."""

IDLE_CHECK_S: Final = 1.0
"""So long nobody looks for agents that are to be forgotten, once there was none."""

MOST_UNREAD: Final = 64
"""Pauses that wait to be learned from, unless somebody asks: learning from many at once takes a
third of the time.
"""

MEASURE_S: Final = 1.0
MEASURE_SHARE: Final = 0.2
"""What requests of no program hold is looked at so often, and each look counts for so much."""

LEAST_ROOM: Final = 0.25
"""So much of a cache is left to programs, however many requests of none there are."""

SPARED: Final = 0.05
"""So much of a context may be computed again without that any of it was evicted."""

LOSS_WEIGHT: Final = 1.0 / 32
"""What one turn counts for in the share of their contexts that turns find evicted."""

EVICTING: Final = 0.5
"""Turns of others write at least so much of a cache between two of an agent whose context they
evict: a prompt that is computed again after less does not go on from the one before.
"""


LITTLE: Final = 0.3
COUNTED_S: Final = 1.0
"""Contexts at workers are equally many where they differ by so much of one; all are counted anew so
often.
"""


class Fleet(Protocol):
    """What is asked of routing."""

    def workers(self, now: float) -> Collection[WorkerId]:
        """Return the workers that may get requests."""
        ...

    def capacity_tokens(self, worker: WorkerId) -> int:
        """Return how many tokens its cache holds, 0 unknown: such a worker is not governed."""
        ...

    def contexts(self, worker: WorkerId) -> int:
        """Return how many contexts it keeps, whatever their length; 0: any number."""
        ...

    def active_tokens(self, worker: WorkerId) -> int:
        """Return how many tokens of its cache requests under way hold, of programs or not."""
        ...

    def ms_per_token(self, worker: WorkerId) -> float:
        """Return how long it is believed to compute an uncached prompt token, seen or not."""
        ...

    def seen_ms_per_token(self, worker: WorkerId, tokens: int) -> float:
        """Return how long it was seen to compute a prompt of so many tokens anew, a token, with
        what its steps take whatever their size; 0 before it computed any.
        """
        ...


class Bookkeeper:
    """Agents by key, bounded by `table`. Reserved contexts fill an engine's cache as far as
    requests of no program leave it; an agent unused for `ttl_s` is forgotten.

    Tell it of every placement (`chosen`) and end of a turn (`ended`). `updates` are agents that
    siblings should hear of, where it is `shared` with some; whoever tells them empties it, and sets
    `on_news`, which is called at each.
    """

    def __init__(self, fleet: Fleet, table: ProgramTable, ttl_s: float) -> None:
        self.table = table
        self.shared = True
        self.updates: dict[str, Agent] = {}
        self.on_news: Callable[[], None] | None = None
        self.ends = TurnsLeft()
        self.lost_tokens = 0
        self.lost_share = 0.0
        self._written: dict[WorkerId, int] = {}
        self._homes: Counter[WorkerId | None] = Counter()
        self._counted_s = -inf
        self._pace = Pace()
        self._pauses = PauseModel()
        self._unread: list[tuple[Client, Stop, str, int, float, float, float]] = []
        self._fleet = fleet
        self._ttl_s = ttl_s
        self._idle_s = -inf
        self._seats = Seats(self._limit, fleet.contexts)
        self._elsewhere: dict[str, int] = {}
        self._elsewhere_tokens = 0
        self._swaps = Swaps(self._prefill_ms)
        self._others: dict[WorkerId, float] = {}
        self._measured_s = -inf
        self._changed = True

    def chosen(self, turn: Turn, worker: WorkerId, now: float) -> None:
        """Note that a turn was booked at `worker`, held before or not."""
        agent = self._note(turn, now)
        if agent is None:
            return
        agent.running += 1
        agent.turns += 1
        self._homes[agent.worker] -= agent.tokens
        agent.tokens = max(agent.tokens, turn.prompt_tokens)
        agent.worker = worker
        self._homes[worker] += agent.tokens
        agent.phase, agent.since_s = "running", now
        agent.seated = self._seats.take(agent, inf)
        self.measure_others(now)  # not before: what this turn holds is booked already
        self._mark_changed(agent)

    def ended(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note that a turn that was `chosen` is over."""
        agent = self.table.agents.get(turn.agent)
        if agent is None:
            return
        if agent.running:
            agent.running -= 1
        if end.served:
            self._note_served(agent, turn, end, now)
        agent.failed = not end.served
        if agent.running:
            agent.seated = self._seats.take(agent, inf)
        else:
            agent.paced = not end.served
            agent.phase, agent.since_s = "ended" if turn.final else "paused", now
            agent.seated = self._keep(agent)
        self._mark_changed(agent)

    def _note_served(self, agent: Agent, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note what an engine did for a turn, and what of the context it had lost.

        A prompt that goes on from the agent's last one, at the same worker, and found less of it
        cached than that was long, lost the rest to others in between: thrash.
        """
        prompt, output, worker = turn.prompt_tokens, end.output_tokens, end.worker
        if agent.prompt_worker == worker == agent.worker and agent.phase != "ended":
            lost = agent.prompt_tokens - (prompt - end.computed_tokens)
            if prompt >= agent.prompt_tokens:
                lost = lost if lost > SPARED * agent.prompt_tokens else 0
                self.lost_tokens += lost
                if lost or self.lost_share:
                    self._note_lost(agent, lost)
        agent.prompt_worker, agent.prompt_tokens = worker, prompt
        tokens, served = prompt + output, agent.served_tokens + end.computed_tokens + output
        written = self._written.get(worker, 0) + end.computed_tokens + output
        self._written[worker] = agent.written_tokens = written
        agent.tokens = min(MAX_TOKENS, tokens)
        agent.served_tokens = min(MAX_SERVED, served)
        seen_ms = self._fleet.seen_ms_per_token(worker, tokens)
        self._pace.answered(worker, seen_ms, output, now - agent.since_s)
        agent.keep_s = kept_s(agent.tokens, self._prefill_ms(worker))
        agent.stop, agent.tool = end.stop, end.tool
        agent.answer_tokens = output

    def _note_lost(self, agent: Agent, lost: int) -> None:
        """Note how much of its context a turn found evicted where its agent's last one was."""
        worker = agent.worker
        assert worker is not None, "it has just served a turn"
        written = self._written.get(worker, 0) - agent.written_tokens
        if lost and written < max(1.0, EVICTING * self._fleet.capacity_tokens(worker)):
            return
        share = min(1.0, lost / max(1, agent.prompt_tokens))
        self.lost_share += (share - self.lost_share) * LOSS_WEIGHT

    def emptiest(
        self, agent: Agent, now: float, among: Collection[WorkerId] | None
    ) -> frozenset[WorkerId] | None:
        """Return at which workers others' contexts are the least share of the cache, all that
        differ little; None where its size is not known. O(workers), O(agents) once a second.
        """
        if now - self._counted_s > COUNTED_S:
            self._counted_s, self._homes = now, Counter()
            for one in self.table.agents.values():
                self._homes[one.worker] += one.tokens * (one.phase != "ended")
        shares, most = dict[WorkerId, float](), inf
        for worker in self._fleet.workers(now) if among is None else among:
            if not (holds := self._limit(worker)):
                return None
            others = self._homes[worker] - agent.tokens * (agent.worker == worker)
            shares[worker] = others / holds
            most = min(most, (others + LITTLE * agent.tokens) / holds)
        return frozenset(worker for worker, share in shares.items() if share <= most)

    def removed(self, worker: WorkerId) -> None:
        """Note that a worker left, and the caches there with it."""
        for agent in self._seats.leave(worker):
            agent.worker = None
            self._publish(agent)
        self._pace.forget(worker)
        self._written.pop(worker, None)
        self._homes.pop(worker, None)
        self._swaps.forget(worker)
        self._changed = True

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
        # A wait that ended late some turns ago says nothing of the worker where it is now.
        if agent.worker is not None and agent.since_s - agent.late_s <= CLAIM_S:
            self._swaps.note(agent.worker, agent.late_s)
        self._drop_elsewhere(key)
        if agent.phase == "running" or agent.running:
            self._seats.take(agent, inf)
        elif agent.phase == "paused" and agent.worker is not None:
            self._keep(agent)
        else:
            self._seats.drop(agent)
            if agent.phase == "waiting":
                self._elsewhere[key] = agent.tokens
                self._elsewhere_tokens += agent.tokens
        self._changed = True
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
        self._learn()
        return self._pauses.expect(agent.client, agent.stop, agent.tool, now - agent.since_s)

    def turns_left(self, agent: Agent) -> float:
        """Return how many turns an agent is expected to take still, by how many it has taken."""
        return self.ends.expect(agent.client, agent.turns, final=agent.phase == "ended")

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

    def share(self, agent: Agent) -> None:
        """Have the siblings hear of an agent."""
        self.updates[agent.key] = agent
        if self.on_news is not None:
            self.on_news()

    def _note(self, turn: Turn, now: float) -> Agent | None:
        """Return the agent whose turn it is, and learn how long it paused."""
        table = self.table
        if now >= self._idle_s and not table.forget_before(now - self._ttl_s, self._forget):
            self._idle_s = now + IDLE_CHECK_S
        agent, gone = table.note(turn, now)
        if gone is not None:
            self._forget(gone)
        if agent is not None and not agent.paced:
            agent.paced = True
            tokens, token_s = agent.answer_tokens, self._pace.token_s
            pause = agent.client, agent.stop, agent.tool, tokens, token_s, agent.since_s, now
            self._unread.append(pause)
            if len(self._unread) >= MOST_UNREAD:
                self._learn()
        return agent

    def _learn(self) -> None:
        """Learn from the pauses that have ended."""
        for client, stop, tool, tokens, token_s, since_s, now in self._unread:
            self._pace.returned(tokens, now - since_s, token_s)
            self._pauses.learn(client, stop, tool, now - since_s, now)
        self._unread.clear()

    @property
    def pace(self) -> Pace:
        """Return what was learned of how soon turns follow each other."""
        self._learn()
        return self._pace

    def _limit(self, worker: WorkerId) -> int:
        """Return how many tokens may be reserved at a worker: what requests of no program hold
        there is not free, and what they leave behind evicts contexts of agents that pause.
        """
        holds = self._fleet.capacity_tokens(worker)
        return max(int(holds - self._others.get(worker, 0.0)), int(holds * LEAST_ROOM))

    def measure_others(self, now: float) -> None:
        """Look, once a second, what requests of no program hold of each worker's cache."""
        if now - self._measured_s < MEASURE_S:
            return
        self._measured_s = now
        known, self._others = self._others, {}
        for worker in self._fleet.workers(now):
            others = max(0, self._fleet.active_tokens(worker) - self._seats.running_at(worker))
            before = known.get(worker, 0.0)
            self._others[worker] = before + (others - before) * MEASURE_SHARE

    def _prefill_ms(self, worker: WorkerId) -> float:
        return self._pace.prefill_ms(worker, self._fleet.ms_per_token(worker))

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
        keep_s = min(keep_s, MOST_KEPT_S)
        return self._seats.take(agent, agent.since_s + keep_s)

    def _forget(self, agent: Agent) -> None:
        self.ends.learn(agent.client, agent.turns)
        self._seats.drop(agent)
        self._drop_elsewhere(agent.key)
        self.updates.pop(agent.key, None)

    def _drop_elsewhere(self, key: str) -> None:
        """No sibling holds a turn of an agent any more."""
        self._elsewhere_tokens -= self._elsewhere.pop(key, 0)

    def _publish(self, agent: Agent) -> None:
        seat = self._seats.find(agent.key)
        agent.seated = seat is not None and seat.worker == agent.worker
        self._mark_changed(agent)

    def _mark_changed(self, agent: Agent) -> None:
        """Have the rule look again, and the siblings hear of an agent that changed."""
        agent.revision += 1
        if self._elsewhere:
            self._drop_elsewhere(agent.key)
        if self.shared:
            self.share(agent)
        self._changed = True
