"""When a worker at rest takes a request of a prefix that others share, and when it does not."""

from collections.abc import Sequence

import msgspec
import pytest

from kvmesh._native import WorkerState
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.members.loads import PRIOR_MS_PER_TOKEN, Demand, new_sequences, new_speeds
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from tests.reference.routing.second_home import DELAY, REST, find_second_home
from tests.reference.routing.weighing import DEFAULT_COST, Weighing

SIZE = 16
PREFIX = list(range(1, 65))
PREFIX_MS = 64 * SIZE * PRIOR_MS_PER_TOKEN
STAY_S = 4 * PREFIX_MS / DELAY / 1000.0 / 2
NOW = 1000.0


def make_state(name: str, *shared: Sequence[int], rested_s: float = 500.0) -> WorkerState:
    """Return a worker with a request of each prefix; one without any has rested so long."""
    worker = WorkerId(name)
    sequences = new_sequences(SIZE)
    for number, prefix in enumerate(shared):
        demand = Demand(70 * SIZE, 1, keys=tuple(sharing_keys(prefix)))
        sequences.add(f"{name}/{number}", worker, demand, NOW)
    if not shared:
        sequences.add("idle", worker, Demand(1000, 1), NOW - rested_s)
        sequences.finish("idle")
    ratio = new_speeds().prefill_ratio(worker)
    return WorkerState(worker, sequences.loads(worker), ratio, WorkerInfo(), LoadReport())


def weigh(stay_s: float = STAY_S, **overlaps: int) -> Weighing:
    speeds = new_speeds()
    if stay_s:
        speeds.finished(WorkerId("busy"), stay_s, 10)
    return Weighing(
        now=NOW,
        policy=DEFAULT_COST.name,
        cost=DEFAULT_COST,
        block_size=SIZE,
        prompt_tokens=70 * SIZE,
        request_blocks=70,
        output_blocks=4,
        overlaps={WorkerId(name): blocks for name, blocks in overlaps.items()},
        groups=[],
        keys=sharing_keys(PREFIX),
        weights=PUBLISHED.pricing(DEFAULT_COST.name, {}).weights,
        speeds=speeds,
        arrivals_per_ms=0.0,
    )


BUSY = make_state("busy", PREFIX)


def found(states: Sequence[WorkerState], weighing: Weighing) -> str:
    return find_second_home(states[0], states, weighing).worker


def test_a_prefix_that_is_shared_right_now_gets_a_home_at_rest() -> None:
    assert found([BUSY, make_state("idle")], weigh(busy=64)) == "idle"


def test_of_several_at_rest_it_is_who_takes_least_time() -> None:
    idle = [make_state("first"), make_state("second")]

    assert found([BUSY, *idle], weigh(busy=64)) == "first"
    assert found([BUSY, *idle], weigh(busy=64, second=10)) == "second"


def test_what_a_session_has_of_its_own_stays_where_it_is() -> None:
    with_own = weigh(busy=96)
    with_own = msgspec.structs.replace(with_own, keys=sharing_keys(range(1, 97)))

    assert found([BUSY, make_state("idle")], with_own) == "busy"


def test_a_prefix_too_short_to_have_a_key_stays() -> None:
    assert found([BUSY, make_state("idle")], weigh(busy=15)) == "busy"


def test_a_worker_that_holds_more_than_half_of_it_is_a_home_already() -> None:
    idle = make_state("idle")

    assert found([BUSY, idle], weigh(busy=64, idle=32)) == "idle"
    assert found([BUSY, idle], weigh(busy=64, idle=33)) == "busy"


def test_a_worker_that_fails_or_works_is_none() -> None:
    failing, working = make_state("failing"), make_state("working", [7] * 64)
    failing.failure_share = 0.1

    assert found([BUSY, failing, working], weigh(busy=64)) == "busy"


def test_a_slow_worker_is_none() -> None:
    slow = make_state("slow")
    slow.prefill.slow_ms = 7.0
    weighing = weigh(busy=64)

    assert found([BUSY, slow], weighing) == "slow"
    long = msgspec.structs.replace(weighing, answer_tokens=100.0)
    assert found([BUSY, slow, make_state("idle")], long) == "idle"
    assert found([BUSY, slow], long) == "busy"


@pytest.mark.parametrize(("rests", "home"), [(REST + 0.01, "idle"), (REST - 0.01, "busy")])
def test_a_worker_has_rested_many_times_as_long_as_the_prefix_takes(
    rests: float, home: str
) -> None:
    idle = make_state("idle", rested_s=rests * PREFIX_MS / 1000.0)

    assert found([BUSY, idle], weigh(busy=64)) == home


@pytest.mark.parametrize(("share", "home"), [(0.99, "idle"), (1.01, "busy")])
def test_no_request_waits_longer_than_a_share_of_its_usual_stay(share: float, home: str) -> None:
    stay_s = PREFIX_MS / (share * DELAY) / 1000.0

    assert found([BUSY, make_state("idle")], weigh(stay_s, busy=64)) == home


def test_nothing_moves_before_it_is_known_how_long_requests_stay() -> None:
    assert found([BUSY, make_state("idle")], weigh(0.0, busy=64)) == "busy"
