from kvmesh._native import ActiveSequences
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import Demand, new_sequences

W1, W2 = WorkerId("w1"), WorkerId("w2")


def make_sequences(*, lease_s: float = 60.0) -> ActiveSequences:
    return new_sequences(16, lease_s=lease_s)


def test_a_booking_loads_its_worker_until_it_ends() -> None:
    sequences = make_sequences()
    demand = Demand(prompt_tokens=100, uncached_tokens=68, expected_output_tokens=40)

    assert sequences.add("r1", W1, demand, now=1.0)
    loads = sequences.loads(W1)

    assert (loads.prefill_tokens, loads.prompt_tokens, loads.active_requests) == (68, 100, 1)
    assert (loads.active_blocks, loads.expected_blocks) == (7, 3)
    assert sequences.add("r2", W1, Demand(50, 18), now=2.0)
    assert (loads.prefill_tokens, loads.prompt_tokens, loads.active_requests) == (86, 150, 2)
    assert (loads.active_blocks, loads.expected_blocks) == (11, 3)
    sequences.finish("r2")
    booking = sequences.finish("r1")
    assert booking is not None
    assert booking.worker == loads.worker == W1
    assert (loads.prefill_tokens, loads.prompt_tokens, loads.active_requests) == (0, 0, 0)
    assert (loads.active_blocks, loads.expected_blocks) == (0, 0)


def test_a_first_token_ends_the_prefill_and_says_how_long_it_took() -> None:
    sequences = make_sequences()
    sequences.add("r1", W1, Demand(1000, 1000), now=1.0)
    sequences.add("r2", W1, Demand(500, 500), now=1.1)

    first = sequences.first_token("r1", now=3.0)
    second = sequences.first_token("r2", now=3.5)

    assert first is not None
    assert second is not None
    assert (first.service_tokens, first.service_s) == (1000, 2.0)
    assert (second.service_tokens, second.service_s) == (500, 0.5)
    assert sequences.loads(W1).prefill_tokens == 0
    assert sequences.first_token("r1", now=4.0) is None


def test_a_first_token_ends_older_prefills_that_nobody_sees() -> None:
    sequences = make_sequences()
    sequences.add("whole", W1, Demand(300, 300, streams=False), now=0.0)
    sequences.add("slow", W1, Demand(70, 70), now=0.2)
    sequences.add("streamed", W1, Demand(100, 100), now=0.5)
    sequences.add("later", W1, Demand(50, 50, streams=False), now=0.6)

    booking = sequences.first_token("streamed", now=2.0)

    assert booking is not None
    assert (booking.service_tokens, booking.service_s) == (400, 2.0)
    assert list(sequences.loads(W1).prefilling) == ["slow", "later"]
    whole = sequences.finish("whole")
    assert whole is not None
    assert (whole.prefilling, booking.prefilling) == (False, False)
    assert sequences.loads(W1).prefill_tokens == 70 + 50


def test_prefills_nobody_sees_end_when_they_are_overdue_by_half() -> None:
    sequences = make_sequences()
    sequences.add("r1", W1, Demand(1000, 1000, streams=False), now=0.0)
    sequences.add("r2", W1, Demand(1000, 1000, streams=False), now=0.0)
    sequences.add("r3", W1, Demand(1000, 1000), now=0.0)

    sequences.settle(1.4, lambda _: 1.0)
    assert list(sequences.loads(W1).prefilling) == ["r1", "r2", "r3"]
    for now in (1.5, 2.998):
        sequences.settle(now, lambda _: 1.0)
        assert list(sequences.loads(W1).prefilling) == ["r2", "r3"]
    sequences.settle(99.0, lambda _: 1.0)
    assert list(sequences.loads(W1).prefilling) == ["r3"]

    settled = sequences.finish("r1")
    assert settled is not None
    assert settled.prefilling is False
    sequences.finish("r3")
    sequences.add("r4", W2, Demand(10, 10, streams=False), now=99.0)
    sequences.settle(100.0, lambda _: 1.0)
    assert not sequences.loads(W2).prefilling


def test_a_worker_that_left_with_prefills_nobody_sees_is_not_settled() -> None:
    sequences = make_sequences()
    for request_id in ("r1", "r2"):
        sequences.add(request_id, W1, Demand(10, 10, streams=False), now=0.0)
    sequences.remove_worker(W1)

    sequences.settle(1.0, lambda _: 1.0)

    assert sequences.statistics().workers == 0


def test_waiting_counts_down_as_far_as_the_oldest_prompt() -> None:
    sequences = make_sequences()
    loads = sequences.loads(W1)
    assert loads.wait_ms(1.0, now=5.0) == 0.0
    sequences.add("r1", W1, Demand(100, 100), now=5.0)
    sequences.add("r2", W1, Demand(300, 300), now=5.0)

    assert (loads.wait_ms(1.0, now=5.0), loads.wait_ms(1.0, now=5.0625)) == (400.0, 337.5)
    assert (loads.wait_ms(1.0, now=9.0), loads.wait_ms(1.0, now=1.0)) == (300.0, 400.0)

    assert loads.wait_ms(1.0, now=5.0, step_tokens=50.0) == 450.0
    assert loads.wait_ms(1.0, now=9.0, step_tokens=50.0) == 300.0

    sequences.first_token("r1", now=9.0)
    assert loads.wait_ms(1.0, now=9.0) == 300.0
    sequences.first_token("r2", now=9.0)
    assert loads.wait_ms(1.0, now=9.0, step_tokens=50.0) == 0.0


