from collections import Counter

from kvmesh._native import WorkerTurns
from kvmesh.core.blocks.events import WorkerId
from tests.reference.workers.turns import MOST_BEHIND

NAMES = tuple(WorkerId(f"w{number}") for number in range(4))


def take(turns: WorkerTurns, names: tuple[WorkerId, ...] = NAMES, replica: str = "") -> WorkerId:
    worker = turns.next(names, replica)
    turns.take(worker)
    return worker


def test_one_replica_goes_round_strictly_in_an_order_of_its_own() -> None:
    turns, other = WorkerTurns(), WorkerTurns()

    found = [take(turns) for _ in range(12)]
    named = [take(other, replica="r1") for _ in range(12)]

    assert found == [*NAMES] * 3
    assert named == named[:4] * 3
    assert sorted(named[:4]) == [*NAMES]
    assert len({WorkerTurns().next(NAMES, f"r{number}") for number in range(50)}) == 4


def test_a_worker_that_was_away_has_few_turns_at_once_and_one_that_left_none() -> None:
    turns = WorkerTurns()
    take(turns)
    for _ in range(90):
        take(turns, NAMES[1:])

    back = [take(turns) for _ in range(MOST_BEHIND + 4)]

    assert back[: MOST_BEHIND - 1] == [NAMES[0]] * (MOST_BEHIND - 1)
    assert Counter(back)[NAMES[0]] <= MOST_BEHIND + 1
    turns.remove(NAMES[0])
    turns.remove(NAMES[0])
    assert Counter(take(turns) for _ in range(9))[NAMES[0]] <= 3
