"""A meta-router over static replicas, on real sockets: rules, redirects, other paths, headers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.errors import ConfigError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from tests.integration.support.failing_engine import (
    RawClient,
    answer_status,
    answer_well,
    close_unanswered,
    failing_engines,
    never_answer,
)
from tests.integration.support.gated_engine import GatedEngine, gated_engine
from tests.integration.support.live_router import chat, client_of, free_port, meta_router, router
from tests.integration.support.replay_endpoint import ReplayEndpoint, serve
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
async def buckets() -> AsyncIterator[list[str]]:
    """Two buckets of one router and one engine each, written as --replica wants them."""
    async with contextlib.AsyncExitStack() as stack:
        listed: list[str] = []
        for bucket in ("chat", "code"):
            engine = ReplayEndpoint(workers=1)
            await stack.enter_async_context(serve(engine))
            url = await stack.enter_async_context(router([engine.url], bucket=bucket))
            listed.append(f"{bucket}={url}")
        yield listed


def body(text: str = "Hello", **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}]
    return {"model": "mock", "stream": True, "max_tokens": 2, "messages": turns} | more


def bucket_of(answer: httpx.Response) -> str:
    """Return the bucket a router tells; the tiny engines tell of one of their own before."""
    reported: str = answer.headers.get("x-kvmesh-bucket", answer.text)
    return reported.rpartition(", ")[2]


async def test_a_client_that_follows_redirects_is_sent_to_its_replica(buckets: list[str]) -> None:
    ask = {"x-kvmesh-redirect": "yes", "x-kvmesh-bucket": "code"}
    async with (
        meta_router(buckets, redirects=True) as url,
        httpx.AsyncClient(base_url=url, timeout=60, follow_redirects=True) as client,
    ):
        sent = await client.post(
            "/v1/chat/completions?x=1", json=body(), headers=ask, follow_redirects=False
        )
        followed = await client.post("/v1/chat/completions", json=body(), headers=ask)
        plain = await chat(client, "Hello", bucket="code")
        unknown = await client.post(
            "/v1/chat/completions", json=body(), headers=ask | {"x-kvmesh-bucket": "none"}
        )

    replica = buckets[1].partition("=")[2]
    assert sent.status_code == 307
    assert sent.headers["location"] == f"{replica}/v1/chat/completions?x=1"
    assert (sent.headers["cache-control"], sent.headers["x-kvmesh-bucket"]) == ("no-store", "code")
    assert followed.status_code == 200
    assert str(followed.url).startswith(replica)
    assert bucket_of(followed) == "code"
    assert str(plain.url).startswith(url)
    assert unknown.status_code == 404


async def test_nobody_is_redirected_where_that_is_off(buckets: list[str]) -> None:
    async with client_of(meta_router(buckets)) as client:
        answer = await client.post(
            "/v1/chat/completions", json=body(), headers={"x-kvmesh-redirect": "yes"}
        )

    assert answer.status_code == 200


async def test_rules_go_by_header_model_length_prefix_and_family(buckets: list[str]) -> None:
    family_text = "You are the assistant of a bank. " * 20
    async with client_of(meta_router(buckets)) as client:
        seen = (await client.post("/v1/bucket", json=body(family_text + "first"))).json()
        other = (await client.post("/v1/bucket", json=body(family_text + "second"))).json()
    rules = (
        "bucket=code,header=x-team:search",
        "bucket=code,model=*coder*",
        "bucket=code,min-chars=5000",
        "bucket=code,prefix=def ",
        f"bucket=code,family={seen['family']}",
        "bucket=chat,max-chars=4999",
    )
    async with client_of(meta_router(buckets, rule=rules)) as client:

        async def bucket(text: str, model: str = "mock", **headers: str) -> str:
            answer = await client.post(
                "/v1/chat/completions", json=body(text, model=model), headers=headers
            )
            return bucket_of(answer)

        found = [
            await bucket("Hi", **{"x-team": "search"}),
            await bucket("x" * 5000),
            await bucket("def f(): ..."),
            await bucket(family_text + "third"),
            await bucket("Hi"),
        ]
        coder = (await client.post("/v1/bucket", json=body(model="qwen-coder-7b"))).json()

    assert seen["family"] == other["family"]
    assert seen["bucket"] is None
    assert found == ["code", "code", "code", "code", "chat"]
    assert coder["bucket"] == "code"


@pytest.fixture
async def models() -> AsyncIterator[list[GatedEngine]]:
    async with gated_engine("small", "shared") as small, gated_engine("large", "shared") as large:
        yield [small, large]


FORMULA = """
def mine(candidate, fleet):
    if 200 < candidate.prompt_tokens < 300:
        raise ValueError("not that long")
    return (candidate.worker == "code") + candidate.overlap_blocks
