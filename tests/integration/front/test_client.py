"""Both Python clients against real routers, meta-routers and engines."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest

from kvmesh.client import Answer, AsyncClient, Client, Metrics
from kvmesh.errors import NoWorkerError, RequestError, TransportError
from kvmesh.settings.requests import StreamSettings
from tests.integration.support import live_router
from tests.integration.support.gated_engine import GatedEngine, gated_engine
from tests.integration.support.live_router import mockers

pytestmark = pytest.mark.integration

PREFIX = "What everybody asks about, again and again. " * 50


@pytest.fixture
async def engines() -> AsyncIterator[list[str]]:
    async with mockers(3) as found:
        yield [mocker.url for mocker in found]


class Threaded:
    """The synchronous client, awaited: each call in a thread, since the routers' loop runs here."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(asyncio.to_thread, getattr(self.client, name))


Connect = Callable[[str], AbstractAsyncContextManager[AsyncClient]]


@asynccontextmanager
async def connect_synchronous(url: str) -> AsyncIterator[AsyncClient]:
    with Client(url) as client:
        yield cast("AsyncClient", Threaded(client))


@pytest.fixture(params=[AsyncClient, connect_synchronous], ids=["asynchronous", "synchronous"])
def connect(request: pytest.FixtureRequest) -> Connect:
    made: Connect = request.param
    return made


@pytest.fixture
async def client(engines: list[str], connect: Connect) -> AsyncIterator[AsyncClient]:
    async with live_router.router(engines) as url, connect(url) as client:
        yield client


def chat(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "mock", "max_tokens": 4, "messages": messages, **more}


async def read_stream(
    client: AsyncClient | Threaded, request: dict[str, Any], **wishes: str
) -> tuple[Answer, list[dict[str, Any]]]:
    """Return where a streamed answer came from, and its chunks."""
    if isinstance(client, Threaded):
        synchronous = client.client

        def read() -> tuple[Answer, list[dict[str, Any]]]:
            with synchronous.stream(request, **wishes) as stream:
                return stream.head, list(stream)

        return await asyncio.to_thread(read)
    async with client.stream(request, **wishes) as stream:
        return stream.head, [chunk async for chunk in stream]


async def read_held(
    client: AsyncClient | Threaded, engine: GatedEngine
) -> tuple[Answer, Answer, int]:
    """Return the heads of a stream before and behind its first chunk, and how many there are.

    The engine answers once the stream's head has come.
    """
    if isinstance(client, Threaded):
        synchronous, loop = client.client, asyncio.get_running_loop()

        def read() -> tuple[Answer, Answer, int]:
            with synchronous.stream(chat("x")) as stream:
                before = stream.head
                loop.call_soon_threadsafe(engine.let_go)
                chunks = len(list(stream))
                return before, stream.head, chunks

        return await asyncio.to_thread(read)
    async with client.stream(chat("x")) as stream:
        before = stream.head
        engine.let_go()
        chunks = len([chunk async for chunk in stream])
        return before, stream.head, chunks


async def test_a_stream_that_was_held_says_where_it_came_from_with_its_first_chunk(
    connect: Connect,
) -> None:
    async with (
        gated_engine() as engine,
        live_router.router([engine.url], stream=StreamSettings(sse_comment_s=0.1)) as url,
        connect(url) as client,
    ):
        before, behind, chunks = await read_held(client, engine)

    assert (before.worker_id, before.bucket) == ("", "")
    assert before.request_id
    assert (behind.worker_id, behind.bucket, behind.request_id) == (
        "w0",
        "default",
        before.request_id,
    )
    assert chunks == 1


async def test_a_prefix_is_found_again(client: AsyncClient) -> None:
    first = await client.kv(chat(PREFIX + "one"))
    second = await client.kv(chat(PREFIX + "two"))

    assert second.worker_id == first.worker_id
    assert (first.overlap_blocks, second.overlap_blocks > 100) == (0, True)
    assert second.text
    assert second.bucket == "default"


