"""Fair shares over three replicas, one of which is killed, against a model that adds up service."""

from itertools import combinations, count

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmesh.core.admission.ledger import Ledger
from kvmesh.core.admission.locality import Cached, FairTurns
from kvmesh.core.admission.queue import WaitingRequest
from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.hashing import BlockHashes
from tests.reference.routing.fair_gap import largest_gap

TENANTS: tuple[str, ...] = ("a", "b", "c")
QUANTUM = 20
LARGEST = 10
LOOK_S = 0.02


class Fleet:
    """Room that all replicas share, and what was served of each tenant by whomsoever. Requests
    about a document whose worker is `busy` would rather wait, but may go anywhere.
    """

    def __init__(self) -> None:
        self.room = 0
        self.costs: dict[str, int] = {}
        self.tenants: dict[str, str] = {}
        self.warm: dict[str, int] = {}
        self.busy: frozenset[int] = frozenset()
        self.service = dict.fromkeys(TENANTS, 0)

    def has_room(self) -> bool:
        return self.room > 0

    def cached(self, request_id: str) -> Cached:
        return Cached(self.warm[request_id], self.warm[request_id])

    def would_take(self, request_id: str) -> bool:
        return self.room > 0 and self.warm[request_id] not in self.busy

    def place(self, request_id: str, *, anywhere: bool) -> int | None:
        if not (self.room if anywhere else self.would_take(request_id)):
            return None
        self.room -= 1
        self.service[self.tenants[request_id]] += self.costs[request_id]
        return self.costs[request_id]


class Replica:
    """One router: its turns, who waits there, and what it has told."""

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.ledger = Ledger(QUANTUM)
        self.turns = FairTurns(self.ledger)
        self.waiting: dict[str, str] = {}
        self.served = dict.fromkeys(TENANTS, 0)
        self.reported = dict.fromkeys(TENANTS, 0)


class SharesMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.serial = count()
        self.epochs = count(1)
        self.beats = count()
        self.fleet = Fleet()
        self.replicas = [Replica(name, next(self.epochs)) for name in ("r0", "r1", "r2")]
        self.unheard = 0
        self.lost = self.deaths = 0
        self.lowest: dict[tuple[str, str], int] = {}
        self.highest: dict[tuple[str, str], int] = {}
        self._exchange()

    @rule(
        place=st.integers(0, 2),
        tenant=st.sampled_from(TENANTS),
        cost=st.integers(1, LARGEST),
        document=st.integers(0, 2),
        many=st.integers(20, 150),
    )
    def offer(self, place: int, tenant: str, cost: int, document: int, many: int) -> None:
        replica = self.replicas[place % len(self.replicas)]
        for _ in range(many):
            name = f"q{next(self.serial)}"
            self.fleet.costs[name], self.fleet.tenants[name] = cost, tenant
            self.fleet.warm[name] = document
            held = WaitingRequest(name, cost, tenant, 0, self.now)
            hashes = BlockHashes.of([document + 1, 10 * document + 11], 16)
            replica.turns.enter((0.0, next(self.serial)), held, hashes)
            replica.waiting[name] = tenant
        self._exchange()

    @rule(
        room=st.integers(1, 4),
        uses_caches=st.integers(1, 60),
        order=st.permutations(range(3)),
        busy=st.frozensets(st.integers(0, 2), max_size=3),
    )
    def work(self, room: int, uses_caches: int, order: list[int], busy: frozenset[int]) -> None:
        """Have so many requests placed in each look by whoever is first; news is one look late."""
        self.fleet.busy = busy
        for _ in range(uses_caches):
            self.fleet.room = room
            for place in order:
                replica = self.replicas[place]
                for name in replica.turns.release(self.fleet, self.now):
                    tenant = replica.waiting.pop(name)
                    replica.served[tenant] += self.fleet.costs[name]
                    self._watch()
            self._exchange()
            self.now += LOOK_S
        self.fleet.room = 0
        self._exchange()

    @rule(place=st.integers(0, 2), number=st.integers(0, 3000))
    def cancel(self, place: int, number: int) -> None:
        replica = self.replicas[place % len(self.replicas)]
        if replica.waiting.pop(f"q{number}", None) is not None:
            replica.turns.leave(f"q{number}")
        self._exchange()

    @precondition(lambda self: not self.deaths)
    @rule(place=st.integers(0, 2))
    def kill_and_restart(self, place: int) -> None:
        dead = self.replicas[place]
        self.lost += max(dead.served[one] - dead.reported[one] for one in TENANTS)
        self.deaths += 1
        self.replicas[place] = Replica(dead.name, next(self.epochs))
        for other in self.replicas:
            other.ledger.forget_waiting(dead.name)
        self._exchange()
        self._watch()

    @invariant()
    def nobody_is_further_behind_than_the_bound(self) -> None:
        bound = largest_gap(
            QUANTUM, LARGEST, unheard=self.unheard, lost=self.lost, deaths=self.deaths
        )
        for pair, highest in self.highest.items():
            assert highest - self.lowest[pair] <= bound, (pair, bound)

    def _watch(self) -> None:
        """Note how far service is apart of those who wait, and begin anew with all others."""
        waiting = {one for replica in self.replicas for one in replica.waiting.values()}
        for pair in combinations(TENANTS, 2):
            if not waiting.issuperset(pair):
                self.lowest.pop(pair, None)
                self.highest.pop(pair, None)
                continue
            apart = self.fleet.service[pair[0]] - self.fleet.service[pair[1]]
            self.lowest[pair] = min(apart, self.lowest.get(pair, apart))
            self.highest[pair] = max(apart, self.highest.get(pair, apart))
        for one in TENANTS:
            late = [replica.served[one] - replica.reported[one] for replica in self.replicas]
            self.unheard = max(self.unheard, sum(late))

    def _exchange(self) -> None:
        for replica in self.replicas:
            reported: list[Shares] = []
            while (shares := replica.ledger.publish()) is not None:
                reported.append(shares)
            if next(self.beats) % 100 < len(self.replicas):
                reported.append(replica.ledger.publish_again())
            for other in self.replicas:
                for shares in reported if other is not replica else ():
                    other.ledger.receive(replica.name, replica.epoch, shares)
            replica.reported = dict(replica.served)
        self._watch()


TestShares = SharesMachine.TestCase
TestShares.settings = settings(
    max_examples=25, stateful_step_count=40, phases=(Phase.explicit, Phase.generate)
)