"""


async def test_a_file_chooses_the_bucket_where_a_conversation_begins(
    buckets: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FORMULA)
    async with client_of(meta_router(buckets, kv_cost=f"{path}:mine")) as client:
        ask = "/v1/chat/completions"
        short = [await client.post(ask, json=body(f"{n} Hello")) for n in range(4)]
        named = await client.post(ask, json=body(), headers={"x-kvmesh-bucket": "code"})
        long = [await client.post(ask, json=body(f"{n} " * 500)) for n in range(4)]
        metrics = (await client.get("/metrics")).text

    assert [bucket_of(one) for one in short] == ["chat"] * 4
    assert bucket_of(named) == "code"
    assert sorted(bucket_of(one) for one in long) == ["chat", "chat", "code", "code"]
    assert 'kvmesh_formula_decisions_total{formula="mine.py:mine",kind="failed"} 4' in metrics
    assert 'kvmesh_formula_decisions_total{formula="mine.py:mine",kind="decided"} 4' in metrics


async def test_it_is_ready_when_a_replica_has_answered() -> None:
    ports = free_port(), free_port()
    urls = [f"chat=http://127.0.0.1:{port}" for port in ports]
    async with client_of(meta_router(urls, path="/health")) as client:
        alone = await client.get("/ready")
        async with (
            failing_engines(1) as (engine,),
            router([engine.url], port=ports[1]),
            asyncio.timeout(30),
        ):
            while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110  nothing tells
                await asyncio.sleep(0.02)

    assert alone.status_code == 503
    assert alone.json()["reason"].count("http://127.0.0.1:") == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_cost": "mine"}, "use one of"),
        ({"kv_cost": "lmetric:luck=1"}, "luck"),
        ({"kv_cost": "/nowhere/mine.py:mine"}, "No such file"),
        ({"kv_cost": "lmetric", "bucket_policy": "prefix-hash"}, "give one"),
    ],
)
async def test_a_formula_that_cannot_be_ends_the_start(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        async with meta_router(["chat=http://127.0.0.1:1"], **settings):
            pass


async def test_other_paths_go_to_a_worker_that_serves_their_model(
    models: list[GatedEngine],
) -> None:
    small, large = models
    async with (
        router([small.url, large.url]) as url,
        meta_router([f"only={url}"]) as front,
        httpx.AsyncClient(timeout=60) as client,
    ):
        for base in (url, front):
            for number in range(4):
                answer = await client.post(
                    f"{base}/v1/rerank", json={"model": "large", "query": f"{number}"}
                )
                assert answer.json() == {"path": "/v1/rerank"}
        listed = [
            sorted(one["id"] for one in (await client.get(f"{base}/v1/models")).json()["data"])
            for base in (url, front)
        ]
        one = await client.get(f"{front}/v1/models/small")
        form = await client.post(f"{url}/v1/audio/transcriptions", content=b"--x\r\n{broken")

    assert small.paths.count("/v1/rerank") == 0
    assert large.paths.count("/v1/rerank") == 8
    assert listed == [["large", "shared", "small"]] * 2
    assert one.json()["id"] == "small"
    assert form.status_code == 200


async def test_paths_outside_v1_go_to_a_worker_of_their_model_and_no_others_do(
    models: list[GatedEngine],
) -> None:
    small, large = models
    asked = ("/tokenize", "/detokenize", "/rerank", "/v2/rerank", "/score", "/pooling")
    async with (
        router([small.url, large.url]) as url,
        meta_router([f"only={url}"]) as front,
        httpx.AsyncClient(timeout=60) as client,
    ):
        for base in (url, front):
            for path in asked:
                answer = await client.post(f"{base}{path}", json={"model": "large"})
                assert answer.json() == {"path": path}
                assert answer.headers["x-kvmesh-worker"]
            assert (await client.get(f"{base}/ping")).json() == {"path": "/ping"}
            assert (await client.get(f"{base}/version")).json()["path"] == "/version"
            assert (await client.head(f"{base}/version")).status_code == 200
            assert (await client.post(f"{base}/ping")).status_code == 200
            assert (await client.delete(f"{base}/score")).status_code == 405
            assert (await client.post(f"{base}/rerank/more")).status_code == 404

    assert small.paths.count("/rerank") == 0
    assert [large.paths.count(path) for path in asked] == [2] * len(asked)


async def test_models_carry_the_fields_of_their_engines_and_the_least_length_of_all(
    models: list[GatedEngine],
) -> None:
    small, large = models
    card: dict[str, object] = {"object": "model", "owned_by": "vllm", "permission": [{"x": 1}]}
    small.cards["shared"] = card | {"created": 7, "max_model_len": 4096, "root": "/m"}
    large.cards["shared"] = card | {"created": 5, "max_model_len": 8192, "parent": None}
    large.cards["large"] = {"owned_by": "x" * 5000}
    async with (
        router([small.url, large.url]) as url,
        router([large.url], bucket="two") as other,
        meta_router([f"one={url}", f"two={other}"]) as front,
        httpx.AsyncClient(timeout=60) as client,
    ):
        answers = [(await client.get(f"{base}/v1/models")).json() for base in (url, front)]
        one = (await client.get(f"{front}/v1/models/shared")).json()
        times = small.paths.count("/v1/models")
        again = [(await client.get(f"{url}/v1/models")).json() for _ in range(20)]
        looked = small.paths.count("/v1/models") - times

    [reported, merged] = [{each["id"]: each for each in answer["data"]} for answer in answers]
    shared = {"id": "shared", **card, "created": 5, "max_model_len": 4096, "root": "/m"}
    assert reported["shared"] == {**shared, "parent": None}
    assert merged["shared"] == {**shared, "parent": None}
    assert one == {**shared, "parent": None}
    assert reported["large"] == {
        "id": "large",
        "object": "model",
        "created": 0,
        "owned_by": "kvmesh",
    }
    assert again == [answers[0]] * 20
    assert looked < 5, "what is known is not asked again for each client"


async def test_models_behind_an_engine_that_hangs_are_told_without_its_fields(
    models: list[GatedEngine],
) -> None:
    small, _ = models
    small.cards["small"] = {"max_model_len": 4096}
    async with (
        failing_engines(1) as (hung,),
        client_of(router([small.url, hung.url])) as client,
    ):
        hung.lists = False
        listed = {one["id"]: one for one in (await client.get("/v1/models")).json()["data"]}

    assert listed["small"]["max_model_len"] == 4096
    assert listed["m"]["owned_by"] == "kvmesh"


async def test_models_are_merged_over_buckets_and_requests_follow_them(
    models: list[GatedEngine],
) -> None:
    small, large = models
    async with (
        router([small.url], bucket="one") as one,
        router([large.url], bucket="two") as two,
        client_of(meta_router([f"one={one}", f"two={two}"])) as client,
    ):
        listed = sorted(model["id"] for model in (await client.get("/v1/models")).json()["data"])
        found = await client.get("/v1/models/large")
        for _ in range(4):
            await client.post("/v1/rerank", json={"model": "large"})
        missing = await client.post("/v1/rerank", json={"model": "none"})

    assert listed == ["large", "shared", "small"]
    assert found.json()["id"] == "large"
    assert (small.paths.count("/v1/rerank"), large.paths.count("/v1/rerank")) == (0, 4)
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert "served are large, shared, small" in missing.json()["error"]["message"]


async def test_a_replica_that_hangs_is_left_and_its_requests_go_to_its_sibling() -> None:
    async with failing_engines(2) as (hung, well):
        hung.answer, hung.healthy = never_answer, False
        hung.ready = False
        listed = [f"chat={one.url}" for one in (hung, well)]
        async with client_of(meta_router(listed)) as client:
            asked = (
                client.post("/v1/chat/completions", json=body(stream=False, model="m"))
                for _ in range(4)
            )
            answers = await asyncio.gather(*asked)

    assert {answer.status_code for answer in answers} == {200}
    assert hung.prompts


async def test_a_request_waits_for_a_replica_that_comes_back() -> None:
    async with (
        failing_engines(1) as (replica,),
        client_of(meta_router([f"chat={replica.url}"])) as client,
    ):
        port = replica.server.port
        await replica.server.close()
        waiting = asyncio.create_task(
            client.post("/v1/chat/completions", json=body(stream=False, model="m"))
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 1.0)
        replica.server = HttpServer(replica.serve)
        await replica.server.start("127.0.0.1", port)

        answer = await waiting

    assert answer.status_code == 200


async def test_a_workers_own_error_is_not_asked_for_again() -> None:
    async with failing_engines(2) as replicas:
        for replica in replicas:
            replica.answer = answer_status(503, (b"x-kvmesh-worker", b"w0"))
        async with client_of(meta_router([f"chat={one.url}" for one in replicas])) as client:
            answer = await client.post("/v1/chat/completions", json=body(stream=False, model="m"))

    assert answer.status_code == 503
    assert sum(len(one.prompts) for one in replicas) == 1


async def test_a_question_goes_where_its_prompt_would_and_changes_nothing(
    buckets: list[str],
) -> None:
    async with client_of(meta_router(buckets, bucket_policy="least-loaded")) as client:
        asked = [(await client.post("/v1/route", json=body())).json() for _ in range(2)]
        sent = await client.post("/v1/chat/completions", json=body(), headers={"session-id": "1"})
        follow = body()["messages"] + [{"role": "assistant", "content": "a"}, *body()["messages"]]
        after = (await client.post("/v1/route", json=body(messages=follow))).json()
        wrong = await client.post("/v1/route", json={"model": "mock"})
        statistics = (await client.get("/v1/status")).json()["statistics"]

    assert all("worker" in one for one in (*asked, after))
    assert sent.status_code == 200
    assert wrong.status_code == 400
    # One chat: its first message and its session.
    assert statistics["homes"] == 2
    assert sum(statistics["placed"].values()) == 1


async def test_alone_a_conversation_goes_by_hash_at_every_meta_router(buckets: list[str]) -> None:
    found: dict[str, set[str]] = {}
    async with (
        meta_router(buckets) as one,
        meta_router(buckets[::-1]) as other,
        httpx.AsyncClient(timeout=60) as client,
    ):
        for number in range(12):
            messages = body(f"I am {number}")["messages"]
            for url in (one, other, one):
                answer = await client.post(
                    f"{url}/v1/chat/completions", json=body(messages=messages)
                )
                found.setdefault(f"{number}", set()).add(bucket_of(answer))
                messages = [*messages, {"role": "assistant", "content": "Hello"}]
                messages.append({"role": "user", "content": "and?"})

    assert all(len(one) == 1 for one in found.values())
    assert set.union(*found.values()) == {"chat", "code"}


@pytest.mark.parametrize(
    "wish", [{"labels": "nobody"}, {"worker_id": "nobody"}, {"allowed_workers": "nobody"}]
)
async def test_what_a_client_asks_for_in_vain_is_no_fault_of_a_replica(
    buckets: list[str], wish: dict[str, str]
) -> None:
    async with client_of(meta_router(buckets)) as client:
        refused = [await chat(client, "Hello", bucket="chat", **wish) for _ in range(5)]
        served = await chat(client, "Hello", bucket="chat")
        ready = (await client.get("/ready")).json()

    assert [one.status_code for one in refused] == [503] * 5
    assert {one.headers["x-kvmesh-refused"] for one in refused} == {"wishes"}
    assert served.status_code == 200
    assert "warnings" not in ready


async def ask(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body(stream=False, model="m") | more)


async def test_a_request_that_was_sent_waits_for_its_replica_to_come_back() -> None:
    """One replica, and it dies with the request in flight: the client has no byte of an answer."""
    async with (
        failing_engines(1) as (replica,),
        client_of(meta_router([f"chat={replica.url}"])) as client,
    ):
        port = replica.server.port
        replica.answer = never_answer
        waiting = [asyncio.create_task(ask(client, user=f"{number}")) for number in range(8)]
        await until(lambda: len(replica.prompts) >= 8)
        await replica.server.close()
        replica.answer = answer_well
        await asyncio.sleep(0.5)
        assert not any(one.done() for one in waiting)
        replica.server = HttpServer(replica.serve)
        await replica.server.start("127.0.0.1", port)

        answers = await asyncio.gather(*waiting)
        again = await ask(client, user="0")

    assert [one.status_code for one in (*answers, again)] == [200] * 9
    assert len(replica.prompts) == 17


@pytest.mark.parametrize(
    ("path", "more"),
    [("/v1/batches", {}), ("/v1/responses", {"input": "x", "background": True})],
)
async def test_what_may_not_be_repeated_is_sent_once(path: str, more: dict[str, Any]) -> None:
    async with (
        failing_engines(2) as replicas,
        client_of(meta_router([f"chat={one.url}" for one in replicas])) as client,
    ):
        for replica in replicas:
            replica.answer = close_unanswered
        answer = await client.post(path, json=more | {"model": "m"})

    assert answer.status_code == 502
    assert sum(len(one.prompts) for one in replicas) == 1


async def test_a_replica_that_dies_is_never_a_requests_doing() -> None:
    async with (
        failing_engines(2) as replicas,
        client_of(meta_router([f"chat={one.url}" for one in replicas])) as client,
    ):
        for replica in replicas:
            replica.answer = close_unanswered
        waiting = asyncio.create_task(ask(client))
        await until(lambda: all(one.prompts for one in replicas))
        for replica in replicas:
            replica.answer = answer_well

        answers = [await waiting, await ask(client)]

    assert [one.status_code for one in answers] == [200, 200]


async def test_a_bucket_without_engines_gives_its_requests_to_another() -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines, urls = [], []
        for bucket in ("chat", "code"):
            (engine,) = await stack.enter_async_context(failing_engines(1))
            engines.append(engine)
            url = await stack.enter_async_context(router([engine.url], bucket=bucket))
            urls.append(f"{bucket}={url}")
        front = await stack.enter_async_context(meta_router(urls, wait_for_replica_s=1.5))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=front, timeout=30))
        texts = [body(f"I am {number}")["messages"] for number in range(12)]
        before = [await ask(client, messages=one) for one in texts]
        await engines[0].server.close()

        began_s = asyncio.get_running_loop().time()
        moved = await asyncio.gather(*(ask(client, messages=one) for one in texts))
        took_s = asyncio.get_running_loop().time() - began_s
        named = {"x-kvmesh-bucket": "chat"}
        bound = await client.post(
            "/v1/chat/completions", json=body(stream=False, model="m"), headers=named
        )

    assert {one.headers["x-kvmesh-bucket"] for one in before} == {"chat", "code"}
    assert {(one.status_code, one.headers["x-kvmesh-bucket"]) for one in moved} == {(200, "code")}
    assert took_s < 1.5, "nobody waited"
    assert bound.status_code == 503
    error = bound.json()["error"]
    assert error["code"] == "no_worker"
    assert error["message"].endswith("no usable replica: 1 of 1: no worker there can take it")
    assert bound.headers["retry-after"] == "1"


async def test_a_request_waits_for_the_engine_of_the_only_bucket() -> None:
    async with (
        failing_engines(1) as (engine,),
        router([engine.url], bucket="chat") as replica,
        client_of(meta_router([f"chat={replica}"], wait_for_replica_s=20.0)) as client,
    ):
        port = engine.server.port
        await engine.server.close()
        waiting = [asyncio.create_task(ask(client, user=f"{number}")) for number in range(4)]
        await asyncio.sleep(4.0)  # longer than a replica may let a request wait unasked
        assert not any(one.done() for one in waiting)
        engine.server = HttpServer(engine.serve)
        await engine.server.start("127.0.0.1", port)

        answers = await asyncio.gather(*waiting)

    assert [one.status_code for one in answers] == [200] * 4


@pytest.mark.parametrize("streamed", [False, True])
async def test_router_and_engine_call_a_request_what_its_client_does_and_else_the_router_does(
    streamed: bool,
) -> None:
    seen: list[bytes | None] = []

    def answer(exchange: Exchange) -> None:
        seen.append(exchange.request.header(b"x-request-id"))
        answer_well(exchange)

    async with (
        failing_engines(1) as (engine,),
        router([engine.url], bucket="chat") as replica,
        client_of(meta_router([f"chat={replica}"])) as client,
    ):
        engine.answer = answer
        asked = body(model="m", stream=streamed)
        answers = [
            await client.post("/v1/chat/completions", json=asked, headers=headers)
            for headers in ({}, {"x-request-id": "mine"}, {"x-request-id": "no id"}, {})
        ]
        named = [one.headers["x-request-id"] for one in answers]
        found = [await client.get(f"/v1/decisions/{name}") for name in named]
        wrong = await client.post("/v1/chat/completions", json={"model": "m"})
        engine.answer = answer_status(400)
        refused = await client.post("/v1/chat/completions", json=asked)

    assert [one.status_code for one in (*answers, *found)] == [200] * 8
    assert named == [one.decode() for one in seen if one is not None]
    assert named[1] == "mine"
    assert len(set(named)) == 4
    assert (wrong.status_code, refused.status_code) == (400, 400)
    assert all(one.headers["x-request-id"] for one in (wrong, refused))


@pytest.mark.parametrize("count", [1, 2])
async def test_bodies_of_every_framing_and_length_reach_the_engine_as_they_are(count: int) -> None:
    long = json.dumps(body("x" * 100_000, model="m", stream=False)).encode()
    short = json.dumps(body(model="m", stream=False)).encode()
    pieces = [short[:9], short[9:]]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"
    head = b"POST /v1/chat/completions HTTP/1.%d\r\nhost: a\r\ncontent-type: application/json\r\n"
    sent = (
        head % 1 + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + chunks,
        head % 0 + b"content-length: %d\r\n\r\n" % len(short) + short,
        head % 1 + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(long) + long,
    )
    async with contextlib.AsyncExitStack() as stack:
        (engine,) = await stack.enter_async_context(failing_engines(1))
        urls: list[str] = []
        for bucket in ("chat", "code")[:count]:
            replica = await stack.enter_async_context(router([engine.url], bucket=bucket))
            urls.append(f"{bucket}={replica}")
        url = await stack.enter_async_context(meta_router(urls))
        for data in sent:
            client = await RawClient.connect(url)
            await client.send(data)
            assert await client.status() == 200
            assert b'"content": "ok"' in await client.rest()
            client.close()

    assert engine.prompts == [json.loads(one) for one in (short, short, long)]
