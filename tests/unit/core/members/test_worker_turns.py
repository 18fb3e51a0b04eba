import random
from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from tests.reference.workers.turns import MOST_BEHIND, WorkerTurns

NAMES = tuple(WorkerId(f"w{number}") for number in range(4))


class Replica:
    """A router that takes workers in turn."""

    def __init__(self, name: str = "", workers: tuple[WorkerId, ...] = NAMES) -> None:
        options = RouterOptions(mode="round-robin", replica=name)
        membership, self.sequences = Membership(), new_sequences(16)
        self.scheduler = Scheduler(
            options, random.Random(1), membership=membership, sequences=self.sequences
        )
        self.asked = 0
        for worker in workers:
            membership.add(worker, 0.0)

    def take(self, among: tuple[WorkerId, ...] | None = None) -> WorkerId:
        self.asked += 1
        allowed = None if among is None else frozenset(among)
        request = RouteRequest(f"r{self.asked}", NO_HASHES, 10, allowed_workers=allowed)
        worker = self.scheduler.schedule(request, 0.0).record.worker
        self.scheduler.finish(request.request_id, 0.0)
        return worker

    def hear(self, worker: WorkerId) -> None:
        self.asked += 1
        self.sequences.add(f"q{self.asked}", worker, Demand(10, 10, turn=True), 0.0, "peer")


def test_a_new_worker_has_one_turn_more_at_most() -> None:
    replica = Replica()
    for _ in range(30):
        replica.take(NAMES[:3])

    found = [replica.take() for _ in range(9)]

    assert Counter(found) == {name: 3 if name == NAMES[3] else 2 for name in NAMES}


def test_a_worker_that_was_away_has_few_turns_at_once_and_one_that_left_none() -> None:
    replica = Replica()
    replica.take()
    for _ in range(90):
        replica.take(NAMES[1:])

    back = [replica.take() for _ in range(MOST_BEHIND + 4)]

    assert back[: MOST_BEHIND - 1] == [NAMES[0]] * (MOST_BEHIND - 1)
    assert Counter(back)[NAMES[0]] <= MOST_BEHIND + 1
    replica.sequences.remove_worker(NAMES[0])
    replica.sequences.remove_worker(NAMES[0])
    assert NAMES[0] not in replica.sequences.turns
    assert Counter(replica.take() for _ in range(9))[NAMES[0]] <= 3


@given(
    st.lists(st.text("aé\u20ac\U0001f600-", min_size=1), unique=True, min_size=1, max_size=9),
    st.sampled_from(["", "a", "router-b" * 40]),
)
def test_turns_are_those_of_the_model_whatever_the_names(names: list[str], name: str) -> None:
    workers = tuple(WorkerId(one) for one in names)
    replica, model = Replica(name, workers), WorkerTurns()

    for _ in range(2 * len(workers)):
        worker = model.next(sorted(workers), name)
        model.take(worker)
        assert replica.take() == worker


@given(
    st.lists(st.integers(0, 1), max_size=200),
    st.integers(0, 3),
)
def test_replicas_that_hear_of_each_other_late_share_one_rotation(
    requests: list[int], late: int
) -> None:
    """Each request comes to one of two replicas; the other hears of its turn `late` requests on."""
    replicas = [Replica("r0"), Replica("r1")]
    reported = deque[tuple[int, WorkerId]]()
    given_ = Counter(dict.fromkeys(NAMES, 0))
    for number in requests:
        worker = replicas[number].take()
        given_[worker] += 1
        reported.append((1 - number, worker))
        while len(reported) > late:
            other, heard = reported.popleft()
            replicas[other].hear(heard)

        assert max(given_.values()) - min(given_.values()) <= late + 1
