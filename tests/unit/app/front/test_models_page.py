import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from kvmesh.app.front.models_page import ModelsPage
from kvmesh.errors import RequestError
from kvmesh.transport.http.fetch import fetch
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamPool


class Engines:
    """Servers that tell their models, and a front door with a page over them."""

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool = pool
        self.names = ["m"]
        self.urls: list[str] = []
        self.asked: list[bytes | None] = []
        self.silent: set[str] = set()
        self.page = ModelsPage(lambda: self.names, lambda: self.urls, pool)
        self.door = HttpServer(self._serve)
        self.servers = [self.door]

    def _serve(self, exchange: Exchange) -> None:
        try:
            self.page.serve(exchange)
        except RequestError as error:
            exchange.respond(404, str(error).encode())

    async def add(self, **fields: object) -> str:
        def tell(exchange: Exchange) -> None:
            self.asked.append(exchange.request.header(b"authorization"))
            if url not in self.silent:
                models = {"data": [{"id": "m", **fields}]}
                exchange.respond(200, json.dumps(models).encode())

        server = HttpServer(tell)
        await server.start("127.0.0.1", 0)
        self.servers.append(server)
        url = f"http://127.0.0.1:{server.port}"
        self.urls.append(url)
        return url

    async def ask(self, path: str = "/v1/models", key: bytes = b"") -> tuple[int, bytes]:
        headers = ((b"authorization", key),) if key else ()
        url = f"http://127.0.0.1:{self.door.port}"
        return await fetch(self.pool, url, path, timeout_s=20, headers=headers)


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    pool = UpstreamPool()
    made = Engines(pool)
    await made.door.start("127.0.0.1", 0)
    yield made
    await asyncio.gather(*(server.close() for server in made.servers))
    await pool.close()


async def test_without_engines_models_are_told_at_once(engines: Engines) -> None:
    status, body = await engines.ask()

    assert status == 200
    assert json.loads(body)["data"] == [
        {"id": "m", "object": "model", "created": 0, "owned_by": "kvmesh"}
    ]


async def test_engines_are_asked_once_with_the_clients_key_however_many_look(
    engines: Engines,
) -> None:
    await engines.add(max_model_len=10)
    await engines.add(max_model_len=8, root="r")

    reported = await asyncio.gather(*(engines.ask(key=b"Bearer k") for _ in range(5)))

    assert {json.loads(body)["data"][0]["max_model_len"] for _, body in reported} == {8}
    assert engines.asked == [b"Bearer k"] * 2


async def test_an_engine_that_hangs_is_given_up_and_not_waited_for_again(engines: Engines) -> None:
    await engines.add(max_model_len=10)
    engines.silent.add(await engines.add(max_model_len=8))

    first = await engines.ask("/v1/models/m")
    again = await asyncio.wait_for(engines.ask("/v1/models/m"), 0.9)

    assert first == again
    assert json.loads(first[1])["max_model_len"] == 10
    assert len(engines.asked) == 2


async def test_what_an_engine_that_left_said_is_forgotten(engines: Engines) -> None:
    url = await engines.add(max_model_len=8)
    await engines.add(max_model_len=10)
    await engines.ask()

    engines.urls.remove(url)

    assert json.loads((await engines.ask())[1])["data"][0]["max_model_len"] == 10


async def test_a_model_that_nobody_serves_is_not_found(engines: Engines) -> None:
    await engines.add()

    status, words = await engines.ask("/v1/models/other")

    assert status == 404
    assert b"'other' does not exist" in words
    assert engines.asked == []
