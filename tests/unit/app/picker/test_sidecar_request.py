"""Prefill and decode on two workers, the prefill asked for by the decode worker's sidecar."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from kvmesh.app.picker.sidecar_request import SidecarRequest, SidecarWay
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.choice.split_sidecars import INSTANCE, RESERVED, SIDECARS
from kvmesh.core.routing.disaggregation import DECODE as DECODES
from kvmesh.core.routing.disaggregation import PREFILL as PREFILLS
from tests.integration.pick.room import CHAT, Asking, Room

LONG = CHAT.replace(b"hello", b"hello " * 3000)
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def made(name: Any = "llm-d", *, labels: bool = True, prefillers: int = 1) -> Room:
    """Return a picker over prefill workers p0… and the decode workers d0 and d1."""
    room = Room(0, split__prefill_split="always")
    names = [f"p{number}" for number in range(prefillers)] + ["d0", "d1"]
    for number, worker in enumerate(names):
        marks = (PREFILLS,) if worker.startswith("p") else (DECODES,)
        own = (*marks, f"{INSTANCE}{number}") if labels else marks
        taints = (PREFILLS,) if worker.startswith("p") else ()
        room.introduce(worker, f"http://10.0.0.{number}:8000", labels=own, taints=taints)
        info = WorkerInfo(labels=frozenset(own), taints=frozenset(taints))
        room.context.workers.describe(WorkerId(worker), info)
    sidecar = SIDECARS[name]
    room.splits.divide = partial(SidecarRequest, way=SidecarWay(sidecar, room.unwatched))
    room.splits.always = sidecar.always
    return room


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    one = made()
    yield one
    await one.close()
    assert one.errors == []
    assert one.booked() == {}


def reported(stream: Asking) -> dict[str, str]:
    mutation = stream.received[0].request_headers.response.header_mutation
    return {
        name: value for name, value in stream.set_in(mutation).items() if name.encode() in RESERVED
    }


def answered_headers(stream: Asking) -> dict[str, str]:
    answer = next(
        one for one in stream.received if one.WhichOneof("response") == "response_headers"
    )
    return stream.set_in(answer.response_headers.response.header_mutation)


async def test_the_decode_worker_is_picked_and_its_sidecar_told_of_the_prefill_worker(
    room: Room,
) -> None:
    stream = room.ask().head().body(LONG)
    booked = {booking.worker for booking in room.booked().values()}

    assert stream.picked.startswith(("10.0.0.1:", "10.0.0.2:"))
    assert reported(stream) == {
        "x-prefiller-host-port": "10.0.0.0:8000",
        "x-llm-d-prefiller-host-port": "10.0.0.0:8000",
    }
    assert len(booked) == 2
    stream.answered()
    assert answered_headers(stream)["x-kvmesh-prefill-worker"] == "p0"
    stream.came(EVENT)
    assert [str(booking.worker)[0] for booking in room.booked().values()] == ["d"]
    stream.came(DONE, end=True)
    assert room.context.counters.splits[""] == 1


async def test_a_short_prompt_stays_whole_and_the_client_hears_why(room: Room) -> None:
    stream = room.ask().head().body(CHAT).answered()

    assert reported(stream) == {}
    assert answered_headers(stream)["x-kvmesh-whole"] == "little to prefill"
    stream.came(DONE, end=True)


@pytest.mark.parametrize("body", [CHAT, LONG])
async def test_a_client_cannot_say_whom_a_sidecar_connects_to(room: Room, body: bytes) -> None:
    spoofed = [(name.decode(), "attacker:1") for name in sorted(RESERVED)]

    stream = room.ask().head("/v1/chat/completions", *spoofed).body(body)

    mutation = stream.received[0].request_headers.response.header_mutation
    kept = {name for name, _ in spoofed} - set(mutation.remove_headers)
    assert kept == set(reported(stream))
    assert "attacker:1" not in reported(stream).values()
    stream.answered().came(DONE, end=True)


async def test_without_a_prefill_worker_that_may_the_request_stays_whole() -> None:
    room = made()
    room.context.workers.describe(WorkerId("p0"), WorkerInfo(taints=frozenset({"repair"})))
    stream = room.ask().head().body(LONG).answered()

    assert reported(stream) == {}
    assert answered_headers(stream)["x-kvmesh-whole"] == "no prefill worker"
    stream.came(DONE, end=True)
    assert room.booked() == {}
    await room.close()


async def test_an_error_of_the_sidecar_is_not_the_decode_workers(room: Room) -> None:
    stream = room.ask().head().body(LONG)
    stream.answered(500, kind="application/json").came(b"{}", end=True)

    assert room.context.counters.failures.as_dict() == {}
    assert room.booked() == {}


async def test_an_error_of_a_whole_request_is_its_workers(room: Room) -> None:
    stream = room.ask().head().body(CHAT)
    stream.answered(500, kind="application/json").came(b"{}", end=True)

    assert sum(room.context.counters.failures.as_dict().values()) == 1


async def test_a_client_that_leaves_gives_both_workers_back(room: Room) -> None:
    stream = room.ask().head().body(LONG)
    booked = len(room.booked())

    stream.on_reset(8)

    assert (booked, room.booked()) == (2, {})


async def test_both_bookings_end_where_the_gateway_shows_nothing(room: Room) -> None:
    room.ask().head(response_mode=0).body(LONG).on_reset(2)
    booked = len(room.booked())

    room.unwatched.close()

    assert (booked, room.booked()) == (2, {})


async def test_dynamos_frontend_is_told_of_every_request() -> None:
    room = made("dynamo", prefillers=0)
    stream = room.ask().head().body(CHAT)
    number = stream.picked.rpartition(".")[2].partition(":")[0]

    assert reported(stream) == {
        "x-worker-instance-id": number,
        "x-dynamo-worker-instance-id": number,
        "x-dynamo-routing-mode": "aggregated",
    }
    stream.answered().came(DONE, end=True)
    await room.close()
