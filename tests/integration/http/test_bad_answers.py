"""Engines that answer 200 with what is no answer: what clients see, what is believed of them."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh.app.meta.command import MetaServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh_lab.mocker.command import Mocker
from kvmesh_lab.mocker.model.faults import BAD_ANSWERS
from tests.integration.support.failing_engine import (
    Answer,
    FailingEngine,
    RawClient,
    answer_well,
    failing_engines,
    request_bytes,
)
from tests.integration.support.live_router import (
    client_of,
    engine,
    free_port,
    mocker_options,
    router,
    serving,
)

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
TOKENS = 4
MOST_LOST = 3
WARM = 24
OUT_S = 2.0
STREAM = (b"content-type", b"text/event-stream")
TOKEN = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"ok"}}]}\n\n'
STOP = b'data: {"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'{"error":{"message":"CUDA error at 10.0.0.9","type":"internal","code":500}}'
SICK = {
    "empty-body": "empty",
    "empty-stream": "empty",
    "random-bytes": "malformed",
    "html": "html",
    "error-200": "error",
    "error-event": "error",
    "wrong-model": "wrong_model",
    "half-json": "malformed",
    "no-done": "malformed",
    "no-tokens": "no_tokens",
}


def problem_of(reply: httpx.Response, *, stream: bool) -> str:
    """Return what is wrong with an answer of `TOKENS` tokens as a client reads it, "" for nothing:
    its text counts, not its status.
    """
    if reply.status_code != 200:
        return str(reply.status_code)
    text, reasons, done = "", [], not stream
    try:
        if stream:
            for line in filter(None, reply.text.split("\n")):
                data = line.removeprefix("data: ")
                done = done or data == "[DONE]"
                if data != "[DONE]":
                    event = json.loads(data)
                    assert event["model"] == "mock"
                    text += event["choices"][0]["delta"].get("content") or ""
                    reasons.append(event["choices"][0]["finish_reason"])
        else:
            whole = reply.json()
            assert whole["model"] == "mock"
            text = whole["choices"][0]["message"]["content"]
            reasons.append(whole["choices"][0]["finish_reason"])
    except (ValueError, KeyError, IndexError, AssertionError) as error:
        return repr(error)
    return "" if text and reasons[-1:] == ["length"] and done else "unfinished"


class Front:
    """A client of a front door that asks what no cache has."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.asked = 0

    async def ask(self, *, stream: bool = False) -> str:
        self.asked += 1
        body = {
            "model": "mock",
            "messages": [{"role": "user", "content": f"{self.asked} " * 50}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": stream,
        }
        try:
            return problem_of(await self.client.post(CHAT, json=body), stream=stream)
        except httpx.HTTPError as error:
            return repr(error)

    async def lost(self, count: int, *, at_once: int = 1, stream: bool = False) -> list[str]:
        """Return what was wrong with each answer that was."""
        left, problems = list(range(count)), []

        async def one() -> None:
            while left:
                left.pop()
                if problem := await self.ask(stream=stream):
                    problems.append(problem)

        await asyncio.gather(*(one() for _ in range(at_once)))
        return problems

    async def row(self, worker: str = "w0") -> dict[str, Any]:
        rows = (await self.client.get("/v1/overview?limit=0")).json()["workers"]
        found: dict[str, Any] = next(one for one in rows if one["worker"] == worker)
        return found


@contextlib.asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Mocker, Front]]:
    """Two engines that have served behind a router, the first of which may be told of faults."""
    async with (
        engine(mocker_options(16, 2048)) as sick,
        engine(mocker_options(16, 2048)) as well,
        client_of(router([sick.url, well.url])) as client,
    ):
        front = Front(client)
        assert await front.lost(WARM, at_once=8) == []
        assert await front.lost(WARM, at_once=8, stream=True) == []
        yield sick, front


@contextlib.asynccontextmanager
async def meta_router(behind: str) -> AsyncIterator[str]:
    port = free_port()
    server = MetaServer(
        MetaRouterSettings(replica=(f"a={behind}",), http=HttpSettings(http_port=port))
    )
    async with serving(server.serve, f"http://127.0.0.1:{port}") as url:
        yield url


