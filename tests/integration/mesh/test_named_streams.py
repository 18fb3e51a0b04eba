"""A client whose router dies in the middle of its stream gets the rest from a sibling."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from kvmesh.app.ops.nats_server import NatsServer
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.mesh.test_moved_streams import mocker
from tests.integration.support.live_router import meta_router
from tests.integration.support.named_stream import KNOWN, NAME, Reader
from tests.integration.support.told_stream import Told, form, tell
from tests.integration.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 100
CUTS = 20


class Pair:
    """Two routers of a bucket over one engine, each a process."""

    def __init__(self, engine_url: str) -> None:
        self.routers: list[MeshProcess] = []
        self.clients: list[httpx.AsyncClient] = []
        self.engine_url = engine_url

    async def start(self) -> None:
        """Start what does not run; wait until both know each other."""
        for router in self.routers:
            router.start()
        async with asyncio.timeout(60):
            for client in self.clients:
                while not await _is_joined(client):  # noqa: ASYNC110  it cannot tell
                    await asyncio.sleep(0.05)

    async def undisturbed(self, path: str, body: dict[str, object]) -> Told:
        async with httpx.AsyncClient(base_url=self.engine_url, timeout=60) as asking:
            return await tell(asking, path, body)


async def _is_joined(client: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        peers = (await client.get("/v1/status")).json()["mesh"]["peers"]
        return bool(peers) and (await client.get("/ready")).status_code == 200
    return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_routers(
    tmp_path_factory: pytest.TempPathFactory, nats_server: NatsServer
) -> AsyncIterator[Pair]:
    folder, namespace = tmp_path_factory.mktemp("pair"), f"t{uuid.uuid4().hex[:10]}"
    async with mocker() as engine, contextlib.AsyncExitStack() as stack:
        pair = Pair(engine.url)
        for number, port in enumerate(fixed_ports(2)):
            url, name = f"http://127.0.0.1:{port}", f"r{number}"
            words = ["router", "--http-port", str(port), "--router-id", name, "--no-kv-events"]
            words += ["--worker", f"w0={engine.url}", "--nats-url", nats_server.url]
            words += ["--namespace", namespace, "--session-affinity", "off"]
            process = MeshProcess(name, url, words, folder / f"{name}.log")
            stack.callback(process.kill)
            pair.routers.append(process)
            client = httpx.AsyncClient(base_url=url, timeout=60)
            pair.clients.append(await stack.enter_async_context(client))
        yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def pair(two_routers: Pair) -> Pair:
    """Both run: a test may have killed one."""
    await two_routers.start()
    return two_routers


@pytest.fixture
def stream() -> str:
    """A name that no test's stream had before."""
    return uuid.uuid4().hex


@pytest.mark.parametrize("name", ["chat", "completion with ids", "chat with tools"])
async def test_the_rest_comes_from_a_sibling_of_the_router_that_was_killed(
    pair: Pair, stream: str, name: str
) -> None:
    path, body = form(name, tokens=TOKENS)
    before = await pair.undisturbed(path, body)
    reader = Reader(stream)

    def kill(events: int) -> None:
        if events == 40:
            pair.routers[0].kill()

    await reader.begin(pair.clients[0], path, body, kill)
    assert reader.broken
    answer = await reader.resume(pair.clients[1])

    assert answer.status_code == 200, answer.text
    assert reader.told.said == before.said


@pytest.mark.nightly
async def test_a_stream_outlives_twenty_routers_that_are_killed(pair: Pair, stream: str) -> None:
    path, body = form("chat", tokens=400)
    before = await pair.undisturbed(path, body)
    reader, rng, at = Reader(stream), random.Random(3), 0
    last = 20

    def kill(events: int) -> None:
        if events >= last:
            pair.routers[at].kill()

    await reader.begin(pair.clients[at], path, body, kill)
    for cut in range(1, CUTS + 1):
        assert reader.broken
        at = 1 - at
        await pair.start()
        last = len(reader.events) + rng.randint(4, 16) if cut < CUTS else 1000
        answer = await reader.resume(pair.clients[at], kill)
        assert answer.status_code == 200, answer.text

    assert reader.told.said == before.said


async def test_a_sibling_takes_a_stream_over_from_a_router_that_lives(
    pair: Pair, stream: str
) -> None:
    path, body = form("chat", tokens=TOKENS)
    before = await pair.undisturbed(path, body)
    reader, enough = Reader(stream), asyncio.Event()
    reading = asyncio.ensure_future(
        reader.begin(pair.clients[0], path, body, lambda n: enough.set() if n > 30 else None)
    )
    await enough.wait()
    second = Reader(stream, events=reader.events[:20])

    answer = await second.resume(pair.clients[1])
    await reading

    assert answer.status_code == 200, answer.text
    assert second.told.said == before.said
    assert (reader.broken, reader.ends) == (True, 0)


async def test_what_a_sibling_does_not_know_it_says(pair: Pair, stream: str) -> None:
    path, body = form("chat", tokens=20)
    reader = Reader(stream)
    await reader.begin(pair.clients[0], path, body)
    count = len(reader.events)

    async def told() -> bool:
        answer = await pair.clients[1].get(f"/v1/streams/{stream}?after={count + 1}")
        return (answer.status_code, answer.headers.get(KNOWN)) == (409, str(count))

    await until(told)
    assert (await pair.clients[1].get("/v1/streams/other?after=0")).status_code == 404
    rest = await pair.clients[1].get(f"/v1/streams/{stream}?after={count}")
    assert (rest.status_code, rest.text) == (200, "data: [DONE]\n\n")


async def test_through_a_meta_router_the_rest_comes_from_whoever_knows_the_stream(
    pair: Pair, stream: str
) -> None:
    path, body = form("chat", tokens=TOKENS)
    before = await pair.undisturbed(path, body)
    async with contextlib.AsyncExitStack() as stack:
        replicas = [f"default={one.url}" for one in pair.routers]
        first, second = [await stack.enter_async_context(meta_router(replicas)) for _ in range(2)]
        one, other = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
            for url in (first, second)
        ]
        reader = Reader(stream)
        begun = await reader.begin(one, path, body, lambda events: events < 30)
        assert begun.headers["x-kvmesh-resumable"] == "exact"
        for _ in range(4):
            answer = await reader.resume(other, reader.lacks(10))
            assert answer.status_code == 200, answer.text
        answer = await reader.resume(other)
        unknown = await other.get("/v1/streams/other?after=0")
        wrong = await other.post(path, json=body, headers={NAME: "a b"})
        failures = (await other.get("/metrics")).text

    assert reader.told.said == before.said
    assert (unknown.status_code, wrong.status_code) == (404, 400)
    assert unknown.json()["error"]["code"] == "stream_not_found"
    assert 'kvmesh_replica_failures_total{kind="404"' not in failures