def test_output_takes_blocks_as_it_grows_and_never_shrinks() -> None:
    sequences = make_sequences()
    sequences.add("r1", W1, Demand(30, 30, expected_output_tokens=32), now=0.0)
    loads = sequences.loads(W1)

    sequences.grow("r1", 2, now=1.0)
    assert (loads.active_blocks, loads.expected_blocks) == (2, 2)
    sequences.grow("r1", 3, now=1.0)
    assert (loads.active_blocks, loads.expected_blocks) == (3, 1)
    sequences.grow("r1", 1, now=1.0)
    sequences.grow("nobody", 99, now=1.0)
    assert (loads.active_blocks, loads.expected_blocks) == (3, 1)
    sequences.grow("r1", 100, now=1.0)
    assert (loads.active_blocks, loads.expected_blocks) == (9, 0)
    sequences.finish("r1")
    assert (loads.active_blocks, loads.expected_blocks) == (0, 0)


def test_only_more_output_counts_as_output() -> None:
    sequences = make_sequences()
    sequences.add("r1", W1, Demand(30, 30), now=0.0)
    booking = sequences.bookings.get("r1")
    assert booking is not None
    sequences.grow("r1", 2, now=1.0)

    sequences.grow("r1", 2, now=3.0)

    assert (booking.output_tokens, booking.output_s, booking.renewed_s) == (2, 1.0, 3.0)


def test_life_signs_of_an_owner_are_for_its_bookings_alone() -> None:
    sequences = make_sequences(lease_s=60.0)
    sequences.add("own", W1, Demand(10, 10), now=0.0)
    sequences.add("theirs", W1, Demand(10, 10), now=0.0, owner="r1")

    sequences.renew_owner("r1", now=50.0)
    sequences.renew_owner("r1", now=40.0)

    assert [one.request_id for one in sequences.expire(now=61.0)] == ["own"]
    assert sequences.bookings["theirs"].renewed_s == 50.0


def test_output_and_first_token_are_life_signs() -> None:
    sequences = make_sequences(lease_s=10.0)
    sequences.add("r1", W1, Demand(10, 10), now=0.0)

    sequences.first_token("r1", now=8.0)
    assert sequences.expire(now=17.0) == []
    sequences.grow("r1", 5, now=17.0)
    assert (sequences.expire(now=26.0), sequences.expire(now=27.0)) == ([], [])
    assert [one.request_id for one in sequences.expire(now=28.0)] == ["r1"]


def test_a_removed_worker_takes_its_bookings_along() -> None:
    sequences = make_sequences()
    sequences.add("r1", W1, Demand(10, 10), now=0.0)
    sequences.add("r2", W2, Demand(10, 10), now=0.0)
    generation = sequences.generation

    gone = sequences.remove_worker(W1)
    sequences.remove_worker(WorkerId("never seen"))

    assert [one.request_id for one in gone] == ["r1"]
    assert sequences.bookings.get("r1") is None
    assert sequences.generation == generation + 2
    statistics = sequences.statistics()
    assert (statistics.workers, statistics.active_requests) == (1, 1)
    assert (statistics.prefill_tokens, statistics.active_blocks) == (10, 1)
    assert sequences.loads(W1).active_requests == 0
    sequences.remove_worker(W2)
    assert sequences.statistics().dropped_with_worker == 2


def test_after_another_block_size_everything_still_ends_at_nothing() -> None:
    sequences = make_sequences()
    demand = Demand(100, 68, expected_output_tokens=40, keys=(1, 2))
    sequences.add("old", W1, demand, now=1.0)
    sequences.correct(W1, requests=2, blocks=10, prefill_tokens=100)

    sequences.resize(64)
    loads = sequences.loads(W1)
    resized = (loads.unseen_blocks, loads.active_blocks, loads.prompt_tokens)
    sequences.correct(W1, requests=1, blocks=3, prefill_tokens=0)
    sequences.add("new", W1, Demand(100, 68), now=2.0)
    grown = loads.active_blocks
    sequences.grow("old", 200, now=3.0)
    sequences.correct(W1, requests=0, blocks=0, prefill_tokens=0)
    sequences.finish("old")
    sequences.finish("new")

    assert (resized, grown) == ((0, 7, 100), 7 + 3 + 2)
    assert (loads.active_requests, loads.active_blocks, loads.expected_blocks) == (0, 0, 0)
    assert (loads.prompt_tokens, loads.prefill_tokens) == (0, 0)


def test_output_that_comes_unseen_takes_the_place_of_what_was_expected() -> None:
    sequences = make_sequences()
    sequences.add("r1", W1, Demand(16, 16, expected_output_tokens=64, streams=False), now=1.0)
    booking = sequences.bookings["r1"]
    loads = sequences.loads(W1)

    sequences.foresee(booking, 3)
    sequences.foresee(booking, 3)
    assert (loads.active_blocks, loads.expected_blocks) == (4, 1)
    sequences.foresee(booking, 1)
    assert (loads.active_blocks, loads.expected_blocks) == (2, 3)
    sequences.finish("r1")
    assert (loads.active_blocks, loads.expected_blocks) == (0, 0)


def test_a_key_that_two_requests_number_differently_leaves_nothing_behind() -> None:
    sequences = make_sequences()
    loads = sequences.loads(W1)
    sequences.add("r1", W1, Demand(16 * 320, 0, keys=tuple(range(17))), now=0.0)
    sequences.add("r2", W1, Demand(16 * 16, 0, keys=(16,)), now=0.0)

    sequences.finish("r1")
    assert loads.active_blocks == 64
    sequences.finish("r2")

    assert loads.active_blocks == 0
    assert not loads.shared
