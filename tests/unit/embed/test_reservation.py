import asyncio
import gc
import random
from collections.abc import Iterator

import pytest
import structlog

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, UNKNOWN, status_attempt
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.embed.reservation import Reservation
from tests.unit.app.told_outbox import NotedOutbox

WORKER = WorkerId("w0")


class Bookings:
    """A scheduler with one request booked at `WORKER`, and what its peers are told."""

    def __init__(self) -> None:
        membership = Membership()
        membership.add(WORKER, 0.0)
        self.scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=membership,
            sequences=new_sequences(16),
        )
        self.noted = NotedOutbox(self.scheduler.sequences)
        request = RouteRequest("r", BlockHashes([1] * 32, 16), 32, pinned_worker=WORKER)
        self.scheduler.schedule(request, 0.0)
        self.noted.place(self.scheduler.sequences.bookings["r"])

    def reserve(self) -> Reservation:
        return Reservation("r", WORKER, self.scheduler, self.noted.outbox)

    def active(self) -> int:
        return self.scheduler.sequences.loads(WORKER).active_requests


@pytest.fixture
def logs() -> Iterator[list[dict[str, object]]]:
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]  # structlog's own mapping


async def test_a_block_that_ends_well_was_served_and_one_that_raises_says_nothing_of_it() -> None:
    well, badly = Bookings(), Bookings()

    with well.reserve() as reservation:
        assert (reservation.worker_id, well.active()) == ("w0", 1)
    with pytest.raises(KeyError), badly.reserve():
        raise KeyError

    assert (well.noted.reported, well.active()) == ([("ended", "r", SERVED)], 0)
    assert (badly.noted.reported, badly.active()) == ([("ended", "r", UNKNOWN)], 0)


async def test_each_step_counts_once_and_none_after_the_end() -> None:
    bookings = Bookings()
    reservation = bookings.reserve()

    for _ in range(2):
        reservation.first_token()
        reservation.grow(16)
    grown = bookings.scheduler.sequences.bookings["r"].output_tokens
    for _ in range(2):
        reservation.finish(status_attempt(500))
        reservation.first_token()
        reservation.grow(32)

    assert grown == 16
    assert bookings.noted.reported == [("first token", "r"), ("ended", "r", status_attempt(500))]
    assert bookings.active() == 0


async def test_what_is_dropped_unfinished_is_released_and_logged(
    logs: list[dict[str, object]],
) -> None:
    bookings = Bookings()

    bookings.reserve()
    gc.collect()
    await asyncio.sleep(0)

    assert (bookings.noted.reported, bookings.active()) == ([("ended", "r", UNKNOWN)], 0)
    assert [line["event"] for line in logs] == ["booking dropped unfinished"]


def test_what_is_dropped_after_its_loop_ended_harms_nobody() -> None:
    bookings = Bookings()

    async def reserve() -> Reservation:
        return bookings.reserve()

    kept = [asyncio.run(reserve())]
    kept.clear()
    gc.collect()

    assert (bookings.noted.reported, bookings.active()) == ([], 1)
