"""Requests through a real Envoy that asks our picker: what clients and workers see."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from kvmesh.app.picker.exchange import PickExchange
from kvmesh.app.picker.stream import answer_streams
from kvmesh.app.router.picker_door import PROCESS
from kvmesh.transport.grpc.health import HealthService
from kvmesh.transport.grpc.server import GrpcServer
from tests.integration.gateway.endpoints import Endpoint, stream_of
from tests.integration.pick.room import CHAT, DESTINATION, Room
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

CHATS = "/v1/chat/completions"


class Live:
    """What a test asks: `client` sends to Envoy; `room` decides, `endpoints` serve."""

    def __init__(self, client: httpx.AsyncClient, room: Room, endpoints: list[Endpoint]) -> None:
        self.client = client
        self.room = room
        self.endpoints = endpoints

    async def stream(self, seed: int, chunks: int, **more: str) -> tuple[bytes, bytes]:
        """Return a stream's bytes as they came, and as they should."""
        asked = {"x-seed": str(seed), "x-chunks": str(chunks), **more}
        answer = await self.client.post(CHATS, content=CHAT, headers=asked)
        return answer.content, b"".join(stream_of(seed, chunks, int(more.get("x-size", 60))))

    async def quiet(self) -> None:
        """Return when no stream is open any more."""
        await until(lambda: not self.room.counts.open_streams)


@contextlib.asynccontextmanager
async def live(
    folder: Path, *, alternatives: int = 0, only: int | None = None, **options: Any
) -> AsyncGenerator[Live]:
    """Run Envoy before our picker and 3 endpoints; `only` that one may be picked."""
    async with contextlib.AsyncExitStack() as stack:
        endpoints = [Endpoint() for _ in range(3)]
        for endpoint in endpoints:
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
        urls = [f"http://{endpoint.address}" for endpoint in endpoints]
        room = Room(urls=urls, alternatives=alternatives)
        stack.push_async_callback(room.close)
        health = HealthService(lambda _: True)
        grpc = GrpcServer({PROCESS: answer_streams(room.door), **health.routes})
        await grpc.start("127.0.0.1", 0)
        stack.push_async_callback(grpc.close)
        known = tuple(endpoint.address for endpoint in endpoints)
        if only is not None:
            options["subset"] = (str(known[only]),)
        pickers = (Address("127.0.0.1", grpc.port),)
        server = EnvoyServer(GatewayOptions(pickers=pickers, endpoints=known, **options), folder)
        stack.push_async_callback(server.stop)
        await server.start()
        client = httpx.AsyncClient(base_url=server.url, timeout=20)
        await stack.enter_async_context(client)
        yield Live(client, room, endpoints)


async def test_a_body_of_any_size_reaches_the_picked_worker_unharmed(tmp_path: Path) -> None:
    async with live(tmp_path) as one:
        for size in (0, 1, 61_999, 62_000, 62_001, 65_536, 1_000_000):
            answer = await one.client.post(CHATS, content=CHAT + b" " * size)

            assert (answer.status_code, answer.content) == (200, CHAT + b" " * size)
            picked = answer.headers["x-kvmesh-worker"]
            assert answer.headers["x-served-by"] == str(one.endpoints[int(picked[1:])].address)
        await one.quiet()

    assert one.room.errors == []
    assert one.room.booked() == {}


async def test_streams_side_by_side_arrive_byte_for_byte(tmp_path: Path) -> None:
    async with live(tmp_path) as one:
        sizes = {"x-size": "900"}
        answers = await asyncio.gather(
            *(one.stream(seed, 3 + 7 * seed, **sizes) for seed in range(30)),
            one.stream(99, 20, **{"x-trailers": "yes"}),
        )
        await one.quiet()

    assert all(got == expected for got, expected in answers)
    counts = one.room.counts
    assert (counts.picks, counts.followed, counts.gone) == (31, 31, 0)
    assert one.room.booked() == {}
    assert one.room.errors == []


async def test_the_first_token_is_seen_while_the_stream_runs(tmp_path: Path) -> None:
    asked = {"x-seed": "1", "x-chunks": "400", "x-pause": "0.02"}

    async with live(tmp_path) as one:
        async with one.client.stream("POST", CHATS, content=CHAT, headers=asked) as answer:
            async for _ in answer.aiter_bytes():
                break
            booking = next(iter(one.room.booked().values()))
            prefilling = booking.prefilling
        await one.quiet()

    assert not prefilling
    assert one.room.booked() == {}, "the client left: nothing stays booked"
    assert one.room.counts.gone == 1


async def test_what_a_client_says_of_endpoints_is_not_believed(tmp_path: Path) -> None:
    lies = {DESTINATION: "10.9.9.9:1", f"{DESTINATION}-subset": "10.9.9.9:1"}
    lies[f"{DESTINATION}-served"] = "10.9.9.9:1"

    async with live(tmp_path, stripped=False) as one:
        answer = await one.client.post(CHATS, content=CHAT, headers=lies)

    assert answer.status_code == 200
    seen = next(headers for endpoint in one.endpoints for headers in endpoint.seen)
    reported = {name: value for name, value in seen.items() if name.startswith("x-gateway-")}
    assert reported == {DESTINATION: answer.headers["x-served-by"]}


