"""The requests that wait for a worker, where anything they call may raise."""

import random
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh._native import Placed
from kvmesh.core.admission.queue import AdmissionOptions, HoldQueue, QueuePolicy, Refusal
from kvmesh.core.admission.queue import WaitingRequest as Waiting
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.late_binding import LateBinding
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError
from tests.property.support.faults import PlantedError, Trial, raises_at

MAX_WAIT_S = 5.0
BLOCK = 16
policies = st.sampled_from(("fcfs", "wspt", "priority"))
numbers = st.one_of(st.integers(-3, 3), st.sampled_from((10**25, -(10**25), 10**400, -(10**400))))
tokens = st.one_of(st.integers(1, 20_000), st.sampled_from((10**9, 10**25, 10**400)))


def admission(policy: QueuePolicy) -> AdmissionOptions:
    return AdmissionOptions(
        policy=policy, max_queued=8, max_queued_per_tenant=4, max_wait_s=MAX_WAIT_S
    )


class BindingMachine(RuleBasedStateMachine):
    """Two workers; a request's prompt is long enough to fill one for a while."""

    @initialize(policy=policies)
    def begin(self, policy: QueuePolicy) -> None:
        membership = Membership()
        for name in ("w1", "w2"):
            membership.add(WorkerId(name), 0.0)
        self.scheduler = scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=membership,
            sequences=new_sequences(BLOCK),
            routed=new_approx(),
        )
        self.trial = Trial()
        self.binding = LateBinding(scheduler, admission(policy))
        self.weigh_all = self.trial.may_raise(lambda: False)
        for name in ("schedule_within", "first_token"):
            setattr(scheduler, name, self.trial.may_raise(getattr(scheduler, name)))
        overlaps = scheduler.overlaps
        overlaps.find_groups = self.trial.may_raise(overlaps.find_groups)  # type: ignore[method-assign]
        self.now = 0.0
        self.serial = count()

    @rule(blocks=st.integers(1, 600), tenant=st.sampled_from("abc"), priority=numbers, at=raises_at)
    def ask(self, blocks: int, tenant: str, priority: int, at: int) -> None:
        number = next(self.serial)
        hashes = BlockHashes.of([number * 1000 + depth for depth in range(blocks)], BLOCK)
        name = f"r{number}"
        request = RouteRequest(name, hashes, blocks * BLOCK, tenant=tenant, priority=priority)

        found = self.trial.attempt(at, self.binding.ask, request, self.now)

        if found is None:
            self.trial.ledger.accept(name)
        elif isinstance(found, Placed):
            assert found.request_id == name
        else:
            assert isinstance(found, Refusal | PlantedError)

    @rule(at=raises_at)
    def release(self, at: int) -> None:
        fired = self.trial.fired
        found = self.trial.attempt(at, self.binding.release, self.now, self.weigh_all)

        assert not isinstance(found, PlantedError), "the others wait behind it"
        for one in found:
            assert isinstance(one.verdict, Placed | NoWorkerError | PlantedError)
            self.trial.ledger.end(one.request_id, type(one.verdict).__name__)
        failed = [one for one in found if isinstance(one.verdict, PlantedError)]
        assert len(failed) == self.trial.fired - fired

    @rule()
    def free_a_worker(self) -> None:
        for request_id in list(self.scheduler.sequences.bookings)[:2]:
            self.scheduler.finish(request_id, self.now)

    @rule(number=st.integers(0, 40))
    def cancel(self, number: int) -> None:
        waits = f"r{number}" in self.trial.ledger.open

        assert self.binding.cancel(f"r{number}") == waits
        if waits:
            self.trial.ledger.end(f"r{number}", "cancelled")

    @rule(later_s=st.floats(0.0, 4.0))
    def expire(self, later_s: float) -> None:
        self.now += later_s

        for request_id in self.binding.expire(self.now):
            self.trial.ledger.end(request_id, "expired")

    @rule(policy=policies)
    def change(self, policy: QueuePolicy) -> None:
        self.binding.change(admission(policy))

    @invariant()
    def who_waits_is_in_the_queue_and_only_those(self) -> None:
        statistics = self.binding.queue.statistics()
        assert list(self.binding.waiting) == list(self.trial.ledger.open)
        assert statistics.queued == len(self.trial.ledger.open)
        assert statistics.held - statistics.queued == sum(self.trial.ledger.ended.values())

    def teardown(self) -> None:
        """Let all go: nobody is forgotten, and nothing is kept."""
        if not hasattr(self, "trial"):
            return
        for _ in range(60):
            for request_id in list(self.scheduler.sequences.bookings):
                self.scheduler.finish(request_id, self.now)
            self.release(0)

        assert not self.trial.ledger.open
        assert self.binding.queue.statistics().tenants == len(self.binding) == 0


class HoldMachine(RuleBasedStateMachine):
    """The queue alone, with an `admit` that may raise and requests of any size."""

    @initialize(policy=policies, quantum=st.sampled_from((1, 100, 10**12)))
    def begin(self, policy: QueuePolicy, quantum: int) -> None:
        self.trial = Trial()
        self.queue = HoldQueue(
            AdmissionOptions(policy=policy, quantum_tokens=quantum, max_wait_s=MAX_WAIT_S)
        )
        self.now = 0.0
        self.serial = count()
        self.taken: list[str] = []

    @rule(tokens=tokens, tenant=st.text(max_size=1), priority=numbers, many=st.integers(1, 5))
    def offer(self, tokens: int, tenant: str, priority: int, many: int) -> None:
        for _ in range(many):
            name = f"r{next(self.serial)}"
            assert self.queue.offer(Waiting(name, tokens, tenant, priority), self.now) is None
            self.trial.ledger.accept(name)

    @rule(at=raises_at, every=st.integers(1, 4))
    def release(self, at: int, every: int) -> None:
        asked: list[str] = []

        def admit(held: Waiting) -> bool:
            self.trial.count("admit")
            asked.append(held.request_id)
            if len(asked) % every:
                return False
            self.trial.ledger.end(held.request_id, "released")
            return True

        self.trial.attempt(at, self.queue.release, self.now, admit)

        assert len(set(asked)) == len(asked), "somebody was asked twice in one look"

    @rule(number=st.integers(0, 60))
    def cancel(self, number: int) -> None:
        waits = f"r{number}" in self.trial.ledger.open

        assert self.queue.cancel(f"r{number}") == waits
        if waits:
            self.trial.ledger.end(f"r{number}", "cancelled")

    @rule(later_s=st.floats(0.0, 4.0))
    def expire(self, later_s: float) -> None:
        self.now += later_s

        for one in self.queue.expire(self.now):
            self.trial.ledger.end(one.request_id, "expired")

    @invariant()
    def as_many_wait_as_were_accepted_and_did_not_end(self) -> None:
        assert len(self.queue) == len(self.trial.ledger.open)
        assert all(one.asked == 0 for one in self.queue._tenants.values())
        assert all(one.waiting for one in self.queue._tenants.values())

    def teardown(self) -> None:
        """Let all go."""
        if hasattr(self, "trial"):
            self.release(0, 1)
            assert len(self.queue) == len(self.trial.ledger.open) == 0
            assert self.queue.statistics().tenants == 0


TestBinding = BindingMachine.TestCase
TestBinding.settings = settings(max_examples=60, stateful_step_count=25)
TestHold = HoldMachine.TestCase
TestHold.settings = settings(max_examples=60, stateful_step_count=25)
