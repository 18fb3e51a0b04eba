"""Forms of requests through a router over pretend engines that refuse, fail, or keep answers."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh._native import Booking
from kvmesh.app.mesh.static_workers import StaticWorkers
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from tests.integration.support.live_router import client_of, mockers, router

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

PROMPT = "What everybody asks about, again and again. " * 20
ERROR_EVENT = b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n'


class Engine:
    """Answers with `status` (0: an event stream of an error alone), and keeps its responses."""

    def __init__(self, name: str, model: str = "m") -> None:
        self.name = name
        self.model = model
        self.status = 200
        self.asked: list[str] = []
        self.kept: set[str] = set()
        self.server = HttpServer(self._answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def _answer(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path
        if path == "/v1/models":
            _respond(exchange, 200, {"object": "list", "data": [{"id": self.model}]})
        elif request.method == "POST":
            self._generate(exchange, json.loads(request.body))
        elif path.startswith("/v1/responses/"):
            self.asked.append(path)
            name = path.rpartition("/")[2]
            _respond(exchange, 200 if name in self.kept else 404, {"id": name})
        else:
            exchange.respond(404, b"")

    def _generate(self, exchange: Exchange, body: dict[str, Any]) -> None:
        previous = body.get("previous_response_id")
        if self.status == 0:
            exchange.respond(200, ERROR_EVENT, content_type=b"text/event-stream")
            return
        if previous is not None and previous not in self.kept:
            _respond(exchange, 404, {"error": {"message": f"{previous} not found", "code": 404}})
            return
        if self.status != 200:
            _respond(exchange, self.status, {"error": {"message": "no", "code": self.status}})
            return
        name = f"resp_{self.name}_{len(self.kept)}"
        self.kept.add(name)
        usage = {"input_tokens": 9, "output_tokens": 1}
        _respond(exchange, 200, {"id": name, "object": "response", "usage": usage})


def _respond(exchange: Exchange, status: int, body: dict[str, Any]) -> None:
    exchange.respond(status, json.dumps(body).encode())


@contextlib.asynccontextmanager
async def engines(count: int, *models: str) -> AsyncIterator[list[Engine]]:
    made = [Engine(str(number), *models[number : number + 1]) for number in range(count)]
    for one in made:
        await one.server.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        for one in made:
            await one.server.drain(0)


async def test_a_conversation_goes_on_at_the_engine_that_keeps_it() -> None:
    async with (
        engines(3) as made,
        router([one.url for one in made], parity_sample=0) as first,
        router([one.url for one in made], parity_sample=0, port=0) as second,
        httpx.AsyncClient(timeout=20) as client,
    ):

        async def respond(url: str, **more: str) -> httpx.Response:
            body = {"model": "m", "input": PROMPT} | more
            return await client.post(f"{url}/v1/responses", json=body)

        begun = [await respond(first) for _ in range(6)]
        reported = [(one.json()["id"], one.headers["x-kvmesh-worker"]) for one in begun]
        on = [await respond(first, previous_response_id=name) for name, _ in reported]
        there = [await respond(second, previous_response_id=name) for name, _ in reported]
        shown = [await client.get(f"{second}/v1/responses/{name}") for name, _ in reported]
        nobodys = await respond(second, previous_response_id="resp_nobodys")
        no_name = await respond(second, previous_response_id="../models")
        asked = [path for one in made for path in one.asked]

    workers = [worker for _, worker in reported]
    assert [one.status_code for one in (*on, *there, *shown)] == [200] * 18
    for answers in (on, there, shown):
        assert [one.headers["x-kvmesh-worker"] for one in answers] == workers
    assert {one.headers["x-kvmesh-unforeseen"] for one in (*on, *there)} == {"stored"}
    assert (nobodys.status_code, no_name.status_code) == (404, 404)
    assert "resp_nobodys not found" in nobodys.text
    # The second router asks each engine once for what it did not see, then knows.
    assert len(asked) == len(reported) * 3 + 3 + len(shown)


async def test_an_answer_of_another_model_is_refused_by_an_engine_of_the_one_asked_for() -> None:
    async with (
        engines(2, "m", "n") as made,
        client_of(router([one.url for one in made], parity_sample=0)) as client,
    ):
        begun = await client.post("/v1/responses", json={"model": "m", "input": PROMPT})
        body = {"model": "n", "input": PROMPT, "previous_response_id": begun.json()["id"]}
        other = await client.post("/v1/responses", json=body)

    assert (other.status_code, other.headers["x-kvmesh-worker"]) == (404, "w1")
    assert "not found" in other.text


@pytest.mark.parametrize("status", [400, 422, 500, 0])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_not_served_is_not_believed_cached(status: int, *, stream: bool) -> None:
    # The compiled way decides the first, the general one that with a wish of its own.
    bodies = [
        {"model": "m", "prompt": PROMPT, "stream": stream} | more
        for more in ({}, {"kvmesh": {"output_tokens": 1}})
    ]
    async with (
        engines(1) as (engine,),
        client_of(router([engine.url], parity_sample=0)) as client,
    ):
        engine.status = status
        for body in bodies * 2:
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/completions", json=body)
        reported = (await client.post("/v1/route", json=bodies[0])).json()
        lengths = reported["expected_output"]["samples"]

    assert (reported["overlap_blocks"], lengths) == (0, 0)


@pytest.mark.parametrize("plain", [True, False])
async def test_refused_requests_are_no_sign_of_events_that_stopped(
    monkeypatch: pytest.MonkeyPatch, *, plain: bool
) -> None:
    reported: list[Booking] = []
    released = StaticWorkers._released

    def note(workers: StaticWorkers, booking: Booking) -> None:
        reported.append(booking)
        released(workers, booking)

    monkeypatch.setattr(StaticWorkers, "_released", note)
    body = {"model": "mock", "prompt": PROMPT, "max_tokens": 2}
    if not plain:
        body["kvmesh"] = {"output_tokens": 1}
    async with (
        mockers() as (mocker,),
        client_of(router([mocker.url], kv_events=True, parity_sample=0)) as client,
    ):
        refused = [
            await client.post("/v1/completions", json=body | {"stop": [""]}) for _ in range(6)
        ]
        told_of_refused = len(reported)
        served = await client.post("/v1/completions", json=body)

    assert {one.status_code for one in refused} == {400}
    assert (served.status_code, told_of_refused, len(reported)) == (200, 0, 1)