async def fall_sick(mocker: Mocker, fault: str) -> None:
    async with httpx.AsyncClient(base_url=mocker.url) as client:
        reported = await client.post("/kvmesh/faults", json={"fail": [f"1:{fault}"]})
        assert reported.status_code == 200


@pytest.mark.parametrize("fault", BAD_ANSWERS)
async def test_whoever_answers_badly_loses_nobody_and_is_out_and_named(fault: str) -> None:
    async with fleet() as (sick, front):
        await fall_sick(sick, fault)
        began_s = time.monotonic()
        lost = await front.lost(20)
        while (await front.row())["stage"] == "in" and time.monotonic() < began_s + OUT_S:
            lost += await front.lost(8, at_once=8)
        row = await front.row()
        ready = (await front.client.get("/ready")).json()
        lost += await front.lost(24, at_once=8)
        lost += await front.lost(24, at_once=8, stream=True)
        metrics = (await front.client.get("/metrics")).text

    assert len(lost) <= MOST_LOST, lost
    assert row["stage"] != "in"
    kind = f"bad_answer:{SICK[fault]}"
    assert f'kvmesh_worker_failures_total{{kind="{kind}",worker="w0"}}' in metrics
    assert kind in json.dumps(ready)
    assert "it answers 200 " in json.dumps(ready)


@pytest.mark.parametrize("fault", ["no-done", "empty-stream", "error-event"])
async def test_streams_alone_show_it_as_well(fault: str) -> None:
    async with fleet() as (sick, front):
        await fall_sick(sick, fault)
        lost = await front.lost(60, at_once=4, stream=True)
        row = await front.row()

    # Of one that ends badly the client has a part by then.
    assert len(lost) <= (2 * MOST_LOST if fault in {"no-done", "half-json"} else 0), lost
    assert row["stage"] != "in"


def question(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def answer(data: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    def give(exchange: Exchange) -> None:
        exchange.respond(200, data, headers=headers)

    return give


def stream_of(*pieces: bytes) -> Answer:
    """Return what writes a stream piece by piece, each in a read of its own."""

    def give(exchange: Exchange) -> None:
        exchange.start(200, (STREAM,))
        loop = asyncio.get_running_loop()
        for number, piece in enumerate(pieces):
            loop.call_later(0.05 * number, exchange.write, piece)
        loop.call_later(0.05 * len(pieces), exchange.end)

    return give


@contextlib.asynccontextmanager
async def one_engine(
    give: Answer, *, meta: bool = False
) -> AsyncIterator[tuple[FailingEngine, str, str]]:
    """Yield an engine, its router and the front door, which is that or a meta-router."""
    async with failing_engines(1) as (only,):
        only.answer = give
        async with router([only.url], parity_sample=0) as url:
            if not meta:
                yield only, url, url
                return
            async with meta_router(url) as front:
                yield only, url, front


async def raw_stream(url: str) -> bytes:
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"q"}]}'
    client = await RawClient.connect(url)
    await client.send(request_bytes(body, CHAT, "connection: close", "x-request-id: asked"))
    assert await client.status() == 200
    found = await client.rest()
    client.close()
    return found


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize(
    ("pieces", "own"),
    [
        ((TOKEN, TOKEN), True),
        ((TOKEN, TOKEN[:30]), True),
        ((TOKEN, b"data: %b\n\n" % ERROR, DONE), False),
        ((TOKEN, b"data: %b\n\n" % ERROR), False),
    ],
)
async def test_behind_its_first_byte_a_client_gets_one_error_event_and_no_end(
    pieces: tuple[bytes, ...], own: bool, meta: bool
) -> None:
    async with one_engine(stream_of(*pieces), meta=meta) as (_, url, front):
        found = await raw_stream(front)
        async with httpx.AsyncClient(base_url=url) as client:
            record = (await client.get("/v1/decisions/asked")).json()
            metrics = (await client.get("/metrics")).text

    assert TOKEN in found
    assert found.count(b'"error"') == 1
    assert not found.endswith(b"0\r\n\r\n")
    if own:
        assert b"w0 answered 200 without its end" in found
        assert b"127.0.0.1" not in found
    kind = "unfinished" if own else "error"
    assert f'kvmesh_worker_failures_total{{kind="bad_answer:{kind}",worker="w0"}} 1' in metrics
    assert "answered 200" in json.dumps(record["outcome"]["failures"])