async def test_round_robin_takes_turns_and_direct_obeys(client: AsyncClient) -> None:
    turns = {(await client.round_robin(chat("x"))).worker_id for _ in range(3)}
    named = [(await client.direct(chat("x"), name)).worker_id for name in ("w2", "w0")]
    anyone = await client.random(chat("x"))

    assert turns == {"w0", "w1", "w2"}
    assert named == ["w2", "w0"]
    assert anyone.worker_id in turns


async def test_a_completion_goes_to_its_own_endpoint(client: AsyncClient) -> None:
    answer = await client.generate({"model": "mock", "prompt": "Once upon", "max_tokens": 3})

    assert answer.body["object"] == "text_completion"
    assert answer.text


async def test_a_stream_comes_in_chunks_and_says_where_from(client: AsyncClient) -> None:
    request = chat("Count.", max_tokens=5)
    head, chunks = await read_stream(client, request, router_mode="round-robin")

    assert head.worker_id in {"w0", "w1", "w2"}
    assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) == 5


async def test_a_router_of_ones_own_sees_matches_and_metrics(client: AsyncClient) -> None:
    held = await client.direct(chat(PREFIX), "w1")
    seen: list[tuple[dict[str, int], Metrics]] = []

    def custom_router(matches: dict[str, int], metrics: Metrics) -> str:
        seen.append((matches, metrics))
        return max(matches, key=matches.__getitem__)

    answer = await client.custom(chat(PREFIX), custom_router)

    assert answer.worker_id == held.worker_id == "w1"
    ((matches, metrics),) = seen
    assert matches["w1"] > 100 > matches["w0"] == matches["w2"] == 0
    assert {one.worker_id for one in metrics.endpoints} == {"w0", "w1", "w2"}
    assert all(0.0 <= one.gpu_cache_usage_perc <= 1.0 for one in metrics.endpoints)


async def test_a_served_request_can_be_explained(client: AsyncClient) -> None:
    answer = await client.kv(chat(PREFIX))

    detail = await client.decision(answer.request_id)

    assert detail["decision"]["worker"] == answer.worker_id


async def test_a_meta_router_takes_the_bucket(engines: list[str], connect: Connect) -> None:
    async with (
        live_router.router(engines[:1], bucket="code") as code,
        live_router.router(engines[1:], bucket="chat") as talk,
        live_router.meta_router([f"code={code}", f"chat={talk}"]) as url,
        connect(url) as client,
    ):
        buckets = [(await client.kv(chat("x"), bucket=name)).bucket for name in ("chat", "code")]

    assert buckets == ["chat", "code"]


async def test_refusals_say_what_is_wrong(client: AsyncClient) -> None:
    with pytest.raises(RequestError, match="one of messages, prompt, input, this has"):
        await client.kv({"model": "mock"})
    with pytest.raises((NoWorkerError, RequestError), match="w9"):
        await client.direct(chat("x"), "w9")
    with pytest.raises(RequestError, match="router") as refused:
        await client.generate(chat("x"), router_mode="clairvoyant")
    assert refused.value.status == 400
    with pytest.raises(RequestError):
        await read_stream(client, chat("x"), router_mode="clairvoyant")


async def test_a_front_door_that_is_not_there_is_named(connect: Connect) -> None:
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
        async with connect(url) as client:
            with pytest.raises(TransportError, match="is a kvmesh router or meta-router serving"):
                await client.kv(chat("x"))


async def test_a_stream_that_breaks_off_is_an_error(connect: Connect) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            b'\r\n16\r\ndata: {"choices": []}\n\n'[:-1]
            + b"\n\r\n"
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, connect(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(TransportError):
            await read_stream(client, chat("x"))


async def test_the_synchronous_client_gives_an_asynchronous_one_where_it_is_awaited(
    engines: list[str],
) -> None:
    async with live_router.router(engines) as url, Client(url) as client:
        answer = await client.kv(chat("x"))

    assert answer.text
