"""Programs that are no router follow a live mesh, book in it, and put engines on it."""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

import kvmesh
from kvmesh import (
    FollowOptions,
    KvIndexer,
    KvMetrics,
    KvMetricsAggregator,
    Matches,
    RegisterOptions,
)
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.errors import ConfigError, NoWorkerError, RequestError, TransportError
from tests.conftest import Eventually
from tests.integration.support.embedded_mesh import (
    STREAM_BYTES,
    EmbeddedMesh,
    complete,
    embedded_mesh,
    example,
    line_of,
)
from tests.integration.support.live_router import free_port

pytestmark = pytest.mark.integration

SHARED = [7] * 960
BURST = 48


@pytest.fixture
async def mesh(nats_server: NatsServer) -> AsyncIterator[EmbeddedMesh]:
    async with embedded_mesh(nats_server.url, 4) as made:
        yield made


async def test_the_fields_snippets_run_against_a_live_mesh(
    mesh: EmbeddedMesh, eventually: Eventually
) -> None:
    warm = (await complete(mesh.router_url, SHARED)).headers["x-kvmesh-worker"]
    listener = await mesh.follow()

    indexer = KvIndexer(listener, block_size=16)
    metrics_aggregator = KvMetricsAggregator(listener)

    def custom_router(matches: Matches, metrics: KvMetrics) -> str:
        scores = {}
        for worker_id, cache_hits in matches.items():
            load = metrics.get_worker_load(worker_id)
            scores[worker_id] = cache_hits / 60 - load
        return max(scores, key=scores.__getitem__)

    def cached() -> int:
        return indexer.find_matches_for_request(SHARED)[warm]

    def loaded() -> bool:
        return all(one.kv_total_blocks for one in metrics_aggregator.get_metrics().endpoints)

    await eventually(lambda: cached() == 60, what="the follower knows what the engine stored")
    await eventually(loaded, what="the follower was told of every engine's load")
    matches = indexer.find_matches_for_request(SHARED)
    metrics = metrics_aggregator.get_metrics()
    cold = {worker: 0 for worker in ("w0", "w1", "w2", "w3") if worker != warm}
    assert matches == indexer.find_matches(SHARED) == matches.scores == {**cold, warm: 60}
    assert f"Cache Distribution: {matches}".endswith("'w3': 0}" if warm != "w3" else "'w3': 60}")
    assert [one.worker_id for one in metrics.endpoints] == ["w0", "w1", "w2", "w3"]
    for endpoint in metrics.endpoints:
        assert (endpoint.num_requests_waiting, endpoint.kv_total_blocks) == (0, 16384)
        assert 0.0 <= endpoint.gpu_cache_usage_perc < 0.01
    assert custom_router(matches, metrics) == warm
    assert listener.engine(warm).models == ("mock",)

    body = {"model": "mock", "prompt": SHARED, "max_tokens": 2}
    async with kvmesh.AsyncClient(mesh.router_url) as client:
        kv = await client.generate(body)
        turns = {(await client.round_robin(body)).worker_id for _ in range(4)}
        anyone = await client.random(body)
        direct = await client.direct(body, "w2")
    assert kv.overlap_blocks >= 59
    assert turns == {"w0", "w1", "w2", "w3"}
    assert anyone.worker_id in turns
    assert direct.worker_id == "w2"


