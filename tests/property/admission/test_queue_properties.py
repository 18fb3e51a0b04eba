"""The hold queue against a model that sorts what waits whenever it is asked."""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.core.admission.queue import (
    MAX_ASKED,
    AdmissionOptions,
    HoldQueue,
    QueuePolicy,
    WaitingRequest,
)

TENANTS = ("a", "b", "c")
QUANTUM = 100
MAX_WAIT_S = 5.0
MAX_QUEUED = 30
MAX_PER_TENANT = 20
policies = st.sampled_from(("fcfs", "wspt", "priority"))


class NaiveQueue:
    """Tenants take turns in a list of names; requests are in one list, in order of arrival."""

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.waiting: list[WaitingRequest] = []
        self.turns: list[str] = []
        self.deficits: dict[str, int] = {}

    def rank(self, held: WaitingRequest) -> float:
        if self.policy == "priority":
            return -held.priority
        if self.policy == "wspt":
            return held.tokens / (1 + max(0, held.priority)) + 200.0 * held.queued_s
        return 0.0

    def offer(self, held: WaitingRequest) -> bool:
        mine = [one for one in self.waiting if one.tenant == held.tenant]
        if len(self.waiting) >= MAX_QUEUED or len(mine) >= MAX_PER_TENANT:
            return False
        if not mine:
            self.turns.append(held.tenant)
            self.deficits[held.tenant] = 0
        self.waiting.append(held)
        return True

    def release(self, wanted: frozenset[str]) -> list[str]:
        asked: list[str] = []
        released: list[str] = []
        while len(asked) < min(len(self.waiting), MAX_ASKED):
            tenant = self.turns[0]
            left = [one for one in self.waiting if one.tenant == tenant]
            left = [one for one in left if one.request_id not in asked]
            if not left:
                self.turns.append(self.turns.pop(0))
                continue
            held = min(left, key=self.rank)
            if self.deficits[tenant] < held.tokens:
                self.deficits[tenant] += QUANTUM
            if self.deficits[tenant] < held.tokens:
                self.turns.append(self.turns.pop(0))
                continue
            if held.request_id not in wanted:
                asked.append(held.request_id)
                self.turns.append(self.turns.pop(0))
                continue
            self.deficits[tenant] -= held.tokens
            released.append(held.request_id)
            left.remove(held)
            self.remove([held.request_id])
            if left and self.deficits[tenant] < min(left, key=self.rank).tokens:
                self.turns.append(self.turns.pop(0))
        return released

    def remove(self, request_ids: list[str]) -> None:
        self.waiting = [one for one in self.waiting if one.request_id not in request_ids]
        present = {one.tenant for one in self.waiting}
        self.turns = [one for one in self.turns if one in present]


class QueueMachine(RuleBasedStateMachine):
    @initialize(policy=policies)
    def begin(self, policy: QueuePolicy) -> None:
        options = AdmissionOptions(
            policy=policy,
            max_queued=MAX_QUEUED,
            max_queued_per_tenant=MAX_PER_TENANT,
            max_wait_s=MAX_WAIT_S,
            quantum_tokens=QUANTUM,
        )
        self.queue, self.naive = HoldQueue(options), NaiveQueue(policy)
        self.now = 0.0
        self.serial = count()

    @rule(
        tenant=st.sampled_from(TENANTS),
        tokens=st.integers(1, 400),
        priority=st.integers(-1, 3),
        many=st.integers(1, 6),
    )
    def offer(self, tenant: str, tokens: int, priority: int, many: int) -> None:
        for _ in range(many):
            held = WaitingRequest(f"r{next(self.serial)}", tokens, tenant, priority, self.now)

            assert (self.queue.offer(held, self.now) is None) == self.naive.offer(held)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        known = [one.request_id for one in self.naive.waiting]
        wanted = data.draw(st.frozensets(st.sampled_from(known)) if known else st.just(frozenset()))

        released = self.queue.release(self.now, lambda held: held.request_id in wanted)

        assert [one.request_id for one in released] == self.naive.release(wanted)

    @rule(number=st.integers(0, 40))
    def cancel(self, number: int) -> None:
        request_id = f"r{number}"
        waits = any(one.request_id == request_id for one in self.naive.waiting)

        assert self.queue.cancel(request_id) == waits
        self.naive.remove([request_id])

    @rule(later_s=st.floats(0.0, 4.0))
    def expire(self, later_s: float) -> None:
        self.now += later_s

        gone = [one.request_id for one in self.queue.expire(self.now)]

        limit = self.now - MAX_WAIT_S
        late = [one.request_id for one in self.naive.waiting if one.queued_s <= limit]
        assert gone == late
        self.naive.remove(late)

    @invariant()
    def as_many_wait(self) -> None:
        statistics = self.queue.statistics()
        assert len(self.queue) == len(self.naive.waiting)
        assert statistics.tenants == len({one.tenant for one in self.naive.waiting})


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=40, stateful_step_count=30)
