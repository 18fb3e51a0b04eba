import math

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.fetch_times import (
    MOST_HEARD,
    MOST_TOLD,
    PEER,
    FetchRow,
    FetchRows,
    FetchTimes,
)

A = WorkerId("a")
HOST, DISK = 1, 2
COMPUTE = 0.08
"""What computing a token takes, ms."""


def teach(times: FetchTimes, worker: WorkerId, place: int, ms_per_token: float, count: int) -> None:
    for _ in range(count):
        times.learn(worker, {place: 4_000}, 4_000 * ms_per_token, COMPUTE, 0.0)


def test_what_makes_half_of_the_first_tokens_late_does_not_count() -> None:
    times = FetchTimes()

    for number in range(200):
        times.learn(A, {HOST: 4_000}, 4_000 * 0.01 * (10.0 if number % 2 else 1.0), COMPUTE, 0.0)

    assert times.ms_per_token(A, HOST, COMPUTE, 0.0) == pytest.approx(0.01, rel=0.35)


def test_what_is_looked_for_in_vain_ends_as_dear_as_computing_it() -> None:
    times = FetchTimes()

    teach(times, A, PEER, COMPUTE, 40)

    assert times.ms_per_token(A, PEER, COMPUTE, 0.0) > 0.9 * COMPUTE


def test_what_is_old_is_forgotten_and_tried_again() -> None:
    times = FetchTimes()
    teach(times, A, PEER, 10 * COMPUTE, 60)

    assert times.ms_per_token(A, PEER, COMPUTE, 0.0) > 5 * COMPUTE
    assert times.ms_per_token(A, PEER, COMPUTE, 12_000.0) < 0.6 * COMPUTE


def test_little_says_nothing_nor_does_what_is_no_number() -> None:
    times = FetchTimes()

    times.learn(A, {HOST: 100}, 5_000.0, COMPUTE, 0.0)
    times.learn(A, {HOST: 4_000}, math.nan, COMPUTE, 0.0)
    times.learn(A, {}, 5_000.0, COMPUTE, 0.0)

    assert (times.samples, times.publish(0.0)) == (0, ())


def test_a_tier_whose_weight_is_fixed_keeps_it() -> None:
    times = FetchTimes((1.0, 0.9, 0.5), fixed={HOST})

    times.learn(A, {HOST: 4_000, DISK: 4_000}, 4_000.0, COMPUTE, 0.0)

    assert times.ms_per_token(A, HOST, COMPUTE, 0.0) == pytest.approx(0.1 * COMPUTE)
    assert times.ms_per_token(A, DISK, COMPUTE, 0.0) > 0.5 * COMPUTE


def test_replicas_learn_from_each_other_until_one_is_gone() -> None:
    taught, other = FetchTimes(), FetchTimes()
    teach(taught, A, HOST, 0.004, 80)

    other.exchange({"r1": taught.exchange({}, 0.0)}, 0.0)

    assert other.ms_per_token(A, HOST, COMPUTE, 0.0) == pytest.approx(0.004, rel=0.3)
    assert other.report(A, HOST, COMPUTE, 0.0).samples == pytest.approx(64.0)
    assert other.publish(0.0) == ()
    other.exchange({}, 0.0)
    assert other.ms_per_token(A, HOST, COMPUTE, 0.0) == pytest.approx(0.25 * COMPUTE)


def test_no_more_is_told_or_kept_than_there_is_room_for() -> None:
    times = FetchTimes()
    for number in range(MOST_TOLD + 9):
        times.learn(WorkerId(f"w{number}"), {HOST: 4_000}, 40.0, COMPUTE, 0.0)

    rows = times.publish(0.0)
    times.receive(
        "r1", [FetchRow(f"x{number}", 1, 0.1, 1.0) for number in range(MOST_HEARD + 5)], 0.0
    )

    assert (len(rows), rows[-1].worker) == (MOST_TOLD + 1, f"w{MOST_TOLD + 8}")
    assert times.report(WorkerId("x0"), HOST, COMPUTE, 0.0).samples == 0.0
    assert times.report(WorkerId(f"x{MOST_HEARD + 4}"), HOST, COMPUTE, 0.0).samples == 1.0


def test_rows_that_cannot_be_are_left_out() -> None:
    times = FetchTimes()
    odd = [(0, 0.1, 1.0), (9, 0.1, 1.0), (1, math.nan, 1.0), (1, 1e25, 1.0), (1, -1.0, 1.0)]
    odd += [(1, 0.1, 0.0), (1, 0.1, math.nan), (1, 0.0, 1.0)]

    times.receive("r1", [FetchRow("a", place, ms, samples) for place, ms, samples in odd], 0.0)

    times.receive("r1", [], 0.0)

    for place in (HOST, PEER):
        assert times.report(A, place, COMPUTE, 0.0).samples == 0.0


@pytest.mark.parametrize("row", [["a", -1, 0.1, 1.0], ["a" * 300, 1, 0.1, 1.0], ["a", 1, "x", 1.0]])
def test_a_row_of_another_kind_is_not_read(row: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([row]), type=FetchRows)


def test_a_worker_that_left_is_forgotten_but_not_by_the_fleet() -> None:
    times, other = FetchTimes(), FetchTimes()
    teach(times, A, HOST, 0.002, 40)
    other.receive("r1", times.publish(0.0), 0.0)

    times.remove_worker(A)
    other.remove_worker(A)

    for one in (times, other):
        assert one.report(A, HOST, COMPUTE, 0.0).samples == 0.0
        assert one.ms_per_token(A, HOST, COMPUTE, 0.0) < 0.2 * COMPUTE
