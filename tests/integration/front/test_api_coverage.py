"""Every inference path through router and meta-router with the clients people use."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI, NotFoundError

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from tests.integration.support.live_router import meta_router, router

pytestmark = pytest.mark.integration

LONG = "What everybody asks about, again and again. " * 20
EVENTS = ((b"content-type", b"text/event-stream"),)
RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
    "output": [
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Hello", "annotations": []}]}
    ],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64},
              "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0},
              "total_tokens": 102},
}  # fmt: skip
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
    "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn",
    "usage": {"input_tokens": 36, "cache_read_input_tokens": 64, "output_tokens": 2},
}  # fmt: skip
EMBEDDINGS = {
    "object": "list", "model": "m", "data": [{"object": "embedding", "index": 0,
    "embedding": [0.5, -0.25]}], "usage": {"prompt_tokens": 100, "total_tokens": 100},
}  # fmt: skip
RESPONSE_EVENTS = [
    ("response.created", {"response": RESPONSE | {"status": "in_progress", "usage": None}}),
    ("response.output_text.delta",
     {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "Hel", "logprobs": []}),
    ("response.output_text.delta",
     {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "lo", "logprobs": []}),
    ("response.completed", {"response": RESPONSE}),
]  # fmt: skip
MESSAGE_EVENTS = [
    ("message_start", {"message": MESSAGE | {"content": [], "stop_reason": None}}),
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("ping", {}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "Hel"}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "lo"}}),
    ("content_block_stop", {"index": 0}),
    ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
    ("message_stop", {}),
]


class Engine:
    """Answers as an engine with all of these APIs would; `asked` are paths and raw bodies."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.server = HttpServer(self._serve)

    def _serve(self, exchange: Exchange) -> None:
        request = exchange.request
        self.asked.append((request.path, request.body))
        stream = b'"stream":true' in request.body.replace(b" ", b"")
        match request.path:
            case "/v1/models":
                listed = {"object": "list", "data": [{"id": "m", "object": "model"}]}
                exchange.respond(200, msgspec.json.encode(listed))
            case "/v1/responses":
                self._answer(exchange, RESPONSE, RESPONSE_EVENTS if stream else ())
            case "/v1/messages":
                self._answer(exchange, MESSAGE, MESSAGE_EVENTS if stream else ())
            case "/v1/embeddings":
                self._answer(exchange, EMBEDDINGS, ())
            case _:
                exchange.respond(404, b'{"error": {"message": "no such path"}}')

    @staticmethod
    def _answer(exchange: Exchange, whole: Any, events: Any) -> None:
        if not events:
            exchange.respond(200, msgspec.json.encode(whole))
            return
        exchange.start(200, EVENTS)
        for name, data in events:
            text = msgspec.json.encode({"type": name} | data)
            exchange.write(b"event: %b\ndata: %b\n\n" % (name.encode(), text))
        exchange.end()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    await engine.server.start("127.0.0.1", 0)
    yield engine
    await engine.server.close()


@pytest.fixture(params=["router", "meta-router"])
async def front(engine: Engine, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """Where clients come in, and the router that decides."""
    async with contextlib.AsyncExitStack() as stack:
        url = f"http://127.0.0.1:{engine.server.port}"
        replica = front = await stack.enter_async_context(router([url]))
        if request.param == "meta-router":
            front = await stack.enter_async_context(meta_router([f"all={replica}"]))
        yield front, replica


async def requests_of(replica: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=replica, timeout=60) as client:
        counters: dict[str, Any] = (await client.get("/v1/status")).json()["requests"]
        return counters


async def test_the_responses_api_streams_and_completes(front: tuple[str, str]) -> None:
    url, replica = front
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        whole = await client.responses.create(model="m", input=LONG, instructions="Be kind.")
        stream = await client.responses.create(
            model="m", input=[{"role": "user", "content": LONG}], stream=True
        )
        events = [event.type async for event in stream]

    async with httpx.AsyncClient(base_url=replica, timeout=60) as client:
        body = {"model": "m", "input": LONG, "instructions": "Be kind."}
        view = (await client.post("/v1/route", json=body)).json()
    counters = await requests_of(replica)
    assert view["expected_output"] == {"tokens": 2.0, "samples": 1, "family_tokens": 256}
    assert whole.output_text == "Hello"
    assert events == [name for name, _ in RESPONSE_EVENTS]
    assert (counters["finished"], counters["reported_tokens"]) == (2, 200)
    assert counters["cached_tokens"] == 128


async def test_messages_in_anthropics_form_stream_and_complete(
    front: tuple[str, str], engine: Engine
) -> None:
    url, replica = front
    body = {
        "model": "m", "max_tokens": 16, "system": [{"type": "text", "text": "Be kind."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}],
    }  # fmt: skip
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        whole = await client.post("/v1/messages", json=body)
        streamed = await client.post("/v1/messages", json=body | {"stream": True})
        explained = await client.post("/v1/decisions", json={})
        decisions = (await client.get("/v1/decisions")).json()["decisions"]

    names = [line[7:] for line in streamed.text.splitlines() if line.startswith("event: ")]
    counters = await requests_of(replica)
    assert whole.json()["content"][0]["text"] == "Hello"
    assert names == [name for name, _ in MESSAGE_EVENTS]
    assert msgspec.json.decode(engine.asked[-1][1]) == body | {"stream": True}
    assert (counters["reported_tokens"], counters["cached_tokens"]) == (200, 128)
    assert decisions[0]["output_tokens"] == 2
    assert decisions[0]["ttft_ms"] is not None
    assert explained.status_code == 405


async def test_embeddings_and_models(front: tuple[str, str]) -> None:
    url, _ = front
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        made = await client.embeddings.create(
            model="m", input=[LONG, "second"], encoding_format="float"
        )
        tokens = await client.embeddings.create(
            model="m", input=[[1, 2, 3], [4]], encoding_format="float"
        )
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("m")
        with pytest.raises(NotFoundError):
            await client.models.retrieve("none")
        with pytest.raises(NotFoundError, match="no such path"):
            await client.moderations.create(input="x")

    assert made.data[0].embedding == tokens.data[0].embedding == [0.5, -0.25]
    assert listed == ["m"]
    assert one.id == "m"