async def test_a_follower_folds_the_stream_as_routers_do_and_is_none(
    mesh: EmbeddedMesh, eventually: Eventually
) -> None:
    listener, _ = await asyncio.gather(
        mesh.follow(),
        mesh.follow("serving", url="http://127.0.0.1:9"),
    )
    for number in range(6):
        await complete(mesh.router_url, [*SHARED[:320], *[number] * 320])

    def position(status: dict[str, object]) -> list[object]:
        return [status[key] for key in ("created", "applied_sequence", "digest", "blocks")]

    def agree() -> bool:
        here, there = position(listener.status()), position(mesh.router.mesh.describe())
        return here == there and int(str(here[1])) > 0

    await eventually(agree, what="follower and router hold the same at the same sequence")
    assert KvIndexer(listener).digest() == mesh.router.index.digest() != 0
    await eventually(
        lambda: mesh.router.mesh.digests()[0] > 0, what="the router compares the follower's digest"
    )
    assert mesh.router.mesh.digests()[1] == 0

    front = await mesh.add_meta_router()
    async with httpx.AsyncClient() as http:
        rows: list[dict[str, Any]] = []
        while len(rows) < 2:
            members = (await http.get(f"{front}/v1/status")).json()["replicas"]
            rows = [one for one in members if one["member"].startswith(f"{mesh.bucket}/")]
            await asyncio.sleep(0.05)
        assert {one["member"].partition("/")[2] for one in rows} == {"r0", "serving"}
        overview = (await http.get(f"{mesh.router_url}/v1/overview?limit=0")).json()
        page = (await http.get(f"{mesh.router_url}/metrics")).text
    # Who names an URL takes requests, as a replica does.
    assert [(one["replica"], one["ready"]) for one in overview["replicas"]] == [
        ("r0", True),
        ("serving", True),
    ]
    assert ("kvmesh_peers 1.0" in page, "kvmesh_followers 1.0" in page) == (True, True)

    client = await nats.connect(mesh.nats_url)
    info = await client.jetstream().stream_info(f"KVMESH_EVENTS_{mesh.bucket}")
    await client.close()
    assert info.config.max_bytes == STREAM_BYTES, "a follower leaves the stream as it is"

    await mesh.llms[3].close()
    indexer, metrics = KvIndexer(listener), KvMetricsAggregator(listener)
    await eventually(
        lambda: "w3" not in indexer.find_matches(SHARED), what="a worker that left is no match"
    )
    assert [one.worker_id for one in metrics.get_metrics().endpoints] == ["w0", "w1", "w2"]
    assert metrics.get_metrics().get_worker_load("w3") == 1.0
    with pytest.raises(NoWorkerError, match="w3"):
        listener.book("w3", SHARED)


async def test_what_a_follower_books_counts_at_once_and_at_routers_until_it_ends(
    mesh: EmbeddedMesh, eventually: Eventually
) -> None:
    listener = await mesh.follow()
    metrics = KvMetricsAggregator(listener)

    with listener.book("w1", SHARED, kvmesh.BookingOptions(output_tokens=32)) as booked:
        before = metrics.get_metrics().endpoints[1]
        await eventually(lambda: mesh.router_load("w1") == 1, what="the router counts it")
        booked.first_token()
        booked.grow(64)
        after = metrics.get_metrics().endpoints[1]
    assert (before.num_requests_waiting, before.prefill_tokens, before.kv_active_blocks) == (
        *(1, 960),
        60,
    )
    assert (after.num_requests_waiting, after.num_requests_running) == (0, 1)
    assert (after.prefill_tokens, after.kv_active_blocks) == (0, 64)
    assert before.load > after.load
    await eventually(lambda: mesh.router_load("w1") == 0, what="the router releases it")

    def booked_by_the_router() -> int:
        return len(listener.view().scheduler.sequences.owned("r0"))

    asking = asyncio.ensure_future(complete(mesh.router_url, SHARED, 60))
    await eventually(lambda: booked_by_the_router() == 1, what="the follower counts a router's")
    await asking
    await eventually(lambda: booked_by_the_router() == 0, what="the follower releases it")

    dropped = listener.book("w2", SHARED)
    with pytest.raises(RequestError, match="booked already"):
        listener.book("w2", SHARED, kvmesh.BookingOptions(request_id=dropped.request_id))
    await eventually(lambda: mesh.router_load("w2") == 1, what="the router counts it")
    del dropped
    await eventually(lambda: mesh.router_load("w2") == 0, what="nobody holds it any more")

    kept = listener.book("w3", SHARED)
    await eventually(lambda: mesh.booked_by("mine") == 1, what="the router counts it")
    await listener.close()
    await eventually(lambda: mesh.booked_by("mine") == 0, what="a follower that left books nothing")
    kept.finish()
    with pytest.raises(TransportError, match="it was closed"):
        metrics.get_metrics()


