"""Gateways that show no response bodies, or no responses: what each way of ending means."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from kvmesh.app.picker.door import GATEWAYS
from kvmesh.app.picker.leaving import SETTLE_S, SOON_S
from kvmesh.core.members.worker_info import LoadReport
from kvmesh.core.routing.unwatched import DEFAULT
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


def heads_are_told(room: Room) -> Room:
    """Have the gateway show the head of a response."""
    ask(room).answered(kind="application/json", end=True)
    return room


def ends(room: Room, outcome: str, status: str) -> int:
    return room.context.counters.ends.count(outcome, status)


async def settled() -> None:
    await asyncio.sleep(2 * SETTLE_S)


BEGINNINGS: dict[str, Callable[[Room], Asking]] = {
    "picked": ask,
    "whole": lambda room: ask(room, WHOLE).answered(kind="application/json"),
    "failed": lambda room: ask(room).answered(500, kind="application/json"),
    "streaming": lambda room: ask(room).answered(),
    "its head would be told": lambda room: ask(heads_are_told(room)),
}


@pytest.mark.parametrize(
    ("begun", "half_closed", "reset", "outcome"),
    [
        ("picked", False, RESET, None),
        ("picked", True, RESET, ("finished", "none")),
        ("picked", False, CONNECT_ERROR, ("finished", "none")),
        ("whole", False, RESET, ("finished", "2xx")),
        ("failed", False, RESET, ("finished", "5xx")),
        ("streaming", False, RESET, None),
        ("its head would be told", True, RESET, ("client_gone", "none")),
    ],
)
async def test_a_reset_means_that_the_request_is_over_or_goes_on(
    room: Room, begun: str, half_closed: bool, reset: int, outcome: tuple[str, str] | None
) -> None:
    stream = BEGINNINGS[begun](room)

    if half_closed:
        stream.on_half_close()
    stream.on_reset(reset)

    assert len(room.booked()) == (outcome is None)
    assert room.counts.silent == (reset == RESET and not half_closed)
    assert outcome is None or ends(room, *outcome) == 1
    assert sum(room.context.counters.failures.as_dict().values()) == (begun == "failed")
    await settled()


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