async def test_only_endpoints_of_the_subset_are_picked(tmp_path: Path) -> None:
    async with live(tmp_path, only=1) as one:
        answers = [await one.client.post(CHATS, content=CHAT) for _ in range(6)]

    wanted = str(one.endpoints[1].address)
    assert {answer.headers["x-served-by"] for answer in answers} == {wanted}


async def test_a_subset_without_a_worker_is_refused(tmp_path: Path) -> None:
    async with live(tmp_path, subset=("10.0.0.9:1",)) as one:
        refused = await one.client.post(CHATS, content=CHAT)

    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "no_worker"
    assert [endpoint.seen for endpoint in one.endpoints] == [[], [], []]


@pytest.mark.parametrize(
    "options",
    [
        {"response_body": "STREAMED"},
        {"response_body": "BUFFERED"},
        {"request_body": "BUFFERED"},
        {"request_body": "BUFFERED_PARTIAL"},
        {"request_body": "STREAMED"},
        {"request_body": "NONE"},
        {"response_body": "NONE"},
        {"response_body": "NONE", "response_headers": False},
        {"request_body": "NONE", "response_body": "NONE"},
        {"destination": "original_dst"},
        {"destination": "original_dst", "pick_source": "header"},
    ],
    ids=str,
)
async def test_picks_are_obeyed_in_every_mode(options: dict[str, Any], tmp_path: Path) -> None:
    async with live(tmp_path, **options) as one:
        answer = await one.client.post(CHATS, content=CHAT)
        stream, expected = await one.stream(4, 20)
        await one.quiet()

    assert (answer.status_code, answer.content) == (200, CHAT)
    assert stream == expected
    assert one.room.counts.picks == 2
    assert one.room.errors == []
    assert one.room.booked() == {}


@pytest.mark.parametrize(
    ("fault", "kind"), [({"x-status": "503"}, "503"), ({"x-drop": "yes"}, "reset")], ids=str
)
async def test_a_worker_that_fails_is_blamed(
    fault: dict[str, str], kind: str, tmp_path: Path
) -> None:
    async with live(tmp_path, retries=0) as one:
        answer = await one.client.post(CHATS, content=CHAT, headers=fault)
        await one.quiet()

    worker = answer.headers["x-kvmesh-worker"]
    assert answer.status_code == 503
    assert one.room.context.counters.attempts_failed == 1
    assert one.room.context.counters.failures.as_dict() == {(worker, kind): 1}
    assert one.room.booked() == {}


async def test_a_worker_that_nobody_reaches_is_blamed(tmp_path: Path) -> None:
    async with live(tmp_path, retries=0) as one:
        for endpoint in one.endpoints:
            await endpoint.stop()
        refused = await one.client.post(CHATS, content=CHAT)
        await one.quiet()

    worker = refused.headers["x-kvmesh-worker"]
    assert refused.status_code == 503
    assert one.room.context.counters.failures.as_dict() == {(worker, "refused"): 1}


async def test_a_retry_by_the_gateway_moves_the_booking_and_blames_the_first(
    tmp_path: Path,
) -> None:
    async with live(tmp_path, alternatives=2) as one:
        chat = CHAT.replace(b"hello", b"hello " * 2000)
        # A stream: an echo of what was asked is no chat, and teaches nothing of a prefix.
        asked = {"x-chunks": "3"}
        before = await one.client.post(CHATS, content=chat, headers=asked)
        first, place = before.headers["x-kvmesh-worker"], before.headers["x-served-by"]
        # Its prefix is there: it goes there again, and then on to the next.
        asked |= {"x-drop": "yes", "x-at": place}
        after = await one.client.post(CHATS, content=chat, headers=asked)
        await one.quiet()

    assert [before.status_code, after.status_code] == [200, 200]
    worker = after.headers["x-kvmesh-worker"]
    assert after.headers["x-served-by"] == str(one.endpoints[int(worker[1:])].address)
    assert worker != first
    assert one.room.counts.moved == 1
    assert one.room.context.counters.failures.as_dict() == {(first, "refused"): 1}
    assert one.room.booked() == {}


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
async def test_a_body_that_was_changed_arrives_whole_with_its_length(
    mode: str, tmp_path: Path
) -> None:
    chat = CHAT.replace(b"hello", b"hello " * 30_000)
    longer = chat.replace(b'"m"', b'"a-much-longer-name"')
    seen: list[bytes] = []

    def rename(exchange: PickExchange) -> None:
        exchange.request.replace_body(longer)

    async with live(tmp_path, request_body=mode) as one:
        one.room.door.adapters.append(rename)
        for endpoint in one.endpoints:
            endpoint.on_request = lambda _, body: seen.append(body)
        answer = await one.client.post(CHATS, content=chat)
        await one.quiet()

    assert (answer.status_code, answer.content) == (200, longer)
    assert seen == [longer]


@pytest.mark.parametrize("mode", ["BUFFERED", "STREAMED", "NONE"])
async def test_lies_are_taken_off_in_every_mode(mode: str, tmp_path: Path) -> None:
    lies = {f"{DESTINATION}{end}": "10.9.9.9:1" for end in ("", "-subset", "-served")}

    async with live(tmp_path, request_body=mode, stripped=False) as one:
        answer = await one.client.post(CHATS, content=CHAT, headers=lies)

    seen = next(headers for endpoint in one.endpoints for headers in endpoint.seen)
    reported = {name: value for name, value in seen.items() if name.startswith("x-gateway-")}
    assert answer.status_code == 200
    assert reported == {DESTINATION: answer.headers["x-served-by"]}
