import msgspec
import pytest

from benchmarks.fleet.bench_fleet import Case, bends, play
from benchmarks.fleet.costs import MEASURED, PlaneCosts, RequestCosts, costs_from
from benchmarks.fleet.plane import Fleet, Plane, Queue
from benchmarks.fleet.source import HELD, Sidecar
from kvmesh.actors.wire import Subjects
from kvmesh.core.blocks.events import Cleared, Removed, Stored, decode_batch
from kvmesh.core.blocks.hashing import unpack_hashes

REQUEST = RequestCosts(own_us=100.0, sibling_us=10.0, booking_bytes=100.0, blocks=4.0)
SMALL = Fleet(workers=10, replicas=4, requests_s=2_000.0)


def test_work_that_finds_its_processor_busy_waits() -> None:
    queue = Queue(2)

    ends = [queue.do(0.0, 1.0), queue.do(0.5, 1.0), queue.do(0.6, 1.0), queue.do(9.0, 1.0)]

    assert ends == [1.0, 1.5, 2.0, 10.0]
    assert queue.busy_s == 4.0


def test_replicas_are_as_busy_as_their_messages_cost() -> None:
    load = Plane(SMALL, REQUEST, PlaneCosts()).run(4.0)

    own = 2_000 / 4 * 100e-6
    siblings = 2_000 * 3 / 4 * 10e-6 + 3 * 200 * PlaneCosts().bookings_us * 1e-6
    assert load.work["requests"] == pytest.approx(own, rel=0.1)
    # A flush without a booking sends nothing.
    assert load.work["siblings"] == pytest.approx(siblings, rel=0.1)
    assert load.work["heartbeats"] == pytest.approx(
        (10 * PlaneCosts().worker_beat_us + 4 * 60) * 1e-6, rel=0.1
    )
    assert not bends(load)


def test_events_cost_every_replica_and_none_where_there_are_none() -> None:
    on = Plane(SMALL, REQUEST, PlaneCosts()).run(2.0)
    off = Plane(msgspec.structs.replace(SMALL, events=False), REQUEST, PlaneCosts()).run(2.0)

    assert "events" in on.work
    assert "events" not in off.work
    assert not off.event_lags
    assert max(on.event_lags) < 0.05


@pytest.mark.parametrize(
    ("fleet", "costs", "what"),
    [
        (msgspec.structs.replace(SMALL, requests_s=60_000.0), PlaneCosts(), "replicas"),
        (SMALL, PlaneCosts(nats_out_us=2_000.0), "NATS server"),
        (msgspec.structs.replace(SMALL, hop_s=0.03), PlaneCosts(), "bookings late"),
        (msgspec.structs.replace(SMALL, replicas=1, hop_s=0.15), PlaneCosts(), "events late"),
    ],
)
def test_what_bends_is_named(fleet: Fleet, costs: PlaneCosts, what: str) -> None:
    outcome = play(Case("case", "4 KB", fleet), REQUEST, costs, 0.5)

    assert what in outcome.bends


def test_costs_are_those_of_a_run_where_it_has_them() -> None:
    lines = [
        b'{"facts":{"date":"2026-11-23"}}',
        b'{"title":"t","candidate":"4 KB","figure":"sibling us","median":2.5}',
        b'{"title":"t","candidate":"4 KB","figure":"bytes","median":250}',
        b'{"title":"t","candidate":"plane","figure":"block us","median":0.5}',
        b"",
    ]

    sizes, plane = costs_from(lines)

    assert (sizes["4 KB"].sibling_us, sizes["4 KB"].booking_bytes) == (2.5, 250.0)
    assert sizes["4 KB"].own_us == MEASURED["4 KB"].own_us
    assert sizes["400 B"] == MEASURED["400 B"]
    assert plane == msgspec.structs.replace(PlaneCosts(), block_us=0.5)


def test_a_pretend_sidecar_holds_as_much_as_it_held() -> None:
    sidecar = Sidecar("w0", "http://w0", Subjects("kvmesh", "bench"), 4)
    held: set[int] = set()
    due = 1

    for number in range(3 * HELD):
        batch = decode_batch(sidecar.record())
        assert batch.first_seq == due
        due += len(batch.events)
        assert isinstance(batch.events[0], Cleared) is (number == 0)
        for event in batch.events:
            if isinstance(event, Stored):
                held.update(unpack_hashes(event.hashes))
            elif isinstance(event, Removed):
                held.difference_update(unpack_hashes(event.hashes))

    assert len(held) == 4 * HELD