async def test_a_custom_router_service_spreads_a_burst_and_dies_without_a_trace(
    mesh: EmbeddedMesh, eventually: Eventually
) -> None:
    await complete(mesh.router_url, SHARED)
    async with example("custom_router_service.py", mesh.nats_url, mesh.bucket, "0") as process:
        _, url, name = await line_of(process)

        async def send(number: int, max_tokens: int) -> str:
            tokens = [*SHARED, *[100 + number] * 320]
            answer = await complete(url, tokens, max_tokens)
            assert answer.text.endswith("data: [DONE]\n\n")
            return answer.headers["x-kvmesh-worker"]

        burst = asyncio.gather(*(send(number, 60) for number in range(BURST)))
        await eventually(lambda: mesh.booked_by(name) >= BURST // 2, what="the router sees them")
        spread = Counter(await burst)
        await eventually(lambda: mesh.booked_by(name) == 0, what="all are released")

        assert sum(spread.values()) == BURST
        assert max(spread.values()) <= 20, spread

        late = [asyncio.ensure_future(send(number, 4000)) for number in range(8)]
        await eventually(lambda: mesh.booked_by(name) == 8, what="the router sees the long ones")
        process.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        await eventually(lambda: mesh.booked_by(name) == 0, timeout_s=15, what="they are released")
        assert time.monotonic() - killed_s < 8.0
        await asyncio.gather(*late, return_exceptions=True)
        assert all(one.exception() is not None for one in late), "each lost its answer"


async def test_the_examples_run_against_a_live_mesh(nats_server: NatsServer) -> None:
    async with embedded_mesh(nats_server.url, 1) as mesh:
        engine = await mesh.add_engine()
        place = (mesh.nats_url, mesh.bucket)
        async with example("register_engine.py", engine.url, *place) as registering:
            said = await line_of(registering)
            name = engine.url.removeprefix("http://").replace(".", "-").replace(":", "-")
            assert said == ["registered", name, "serving", "mock"]

            async with example("follow_mesh.py", *place) as following:
                out, err = await following.communicate()
            assert (following.returncode, err) == (0, b"")
            assert f"Cache Distribution: {{'{name}': 0, 'w0': 0}}" in out.decode()
            assert "Worker w0 cache used 0.0 waiting 0 load 0.0" in out.decode()
            assert "Chosen: " in out.decode()

            registering.send_signal(signal.SIGINT)
            _, err = await registering.communicate()
            assert (registering.returncode, err) == (0, b"")


async def test_a_follower_goes_on_when_nats_is_started_again(
    tmp_path: Path, eventually: Eventually
) -> None:
    server = NatsServer(tmp_path / "store", log_path=tmp_path / "nats.log")
    await server.start()
    async with embedded_mesh(server.url, 1, block_size=32) as mesh:
        listener = await mesh.follow()
        indexer = KvIndexer(listener)
        assert indexer.block_size == 32
        await server.stop()
        assert indexer.find_matches(SHARED) == {"w0": 0}
        await server.start()
        await complete(mesh.engines[0].url, SHARED)
        await eventually(
            lambda: indexer.find_matches(SHARED) == {"w0": 30}, what="events are followed again"
        )
        with listener.book("w0", SHARED):
            await eventually(lambda: mesh.booked_by("mine") == 1, what="bookings are told again")
    await server.stop()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            FollowOptions(wait_s=0.3),
            TransportError,
            "'nobody-is-here' .*no usable worker after 0.3 s",
        ),
        (FollowOptions(block_size=0), ConfigError, "block_size is 0"),
        (FollowOptions(name="a.b"), ConfigError, "'a.b'"),
    ],
)
async def test_a_mesh_that_cannot_be_followed_is_an_error_that_says_why(
    options: FollowOptions, error: type[Exception], words: str, nats_server: NatsServer
) -> None:
    with pytest.raises(error, match=words):
        await kvmesh.follow(nats_server.url, "nobody-is-here", options)


async def test_an_engine_that_cannot_be_registered_is_an_error_that_says_why(
    nats_server: NatsServer,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        mesh = EmbeddedMesh(nats_server.url, stack)
        engine = await mesh.add_engine()
        nobody = f"http://127.0.0.1:{free_port()}"

        async def refusal(url: str, **options: Any) -> str:
            with pytest.raises((ConfigError, TransportError)) as caught:
                await kvmesh.register_llm(
                    url, mesh.nats_url, mesh.bucket, RegisterOptions(**options)
                )
            return str(caught.value)

        assert "serves mock; name one of these" in await refusal(engine.url, model="llama")
        assert "does not answer /v1/models after 0.2 s" in await refusal(nobody, wait_s=0.2)
        assert "--engine-url 'w0'" in await refusal("w0")
        assert "kv_cache_block_size is 0" in await refusal(engine.url, kv_cache_block_size=0)
