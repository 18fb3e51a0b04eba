"""Gateways that show no response bodies, or no responses: what each way of ending means."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvmesh.app.picker.door import GATEWAYS
from kvmesh.app.picker.leaving import SETTLE_S, SOON_S
from kvmesh.core.members.worker_info import LoadReport
from kvmesh.core.routing.unwatched.unwatched import DEFAULT
from kvmesh.transport.grpc.session_events import CONNECT_ERROR
from tests.integration.pick.room import CHAT, Asking, Room

NONE = 0
RESET = 2
"""INTERNAL_ERROR, as Envoy resets a stream."""

WHOLE = CHAT.replace(b"true", b"false")


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    made = Room()
    yield made
    await made.close()
    assert made.errors == []
    assert made.booked() == {}


def ask(room: Room, body: bytes = CHAT, mode: int | None = NONE) -> Asking:
    if mode is None:
        return room.ask().head(request_mode=None).body(body)
    return room.ask().head(response_mode=mode).body(body)


def heads_are_told(room: Room) -> None:
    """Have the gateway show the head of a response."""
    ask(room).answered(kind="application/json", end=True)


def ends(room: Room, outcome: str, status: str) -> int:
    return room.context.counters.ends.count(outcome, status)


async def settled() -> None:
    await asyncio.sleep(2 * SETTLE_S)


async def test_a_reset_alone_means_that_the_request_goes_on(room: Room) -> None:
    ask(room).on_reset(RESET)

    assert len(room.booked()) == 1
    assert room.counts.silent == 1
    assert room.counts.open_streams == 0


async def test_a_reset_behind_a_half_close_means_that_the_request_is_over(room: Room) -> None:
    stream = ask(room)

    stream.on_half_close()
    stream.on_reset(RESET)

    assert room.booked() == {}
    assert ends(room, "finished", "none") == 1
    await settled()


async def test_a_lost_connection_takes_its_requests_along(room: Room) -> None:
    ask(room).on_reset(CONNECT_ERROR)

    assert room.booked() == {}


async def test_a_half_close_alone_behind_the_pick_means_that_the_request_goes_on(
    room: Room,
) -> None:
    stream = ask(room)

    stream.on_half_close()
    at_once = len(room.booked())
    await settled()

    assert (at_once, len(room.booked())) == (1, 1)
    assert stream.status == 0
    assert room.counts.silent == 1


async def test_a_half_close_alone_much_later_means_that_the_request_is_over(room: Room) -> None:
    stream = ask(room)
    await asyncio.sleep(SOON_S + 0.05)

    stream.on_half_close()
    await settled()

    assert room.booked() == {}


async def test_the_head_of_a_whole_answer_ends_it_and_teaches(room: Room) -> None:
    stream = ask(room, WHOLE).answered(kind="application/json")

    stream.on_reset(RESET)

    assert room.booked() == {}
    assert ends(room, "finished", "2xx") == 1


async def test_the_head_of_an_error_ends_it_at_its_workers_cost(room: Room) -> None:
    stream = ask(room).answered(500, kind="application/json")

    stream.on_reset(RESET)

    assert room.booked() == {}
    assert sum(room.context.counters.failures.as_dict().values()) == 1


async def test_a_stream_that_began_goes_on_when_the_gateway_needs_no_more(room: Room) -> None:
    stream = ask(room).answered()

    stream.on_reset(RESET)

    assert len(room.booked()) == 1


async def test_a_client_that_leaves_before_a_head_that_would_be_told_is_gone(room: Room) -> None:
    heads_are_told(room)
    stream = ask(room)

    stream.on_half_close()
    stream.on_reset(RESET)

    assert ends(room, "client_gone", "none") == 1
    await settled()


async def test_a_gateway_that_tells_no_modes_is_believed_by_what_it_shows(room: Room) -> None:
    quiet, shown = ask(room, mode=None), ask(room, mode=None).answered().came(b"data: {}\n\n")

    quiet.on_reset(RESET)
    shown.on_reset(RESET)

    assert len(room.booked()) == 1


async def test_what_nobody_sees_ends_by_its_engines_report(room: Room) -> None:
    ask(room).on_reset(RESET)
    (booking,) = room.booked().values()
    began_s = room.context.clock()
    async with asyncio.timeout(10):
        while room.booked():
            room.context.workers.report(booking.worker, LoadReport())
            await asyncio.sleep(0.05)
    took_s = room.context.clock() - began_s

    assert took_s >= DEFAULT.report_age_s
    assert room.unwatched.statistics().over["report"] == 1
    assert ends(room, "finished", "none") == 1


async def test_a_worker_that_leaves_takes_its_requests_along(room: Room) -> None:
    ask(room).on_reset(RESET)
    (booking,) = room.booked().values()

    room.context.scheduler.remove_worker(booking.worker)
    async with asyncio.timeout(5):
        while room.unwatched.statistics().open:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.02)

    assert room.unwatched.statistics().over["gone"] == 1


async def test_what_is_kept_is_ended_with_the_picker(room: Room) -> None:
    ask(room).on_reset(RESET)
    kept = len(room.booked())

    room.unwatched.close()
    room.unwatched.close()

    assert kept == 1
    assert room.booked() == {}


async def test_a_prefill_that_is_over_is_told_to_the_replicas(room: Room) -> None:
    ask(room)
    (booking,) = room.booked().values()

    async with asyncio.timeout(5):
        while booking.prefilling:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)

    assert room.unwatched.statistics().prefilled_predicted == 1
    room.unwatched.close()


async def test_gateways_without_end_are_not_all_remembered(room: Room) -> None:
    for number in range(GATEWAYS + 1):
        room.door.note_head(f"gateway {number}")

    assert room.door.reports_heads(f"gateway {GATEWAYS}")
    assert not room.door.reports_heads("gateway 0")