async def test_an_error_of_the_clients_doing_is_passed_on_whole_and_blames_nobody() -> None:
    error = b'{"error":{"message":"too long","type":"BadRequestError","code":400}}'
    async with (
        one_engine(answer(error)) as (only, url, _),
        httpx.AsyncClient(base_url=url) as client,
    ):
        whole = await client.post(CHAT, json=question("q"))
        only.answer = stream_of(b"data: %b\n\n" % error, DONE)
        streamed = await raw_stream(url)
        metrics = (await client.get("/metrics")).text

    assert (whole.status_code, whole.content) == (200, error)
    assert streamed.endswith(b"0\r\n\r\n")
    assert error in streamed
    assert "kvmesh_worker_failures_total{" not in metrics


async def test_an_overload_within_a_200_lets_the_worker_rest() -> None:
    error = b'{"error":{"message":"queue is full","code":429}}'
    async with failing_engines(2) as engines, router([e.url for e in engines]) as url:
        for one in engines:
            one.answer = answer(error)
        async with httpx.AsyncClient(base_url=url) as client:
            asked = await client.post(CHAT, json=question("q"))

    assert asked.status_code == 429


async def test_a_bad_answer_of_the_only_worker_is_an_error() -> None:
    async with (
        one_engine(answer(b"<html>log in</html>")) as (_, url, __),
        httpx.AsyncClient(base_url=url) as client,
    ):
        asked = await client.post(CHAT, json=question("q"))

    assert asked.status_code == 502
    assert asked.json()["error"]["code"] == "upstream_bad_answer"
    assert "w0 answered 200 that is a web page" in asked.json()["error"]["message"]
    assert "127.0.0.1" not in asked.text


def says_nothing(exchange: Exchange) -> None:
    choice = {"message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 0}
    whole = {"model": "m", "choices": [choice], "usage": usage}
    exchange.respond(200, json.dumps(whole).encode())


async def test_where_two_say_that_there_is_nothing_to_say_nobody_is_blamed() -> None:
    async with (
        failing_engines(2) as engines,
        router([one.url for one in engines], parity_sample=0) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        for number in range(30):
            for one in engines:
                one.answer = says_nothing
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": f"say nothing {number}"}],
            }
            silent = await client.post(CHAT, json=body)
            for one in engines:
                one.answer = answer_well
            spoken = await client.post(CHAT, json=question(f"speak {number}"))
            assert (silent.status_code, spoken.status_code) == (200, 200)
            assert silent.json()["choices"][0]["message"]["content"] == ""
        rows = (await client.get("/v1/overview?limit=0")).json()["workers"]

    assert [one["stage"] for one in rows] == ["in", "in"]


async def test_a_long_answer_is_judged_by_its_start_and_a_compressed_one_not() -> None:
    page = b"<html>" + b"x" * 70_000
    async with failing_engines(2) as engines, router([e.url for e in engines]) as url:
        engines[0].answer = answer(page)
        async with httpx.AsyncClient(base_url=url) as client:
            found = Counter[str]()
            for number in range(12):
                reply = await client.post(CHAT, json=question(f"q {number}"))
                found[reply.json()["choices"][0]["message"]["content"]] += 1
            for one in engines:
                one.answer = answer(b"\x1f\x8bnot gzip", (b"content-encoding", b"x-own"))
            raw = await client.post(CHAT, json=question("q"), headers={"accept-encoding": "x-own"})

    assert found == {"ok": 12}
    assert raw.content == b"\x1f\x8bnot gzip"
