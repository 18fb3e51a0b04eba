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
